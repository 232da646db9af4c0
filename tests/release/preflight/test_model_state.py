"""What a model holds, kept and put back."""

from collections import OrderedDict

from torch import nn

from discreet.release.preflight.model_state import Snapshot


class Making(OrderedDict):
    """Makes what it holds the class of, whenever it is looked up, as tables of activations do."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


def test_a_table_that_makes_what_it_holds_is_kept_as_it_is():
    model = nn.Linear(2, 2)
    model.table = Making(a=nn.ReLU, b=nn.Tanh)
    snapshot = Snapshot({"model": model})
    model.table["c"] = nn.GELU
    snapshot.restore()
    assert dict.__getitem__(model.table, "a") is nn.ReLU
    assert list(model.table) == ["a", "b"]
