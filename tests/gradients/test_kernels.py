"""Which kernels are chosen, what they may cost, and that no kernel lets one example touch another."""

import math
from itertools import pairwise

import pytest
import torch
from oracle import assert_equal, assert_exact, one_by_one, square_loss
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from discreet import ConfigError, PrivacyError
from discreet.gradients import Engine, engine, kernels
from discreet.gradients.forms import Kernel, Materialised, OuterProducts, base, squared_norms
from discreet.gradients.forms.materialized import Stored
from discreet.gradients.forms.outer import gram_norms
from discreet.gradients.forms.reparametrized import Prepared, Rescaling
from discreet.gradients.graph import walk
from discreet.gradients.kernels import Peak

R = torch.randn


def network():
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten(2),
        nn.Linear(64, 32), nn.Flatten(), nn.Linear(1024, 3),
    )  # fmt: skip


def chosen(model, x, **options):
    engine = Engine(model, **options)
    engine.gradients(square_loss(model(x)), len(x))
    return engine.kernels


def test_memory_decides_how_much_is_kept(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST", 0)
    model, x = network(), R(6, 8, 8, 8)
    plans = [chosen(model, x, memory=memory) for memory in (0.0, 1.05, 1.3, 2.0, math.inf)]
    kept = [{name for name, kernel in plan.items() if "+" in kernel} for plan in plans]
    assert kept[0] == set()
    assert all(few <= many for few, many in pairwise(kept))
    assert kept[-1] >= {"0.weight", "2.weight"}
    assert "7.weight" not in chosen(model, x)  # one row an example: nothing to choose


def test_a_small_step_may_keep_what_a_large_one_may_not(monkeypatch):
    """The layers of a step that takes less than LEAST count as if it took that much; nothing stays nothing."""
    model, x = network(), R(6, 8, 8, 8)
    assert all("+" in kernel for kernel in chosen(model, x).values())
    assert not any("+" in kernel for kernel in chosen(model, x, memory=0.0).values())
    monkeypatch.setattr(kernels, "LEAST", 0)
    assert not all("+" in kernel for kernel in chosen(model, x).values())


def test_the_choice_is_the_same_every_time_and_for_every_batch_size():
    model = network()
    assert len({tuple(chosen(model, R(n, 8, 8, 8)).items()) for n in (3, 6, 6, 11)}) == 1


def test_pinned_kernels_are_taken():
    model, x = network(), R(4, 8, 8, 8)
    found = chosen(model, x, kernels={"2.weight": "gram", "*": "unfold"})
    assert found["2.weight"] == "gram"
    assert found["0.weight"] == "unfold"


def test_a_kernel_is_written_as_it_is_read():
    for text in ("gram", "product+keep", "unfold+chunked"):
        assert str(Kernel.parse(text)) == text
    assert Kernel.parse("product+turns") == Kernel("product", "chunked")  # its name before
    model, x = network(), R(4, 8, 8, 8)
    assert chosen(model, x, kernels={"2.weight": "unfold+turns"})["2.weight"] == "unfold+chunked"


def test_wrong_pins_are_refused_by_name():
    model, x = network(), R(4, 8, 8, 8)
    with pytest.raises(ConfigError, match=r"'9.weight'.*no trainable parameter"):
        Engine(model, kernels={"9.weight": "gram"})
    with pytest.raises(ConfigError, match=r"'0.weight' has no kernel 'product'; it has gram, grouped, grouped\+chu"):
        chosen(model, x, kernels={"0.weight": "product"})


@pytest.mark.parametrize("memory", [-1.0, math.nan, "much"])
def test_memory_is_a_number(memory):
    with pytest.raises(ConfigError, match="memory"):
        Engine(network(), memory=memory)


def test_the_peak_of_a_chain_by_hand():
    """Three layers with 40 and 50 values between them, an input of 30, and many more examples than values."""
    model = nn.Sequential(nn.Linear(30, 40), nn.Tanh(), nn.Linear(40, 50), nn.Tanh(), nn.Linear(50, 1))
    losses = model(R(800, 30)).squeeze(1)
    graph = walk(losses, {id(p): n for n, p in model.named_parameters()}, 0)
    peak = Peak(graph, model.parameters())
    saved = 4 * 800 * (30 + 40 + 50)  # the input, and both tanhs' results: each is also the next layer's input
    assert peak.ordinary == saved + 2 * 4 * 800 * 50  # at the second tanh, with a gradient on both sides


def planned(model, x, monkeypatch):
    """What a first pass has found: the peak, and the costs of each parameter's kernels."""
    seen = []

    def watched(forms, places, peak, *rest):
        seen.append((forms, peak))
        return kernels.choose(forms, places, peak, *rest)

    monkeypatch.setattr(engine, "choose", watched)
    Engine(model).gradients(square_loss(model(x)), len(x))
    return seen[0]


def test_the_peak_where_gradients_are_kept_and_where_they_wait_by_hand(monkeypatch):
    """A layer with a large gradient above a wide one: it is kept beside the wide one's activations, or after them."""
    units, rows, wide = 40, 50, 900
    model = nn.Sequential(nn.Linear(4, wide), nn.Tanh(), nn.Linear(wide, 60), nn.Tanh(), nn.Linear(60, 1))
    _, peak = planned(model, R(units, rows, 4), monkeypatch)
    value = 4 * units * rows  # bytes of one value at every place
    ordinary = value * (4 + wide) + 2 * value * wide  # at the first tanh: the second one's result is gone
    assert peak.ordinary == ordinary
    kept, held = 4 * units * 60 * wide, value * 60  # its gradients; what they are made of, beside the input
    above = value * (60 + 1) + 4 * units * (60 + 1)  # the last layer's input and gradient, and two biases' gradients
    others = {"0.weight": Kernel("product", "keep"), "4.weight": Kernel("product")}
    assert peak.of(others | {"2.weight": Kernel("product", "keep")}) == ordinary + above + kept
    first = 4 * units * (4 * wide + wide)  # what the first layer keeps: its input's gradient is not made, but counted
    assert peak.of(others | {"2.weight": Kernel("product", "chunked")}) == ordinary + above + held + first
    assert kept > ordinary / 3 > held


def test_gradients_wait_for_turns_unless_memory_is_no_concern(monkeypatch):
    monkeypatch.setattr(kernels, "LEAST", 0)
    model = nn.Sequential(nn.Linear(4, 900), nn.Tanh(), nn.Linear(900, 60), nn.Tanh(), nn.Linear(60, 1))
    assert chosen(model, R(40, 50, 4), memory=1.3)["2.weight"] == "product+chunked"
    assert chosen(model, R(40, 50, 4), memory=math.inf)["2.weight"] == "product+keep"


class Widened(nn.Module):
    """As in a transformer: a wide layer between two narrow ones."""

    def __init__(self):
        super().__init__()
        self.widen, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.widen(x)))


def stack(units, monkeypatch):
    """What is chosen for some of them, with a turn that takes two layers' gradients."""
    monkeypatch.setattr(kernels, "LEAST", 0)
    monkeypatch.setattr(base, "CHUNK_BYTES", 2 * units * 4 * 64 * 256)
    return chosen(nn.Sequential(*[Widened() for _ in range(4)]), R(units, 48, 64))


def test_turns_that_have_room_together_are_taken_together(monkeypatch):
    """A turn for one layer is as large as one for all of them: one after the other, only one would seem worth it."""
    found = list(stack(16, monkeypatch).values())
    assert len(found) == 8
    assert all("+" in kernel for kernel in found)
    assert found.count("product+chunked") > 4


def test_the_choice_does_not_depend_on_where_tensors_lie_in_memory(monkeypatch):
    """Gradients may be made where activations were: they are no less for that."""
    plans, blocks = [], []
    for i in range(8):
        plans.append(tuple(stack(16, monkeypatch).values()))
        blocks.append(R(1 + 3000 * i))
    assert len(set(plans)) == 1


@pytest.mark.parametrize("together", [40, 7, 1])
def test_the_end_of_a_pass_is_the_peak_where_a_turn_takes_more_than_was_freed(monkeypatch, together):
    units, rows = 40, 2
    model = nn.Sequential(nn.Linear(100, 120), nn.Tanh(), nn.Linear(120, 90))
    _, peak = planned(model, R(units, rows, 100), monkeypatch)
    turn = 4 * (100 * 120 + 120 * 90)
    monkeypatch.setattr(base, "CHUNK_BYTES", together * turn)
    biases, held = 4 * units * (120 + 90), 4 * units * rows * (100 + 120 + 120 + 90)  # inputs and gradients of both
    least = peak.of(dict.fromkeys(("0.weight", "2.weight"), Kernel("product")))
    found = peak.sizes(dict.fromkeys(("0.weight", "2.weight"), Kernel("product", "chunked")))
    assert found == (max(least, biases + held + together * turn), biases + held + together * turn)


def test_keeping_is_chosen_where_holding_takes_more_than_the_limit():
    """Many square layers with many rows each: what gradients are made of is more than they are."""
    model = nn.Sequential(*[layer for _ in range(10) for layer in (nn.Linear(128, 128), nn.ReLU())])
    found = chosen(model, R(16, 256, 128))
    assert len(found) == 10
    assert all(kernel == "product+keep" for kernel in found.values())


def test_a_weight_that_is_used_twice_has_the_kernel_that_is_shown():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    model, x = Twice(), R(5, 6, 8)
    for kernel in ("product+chunked", "gram"):
        found = Engine(model, kernels={"*": kernel})
        for _ in range(2):
            gradients = found.gradients(square_loss(model(x)), 5)
        assert found.kernels == {"layer.weight": kernel}
        assert gradients.forms["layer.weight"].kernel == Kernel.parse(kernel)
        assert_exact(model, x, kernels={"*": kernel})


# --- no kernel lets one example touch another ------------------------------------------------------------------------

KEPT = [f"{way}+{when}" for way in ("product", "unfold", "grouped") for when in ("keep", "chunked")]
KERNELS = ("product", "unfold", "grouped", "gram", *KEPT)
LAYERS = {
    "linear": (nn.Linear(5, 7), (9, 5)),
    "convolution, 1 channel": (nn.Conv2d(1, 3, 3), (1, 6, 6)),
    "convolution, 3 channels": (nn.Conv2d(3, 5, 3, padding=1), (3, 6, 6)),
    "convolution, 16 channels": (nn.Conv2d(16, 16, 3, stride=2), (16, 7, 7)),
    "convolution, 20 channels": (nn.Conv2d(20, 17, 2), (20, 5, 5)),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("value", [1e30, math.inf, math.nan])
def test_an_example_that_is_not_finite_leaves_the_others_as_they_are(name, kernel, value, monkeypatch):
    layer, shape = LAYERS[name]
    model = nn.Sequential(layer, nn.Flatten(), nn.Tanh())
    monkeypatch.setattr(base, "PART_BYTES", 3 * 4 * layer.weight.numel())  # several examples in one native call
    x = R(7, *shape)
    engine = Engine(model, kernels={"*": kernel})

    def norms(x):
        for _ in range(2):  # the first pass, and a planned one
            found = engine.gradients((model(x) * weights).sum(1), 7)
        return found.norms()["0.weight"], found.each(0, 7)["0.weight"]

    weights = R(7, model(x).shape[1])
    before = norms(x)
    spoiled = x.clone()
    spoiled[4] = value
    after = norms(spoiled)
    others = [0, 1, 2, 3, 5, 6]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one[others], other[others], rtol=1e-5, atol=1e-6)


class Shifted(nn.Module):
    """The gradient for the shift is the very tensor that the layer below it is given, and that a hook writes to."""

    def __init__(self):
        super().__init__()
        self.first, self.shift = nn.Linear(3, 4), nn.Parameter(R(4))

    def forward(self, x):
        hidden = self.first(x)
        hidden.register_hook(lambda gradient: gradient.mul_(2.0))
        return self.shift + hidden


def test_an_op_that_writes_into_a_gradient_that_is_held_is_refused():
    model = Shifted()
    with pytest.raises(PrivacyError, match=r"in place|mixes examples"):
        Engine(model).gradients(square_loss(model(R(5, 3))), 5)


def test_kept_pieces_are_one_tensor():
    each = R(10, 3, 2)
    kept, norms = Stored.made(lambda i, j: each[i:j].clone(), 10, base.PART_BYTES // 3, squared_norms)
    assert [len(p) for p in kept.pieces] == [3, 3, 3, 1]
    torch.testing.assert_close(norms, each.flatten(1).square().sum(1))
    for start, stop in ((0, 10), (2, 4), (3, 6), (9, 10), (0, 1), (4, 10)):
        assert torch.equal(kept.each(start, stop), each[start:stop])
    units, weights, out = torch.tensor([1, 9, 4]), torch.rand(10), torch.zeros(3, 2)
    assert torch.equal(kept.select(units).gradients, each[units])
    kept.add_weighted(weights, out)
    torch.testing.assert_close(out, torch.einsum("u,uij->ij", weights, each))


# --- standardised and normalised weights -----------------------------------------------------------------------------


class Changed(nn.Conv2d):
    def __init__(self, change, *args):
        super().__init__(*args)
        self.change = change

    def forward(self, x):
        return F.conv2d(x, self.change(self.weight))


def standardised(w):
    mean, variance = w.mean((1, 2, 3), keepdim=True), w.var((1, 2, 3), keepdim=True)
    return (w - mean) / (variance + 1e-4).sqrt()


FORMS = {
    "standardised": standardised,
    "unit length": lambda w: w / w.flatten(1).norm(dim=1).view(-1, 1, 1, 1),
    "centred": lambda w: w - w.mean((1, 2, 3), keepdim=True),
    "scaled by its own length": lambda w: w * w.square().mean((1, 2, 3), keepdim=True),
}
OTHERS = {
    "tanh": torch.tanh,
    "mean over outputs": lambda w: w - w.mean(0, keepdim=True),
    "largest taken out": lambda w: w - w.amax((1, 2, 3), keepdim=True),
    "mirrored": lambda w: w + 1e-3 * w.flip(3),
    "length of all outputs": lambda w: w / w.norm(),
    "scaled by the length of all outputs": lambda w: w * w.square().mean(),
    "standardised over all outputs": lambda w: (w - w.mean((1, 2, 3), keepdim=True)) / w.var(),
    "one value added to all of its output": lambda w: w + 0.1 * w[:, :1, :1, :1],
    "one value more": lambda w: w * torch.ones_like(w).index_fill(3, torch.tensor(1), 1.001),
}


@pytest.fixture
def forms(monkeypatch):
    """What every preparation was taken for."""
    seen, of = [], Rescaling.of.__func__

    def watched(cls, prepared):
        seen.append(of(cls, prepared))
        return seen[-1]

    monkeypatch.setattr(Rescaling, "of", classmethod(watched))
    return seen


@pytest.mark.parametrize("name", FORMS)
def test_a_weight_that_is_rescaled_is_recognised_and_exact(name, forms):
    assert_exact(nn.Sequential(Changed(FORMS[name], 3, 4, 3), nn.Flatten()), R(5, 3, 6, 6))
    assert forms
    assert all(form is not None for form in forms)


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_not_taken_for_one(name, forms):
    assert_exact(nn.Sequential(Changed(OTHERS[name], 3, 4, 3), nn.Flatten()), R(5, 3, 6, 6))
    assert forms
    assert all(form is None for form in forms)


def test_weight_norm_is_recognised(forms):
    assert_exact(nn.Sequential(parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), nn.Flatten()), R(5, 3, 6, 6))
    assert any(form is not None for form in forms)


def test_weight_norm_of_all_outputs_together_is_exact():
    layer = parametrizations.weight_norm(nn.Conv2d(3, 4, 3), dim=None)
    assert_exact(nn.Sequential(layer, nn.Flatten()), R(5, 3, 6, 6) + 1)


def test_short_rows_that_are_rescaled_are_measured_well_by_any_draw():
    """Of a random direction among four values little may lie beside the weights and their mean, by which it is seen."""
    weight = nn.Parameter(R(8, 4, dtype=torch.float32))
    made, gradients = torch._weight_norm(weight, torch.ones(8, 1)), R(6, 8, 4, dtype=torch.float32)
    edge = torch.autograd.graph.get_gradient_edge(made)
    pulled = [torch.autograd.grad(made, weight, g, retain_graph=True)[0] for g in gradients]
    exact = torch.stack([p.double().square().sum() for p in pulled]).float()
    for _ in range(200):  # each with a draw of its own; one in twenty was off by more than 1e-5 where it may be
        prepared = Prepared(Materialised(gradients), edge, weight, isometric=False)
        torch.testing.assert_close(prepared.norms(), exact, rtol=4e-6, atol=0.0)


def test_what_standardising_takes_out_is_not_left_in_the_norm():
    """Gradients along the weights themselves, of which only rounding is left: they are pulled one by one."""
    weight = nn.Parameter(R(4, 3, 3, 3, dtype=torch.float32))
    made = standardised(weight)
    directions = made.detach() + 1e-5 * R(6, 4, 3, 3, 3)
    prepared = Prepared(Materialised(directions), torch.autograd.graph.get_gradient_edge(made), weight, isometric=False)
    exact = torch.stack([torch.autograd.grad(made, weight, d, retain_graph=True)[0].square().sum() for d in directions])
    torch.testing.assert_close(prepared.norms(), exact, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("kernel", KERNELS)
def test_under_autocast_what_is_added_is_what_was_measured(kernel):
    """Products in bfloat16, norms and sums in float32: no example adds more than its norm says, by any kernel."""
    model, x = network(), R(5, 8, 8, 8)
    engine = Engine(model, kernels={"*": kernel})
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            losses = square_loss(model(x).float())
        found = engine.gradients(losses, 5)
        for unit in range(5):
            alone = torch.zeros(5)
            alone[unit] = 1.0
            added = {name: torch.zeros_like(p) for name, p in engine.parameters.items()}
            found.add_weighted(dict.fromkeys(added, alone), added)
            for name, squared in found.norms().items():
                assert added[name].dtype == torch.float32
                torch.testing.assert_close(added[name].square().sum(), squared[unit], rtol=1e-4, atol=1e-12)


# --- what a review found ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", [4, 5, 8])
@pytest.mark.parametrize("probe", [False, True])
def test_one_example_that_is_not_finite_does_not_hide_how_a_weight_is_prepared(units, probe):
    """All of the prepared weight's gradient is then not finite, and says nothing of where units stand."""
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh())
    x = R(units, 4)
    clean = Engine(model).gradients(square_loss(model(x)), units).norms()
    x[0] = math.nan
    engine = Engine(model)
    for _ in range(2):
        found = engine.gradients(square_loss(model(x)), units, probe=probe).norms()
        for name, squared in found.items():
            assert squared[0].isnan()
            torch.testing.assert_close(squared[1:], clean[name][1:], rtol=1e-4, atol=1e-6)


def test_an_example_whose_gradient_overflows_is_left_out_alone():
    model = nn.Linear(3, 2)
    x = R(6, 3)
    factors = torch.ones(6)
    factors[2] = 1e38

    def norms(factors):
        hidden = model(x) * 10
        return Engine(model).gradients((hidden * 10).sum(1) * factors, 6).norms()["weight"]

    spoiled, clean = norms(factors), norms(torch.ones(6))
    others = [0, 1, 3, 4, 5]
    assert not spoiled[2].isfinite()
    torch.testing.assert_close(spoiled[others], clean[others])


def test_mixing_beside_huge_gradients_is_still_seen():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.scale

    model, x = Model(), R(6, 2)
    x[:, 0] = 0.0
    hidden = model(x)
    with pytest.raises(PrivacyError, match="mixes examples"):
        Engine(model).gradients(1e20 * hidden[:, 0] + (hidden[:, 1] - 0.9 * hidden[:, 1].mean()), 6)


def test_gram_matrices_of_squares_that_are_too_small_are_not_trusted():
    left, right = torch.full((1, 64, 4), 2.3e-23), torch.full((1, 64, 4), 9e18) * R(1, 64, 1).sign()
    right[:, ::3] *= 0.5
    use = OuterProducts(left, right)
    use.kernel = Kernel("gram")
    exact = torch.bmm(left.double().mT, right.double()).square().sum((1, 2))
    torch.testing.assert_close(use.norms().double(), exact, rtol=1e-4, atol=0.0)


def of_grams(left, right, tolerance=1e-5):
    """How many units are made for norms by Gram matrices, all others of which must be exact."""
    made = []

    def make(start, stop):
        made.append(start)
        return torch.bmm(left[start:stop].mT, right[start:stop])

    found = gram_norms(left, right, make)
    exact = torch.bmm(left.double().mT, right.double()).square().sum((1, 2))
    exact[made] = squared_norms(torch.bmm(left.mT, right)).double()[made]
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=0.0)
    return len(made)


@pytest.mark.parametrize("rows", [2, 50, 128])
def test_units_whose_rows_have_nothing_to_do_with_each_other_are_not_made(rows):
    assert of_grams(R(4, rows, 256), R(4, rows, 96), 1e-6) == 0  # also where there are many products to add


def test_units_with_rows_that_are_too_small_to_matter_are_not_made():
    """As in a recurrence, where gradients fade on the way back through time."""
    fading = 10.0 ** -torch.arange(64.0)[:, None]
    assert of_grams(R(4, 64, 128), fading * R(4, 64, 32)) == of_grams(fading * R(4, 64, 32), R(4, 64, 128)) == 0


@pytest.mark.parametrize("tiny", [1e-16, 1e-18, 1e-20, 1e-22])
@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_rows_whose_squares_are_too_small_count_where_they_meet_large_ones(tiny, beside):
    """What they add is as large as what is beside them, or larger."""
    factors = torch.tensor([tiny, 1.0, 1.0])[:, None]
    left, right = R(4, 3, 32) * factors, R(4, 3, 48) / factors * torch.tensor([1.0, beside, beside])[:, None]
    of_grams(left, right)
    of_grams(right, left)


@pytest.mark.parametrize("values", [64, 1024, 4096])
@pytest.mark.parametrize("left", [0.3, 0.22, 0.205, 0.1])
def test_small_values_behind_a_large_one_are_not_lost_one_by_one(values, left):
    """Their squares are half a rounding of the large one's: added to it alone, each would vanish."""
    rows = torch.full((1, 2, values), 0.97**0.5 * 2.0**-12)
    rows[:, 1] *= -1
    rows[:, :, 0] = 1.0
    of_grams(rows.abs(), torch.eye(2)[None])
    of_grams(rows, torch.tensor([[[1.0, left, 0.0], [-1.0, 0.0, left]]]))


@pytest.mark.parametrize("rows", [2, 8, 64, 256])
@pytest.mark.parametrize("left", [1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-6])
def test_norms_by_gram_matrices_are_exact_however_little_is_left(rows, left):
    """Rows that are alike on one side and cancel on the other, but for a part; or cancel on one side or the other."""
    same, signs = R(6, 1, 24).expand(-1, rows, -1), torch.tensor([1.0, -1.0]).repeat(rows // 2)[:, None]
    cancel = signs * R(6, 1, 40).expand(-1, rows, -1) + left * R(6, rows, 40)
    few = (of_grams(same, cancel), of_grams(cancel, same), of_grams(same + left * R(6, rows, 24), cancel))
    assert left > 1e-3 or few == (6, 6, 6)
    half = torch.arange(rows)[:, None] < rows // 2
    of_grams(torch.where(half, same, 1e-3 * same), torch.where(half, cancel, 1e3 * cancel))


@pytest.mark.parametrize(
    "segment",
    [nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.LayerNorm(4),
     nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))],
    ids=["linear", "linear and tanh", "layer norm", "two layers"],
)  # fmt: skip
def test_checkpointed_segments_of_any_length(segment):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.segment = nn.Linear(4, 4), segment

        def forward(self, x):
            return checkpoint(self.segment, torch.tanh(self.first(x)), use_reentrant=False)

    assert_exact(Model(), R(5, 4), dtypes=(torch.float64,))


def test_a_transposed_convolution_with_output_padding():
    layer = nn.ConvTranspose2d(9, 8, 3, stride=2, dilation=3, output_padding=2)
    assert_exact(layer, R(5, 9, 4, 4), memory=math.inf)


class Sometimes(torch.autograd.Function):
    """The identity, whose gradient may be missing."""

    missing = False

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None if Sometimes.missing else gradient


def test_an_output_that_gets_its_first_gradient_in_a_later_batch(monkeypatch):
    """The structure is the same, but what was seen of it was not all: it is looked at again."""
    layer, x = nn.LSTM(3, 4, batch_first=True), R(5, 6, 3)  # in float32 a layer is one op with several outputs

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            outputs, (_, cells) = self.layer(x)
            return torch.cat([outputs.flatten(1), Sometimes.apply(cells[0])], 1)

    model = Model()
    engine = Engine(model)
    for missing in (True, True, False, False):
        monkeypatch.setattr(Sometimes, "missing", missing)
        expected = one_by_one(model, [x])
        assert_equal(engine.gradients(square_loss(model(x)), 5), expected, 1e-5)


class Doubled(torch.autograd.Function):
    """Has no rule, and may write into the gradient it is given."""

    rude = False

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale

    @staticmethod
    def backward(ctx, gradient):
        x, scale = ctx.saved_tensors
        if Doubled.rude:
            gradient.mul_(2.0)
        return gradient * scale, (gradient * x).sum(0)


def test_an_op_without_a_rule_that_begins_to_write_into_its_gradient_is_refused(monkeypatch):
    """From the second batch on, when its structure is known and not probed again."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale = nn.Linear(3, 4), nn.Parameter(R(4))

        def forward(self, x):
            return Doubled.apply(self.first(x), self.scale)

    model = Model()
    engine = Engine(model)
    engine.gradients(square_loss(model(R(5, 3))), 5)
    monkeypatch.setattr(Doubled, "rude", True)
    losses = square_loss(model(R(5, 3)))
    with pytest.raises(PrivacyError, match="changes a gradient in place"):
        engine.gradients(losses, 5)


def test_parts_cover_all_units_once_and_leave_no_thread_idle(monkeypatch):
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for units in (0, 1, 2, 7, 64):
            for size in (1, base.PART_BYTES // 5, base.PART_BYTES, 9 * base.PART_BYTES):
                found = base.parts(units, size)
                assert [i for start, stop in found for i in range(start, stop)] == list(range(units))
                assert all((stop - start) % threads == 0 for start, stop in found[:-1])
