import pytest
import torch

from discreet import PrivacyError
from discreet.gradients.graph import now, walk

W, V = (torch.nn.Parameter(torch.rand(3, 3)) for _ in range(2))
X = torch.rand(3, 3)


def graph(make, names=None, since=0):
    return walk(make(), {id(W): "w", id(V): "v"} if names is None else names, since)


STRUCTURES = [
    lambda: (X @ W).sum(1),
    lambda: (X @ W).sum(0),  # another dimension
    lambda: (W @ X).sum(1),  # another input of the same op
    lambda: (X @ V).sum(1),  # another parameter
    lambda: (X @ W @ V).sum(1),
    lambda: (X @ V @ W).sum(1),
    lambda: (X @ W @ W).sum(1),  # one node twice
    lambda: (X @ W @ W.t()).sum(1),
    lambda: (X @ W).t().sum(1),
    lambda: (X @ W).transpose(1, 0).sum(1),
    lambda: (X @ W + X @ W).sum(1),
    lambda: (X @ W).unbind(1)[0],
    lambda: (X @ W + (X @ W).topk(3, 1)[0]).sum(1),
]


@pytest.mark.parametrize("one", range(len(STRUCTURES)))
@pytest.mark.parametrize("other", range(len(STRUCTURES)))
def test_graphs_have_one_signature_where_and_only_where_they_have_one_structure(one, other):
    assert (graph(STRUCTURES[one]).signature == graph(STRUCTURES[other]).signature) == (one == other)


def test_a_tensor_that_is_no_parameter_is_another_structure_and_a_stranger():
    known, unknown = graph(STRUCTURES[4]), graph(STRUCTURES[4], {id(W): "w"})
    assert known.signature != unknown.signature
    assert not known.unmanaged_leaves
    assert unknown.unmanaged_leaves == [V]
    assert set(unknown.leaves.values()) == {"w"}


def test_edges_lead_to_inputs_and_constants_are_none():
    found = graph(lambda: (X @ W + X @ W).sum(1))
    names = [type(node).__name__ for node in found.nodes]
    assert names == ["SumBackward1", "AddBackward0", "MmBackward0", "MmBackward0", "AccumulateGrad"]
    assert found.inputs == [((1, 0),), ((2, 0), (3, 0)), (None, (4, 0)), (None, (4, 0)), ()]
    assert found.leaves == {4: "w"}


@pytest.mark.parametrize("place", ["above", "below"])
def test_an_op_that_is_older_than_the_batch_is_refused_wherever_it_is(place):
    before = X @ W
    since = now()
    after = X @ W
    mixed = (before @ W).sum(1) + after.sum(1) if place == "below" else before.sum(1)
    assert walk(after.sum(1), {id(W): "w"}, since).leaves
    with pytest.raises(PrivacyError, match="made before this batch"):
        walk(mixed, {id(W): "w"}, since)
