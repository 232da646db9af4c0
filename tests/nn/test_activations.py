import copy
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import assert_exact
from torch import nn

from discreet import ConfigError
from discreet.nn import BELU, Bounded, BoundedTanh, TemperedSigmoid, belu, bounds_of

sizes = st.floats(0.05, 20)
OURS = st.one_of(
    st.builds(BELU, sizes, st.one_of(st.just(0.0), sizes)),
    st.builds(TemperedSigmoid, sizes, sizes, st.floats(-20, 20)),
    st.builds(BoundedTanh, sizes, sizes),
)


@st.composite
def hardtanh(draw):
    low = draw(st.floats(-20, 19))
    return nn.Hardtanh(low, low + draw(st.floats(0.1, 20)))


TORCHS = st.one_of(st.sampled_from([nn.Tanh(), nn.Sigmoid(), nn.Softsign()]), hardtanh())
DOUBLE = {"dtype": torch.float64}


def grid(*kinks):
    """Densely from -60 to 60, far outside of it, and close to each kink on both sides."""
    near = torch.logspace(-12, 0, 200, **DOUBLE)
    far = torch.logspace(2, 300, 50, **DOUBLE)
    close = [kink + sign * near for kink in (0.0, *kinks) for sign in (1, -1)]
    ends = torch.tensor([-math.inf, math.inf, *kinks], **DOUBLE)
    return torch.cat([torch.linspace(-60, 60, 20_001, **DOUBLE), far, -far, *close, ends])


def slopes(module, x):
    x = x.clone().requires_grad_()
    y = module(x)
    return y.detach(), torch.autograd.grad(y.sum(), x)[0]


@given(st.one_of(OURS, TORCHS))
def test_values_and_slopes_stay_within_their_bounds_and_reach_them(module):
    bounds = bounds_of(module)
    assert bounds is not None
    x = grid(*([module.beta] if isinstance(module, BELU) else []))
    if isinstance(module, nn.Softsign):
        x = x[x.isfinite()]  # torch computes x / (1 + |x|)
    values, derivatives = slopes(module, x)
    rounding = 1e-14 * max(1.0, abs(bounds.low), abs(bounds.high))
    assert values.min() >= bounds.low - rounding
    assert values.max() <= bounds.high + rounding
    assert values.min() <= bounds.low + 1e-3 * (bounds.high - bounds.low)
    assert values.max() >= bounds.high - 1e-3 * (bounds.high - bounds.low)
    assert derivatives.abs().max() <= bounds.slope * (1 + 1e-12)
    assert derivatives.abs().max() >= bounds.slope * (1 - 1e-3)


@given(sizes, st.one_of(st.just(0.0), sizes))
def test_belu_is_its_definition_everywhere(alpha, beta):
    x = grid(beta)
    x = x[x.isfinite()]
    values, derivatives = slopes(BELU(alpha, beta), x)
    low, middle, high = x < 0, (x >= 0) & (x <= beta), x > beta
    torch.testing.assert_close(values[low], alpha * torch.expm1(x[low]), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(derivatives[low], alpha * torch.exp(x[low]), rtol=1e-14, atol=1e-15 * alpha)
    assert torch.equal(values[middle], x[middle])
    assert (derivatives[middle] == 1).all()
    torch.testing.assert_close(values[high], beta - alpha * torch.expm1(beta - x[high]), rtol=1e-14, atol=0.0)
    torch.testing.assert_close(derivatives[high], alpha * torch.exp(beta - x[high]), rtol=1e-14, atol=1e-15 * alpha)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
def test_at_both_kinks_the_derivative_is_that_of_the_middle(alpha, dtype):
    """Also where beta is no number of the dtype: then the kink is where the dtype rounds it to."""
    beta = 0.1
    _, derivatives = slopes(BELU(alpha, beta), torch.tensor([0.0, -0.0, beta], dtype=dtype))
    assert derivatives.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("module", [BELU(), BELU(3.0, 0.1), TemperedSigmoid(), BoundedTanh(2.0, 0.5)], ids=repr)
def test_extremes_are_the_bounds_with_derivative_zero(module, dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([-math.inf, -largest, largest, math.inf], dtype=dtype)
    values, derivatives = slopes(module, x)
    limits = torch.tensor([module.low, module.low, module.high, module.high], dtype=dtype)
    assert values.dtype == dtype
    torch.testing.assert_close(values, limits, rtol=2 * torch.finfo(dtype).eps, atol=0.0)
    assert derivatives.tolist() == [0.0] * 4


@pytest.mark.parametrize("module", [BELU(), BELU(3.0, 0.1), TemperedSigmoid(), BoundedTanh(2.0, 0.5)], ids=repr)
def test_not_a_number_stays_one(module):
    values, derivatives = slopes(module, torch.tensor([math.nan]))
    assert values.isnan().all()
    assert derivatives.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("module", [BELU(), TemperedSigmoid(), BoundedTanh()], ids=repr)
def test_near_zero_no_digits_are_lost(module, dtype):
    x = torch.logspace(-30, -4, 100, **DOUBLE).to(dtype)
    x = torch.cat([x, -x])
    exact = module(x.double())
    torch.testing.assert_close(module(x).double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0.0)


@pytest.mark.parametrize("module", [BELU(1.5, 0.7), TemperedSigmoid(1.0, 3.0, 0.2), BoundedTanh(2.0, 0.5)], ids=repr)
def test_first_and_second_derivatives_are_right(module):
    x = torch.tensor([-3.0, -0.4, 0.3, 0.6, 0.9, 4.0], requires_grad=True, **DOUBLE)
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(module, x)


def test_the_default_tempered_sigmoid_is_tanh_and_others_are_sigmoids():
    x = torch.linspace(-5, 5, 101, **DOUBLE)
    torch.testing.assert_close(TemperedSigmoid()(x), torch.tanh(x))
    torch.testing.assert_close(TemperedSigmoid(3.0, 0.5, 0.25)(x), 3 * torch.sigmoid(0.5 * x) - 0.25)


def test_settings_are_shown_and_survive_copies():
    for module, shown in [
        (BELU(2, 0), "BELU(alpha=2, beta=0)"),
        (TemperedSigmoid(1, 2, -3), "TemperedSigmoid(scale=1, temperature=2, offset=-3)"),
        (BoundedTanh(2, 0.5), "BoundedTanh(bound=2, width=0.5)"),
    ]:
        assert repr(module) == shown
        x = torch.linspace(-3, 3, 7)
        for other in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            assert torch.equal(other(x), module(x))
            assert bounds_of(other) == bounds_of(module)


def test_the_function_is_the_module():
    x = torch.linspace(-3, 5, 50)
    assert torch.equal(belu(x, 0.5, 2.0), BELU(0.5, 2.0)(x))
    assert torch.equal(belu(x), BELU()(x))


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, 1e20, 1e-20, True, "1", None])
def test_settings_that_make_no_sense(bad):
    makers = {
        "BELU's alpha": lambda: BELU(alpha=bad),
        "TemperedSigmoid's scale": lambda: TemperedSigmoid(scale=bad),
        "TemperedSigmoid's temperature": lambda: TemperedSigmoid(temperature=bad),
        "BoundedTanh's bound": lambda: BoundedTanh(bound=bad),
        "BoundedTanh's width": lambda: BoundedTanh(width=bad),
    }
    for name, make in makers.items():
        with pytest.raises(ConfigError, match=name):
            make()


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, 1e20, True, "1", None])
def test_belus_beta_may_be_zero_but_not_less(bad):
    assert BELU(beta=0.0).high == 1.0
    with pytest.raises(ConfigError, match="BELU's beta"):
        BELU(beta=bad)


@pytest.mark.parametrize("bad", [math.nan, -math.inf, 1e20, True, "1", None])
def test_an_offset_is_any_moderate_number(bad):
    assert TemperedSigmoid(offset=-3).high == 5.0
    with pytest.raises(ConfigError, match="TemperedSigmoid's offset"):
        TemperedSigmoid(offset=bad)


def test_nothing_is_known_of_other_activations():
    for module in (nn.ReLU(), nn.GELU(), nn.ELU(), nn.Identity(), nn.ReLU6(), nn.Sequential(nn.Tanh())):
        assert bounds_of(module) is None
    assert bounds_of(nn.Hardtanh(-math.inf, 1.0)) is None


@pytest.mark.parametrize("base", [BELU, TemperedSigmoid, BoundedTanh, nn.Tanh, nn.Sigmoid, nn.Hardtanh, nn.Softsign])
def test_a_subclass_may_do_anything(base):
    class Louder(base):
        def forward(self, x):
            return 100 * super().forward(x)

    assert bounds_of(base()) is not None
    assert bounds_of(Louder()) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda module: setattr(module, "forward", torch.exp),
        lambda module: module.register_forward_hook(lambda module, args, output: 100 * output),
        lambda module: module.register_forward_pre_hook(lambda module, args: (100 * args[0],)),
        lambda module: module.register_full_backward_hook(lambda module, before, after: (100 * before[0],)),
        lambda module: module.register_full_backward_pre_hook(lambda module, after: (100 * after[0],)),
    ],
    ids=["forward", "forward hook", "forward pre-hook", "backward hook", "backward pre-hook"],
)
def test_a_module_that_was_changed_may_do_anything(change):
    module = BELU()
    change(module)
    assert bounds_of(module) is None


def test_what_is_known_is_a_value():
    assert bounds_of(BELU(2.0, 3.0)) == Bounded(-2.0, 5.0, 2.0)
    assert bounds_of(BELU(0.5, 3.0)) == Bounded(-0.5, 3.5, 1.0)
    assert bounds_of(TemperedSigmoid(1.0, 8.0, 0.25)) == Bounded(-0.25, 0.75, 2.0)
    assert bounds_of(BoundedTanh(3.0, 2.0)) == Bounded(-3.0, 3.0, 1.5)
    assert bounds_of(nn.Hardtanh(-2.0, 0.5)) == Bounded(-2.0, 0.5, 1.0)


@pytest.mark.parametrize("activation", [BELU(2.0, 0.5), TemperedSigmoid(), BoundedTanh()], ids=repr)
def test_the_engine_takes_a_network_of_them_apart(activation):
    assert_exact(nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3)), torch.randn(5, 4))
