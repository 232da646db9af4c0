import copy
import math
import sys
import types

import pytest
import torch
from oracle import assert_exact
from torch import nn
from torch.nn import functional as F

from discreet import BoundedNetwork, Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, attach, methods
from discreet.features import Projection
from discreet.models import networks as models
from discreet.models.pretrained import NETWORKS
from discreet.nn import BELU, BoundedTanh, TemperedSigmoid

MNIST, DIGITS, CIFAR = (1, 28, 28), (1, 8, 8), (3, 32, 32)

# every model on an input that it takes and that is small
SMALL = {
    "linear": (2, 3),
    "mlp": (5,),
    "cnn": (1, 14, 16),
    "abadi": (6,),
    "belu": (1, 4, 4),
    "alexnet": (3, 6, 5),
    "wrn-16-4": (3, 8, 8),
}
CASES = [
    *((name, shape, {}) for name, shape in SMALL.items()),
    ("cnn", DIGITS, {}),
    ("mlp", (2, 3), {"hidden": (4, 3)}),
    ("cnn", (2, 15, 14), {"activation": "tempered", "scale": 1.5}),
    ("alexnet", (1, 5, 5), {"activation": "tanh"}),
    ("wrn-16-4", (1, 5, 4), {"activation": "gelu"}),
]


def identify(case):
    return case if isinstance(case, str) else str(case)


def count(model):
    return sum(p.numel() for p in model.parameters())


def labelled(n, shape, outputs=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, *shape, generator=generator), torch.randint(outputs, (n,), generator=generator)


def plan(bound):
    """One step in which all of six examples take part."""
    sampling = Poisson(examples=6, batch_size=6)
    return Plan(sampling=sampling, mechanism=Mechanism(bound, Gaussian(1.0)), steps=1, delta=1e-5)


def step(model, made, data):
    """One private step; what is proven of it."""
    private = attach(model, made, seed=1)
    for x, y in private.batches(data):
        assert len(x) == 6
        assert private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.detach()
    return private.guarantee()


def modules(model, kind):
    return [m for m in model.modules() if isinstance(m, kind)]


# --- what is built ---------------------------------------------------------------------------------------------------


def test_names_have_one_line_each_and_all_can_be_built():
    found = models.names()
    own = ["linear", "mlp", "cnn", "abadi", "belu", "alexnet", "wrn-16-4"]
    assert list(found) == [*own, *NETWORKS]
    assert all(words and "\n" not in words for words in found.values())
    for name in own:  # test_finetuning.py has the public ones
        assert isinstance(models.build(name, MNIST, 10), nn.Module)


def test_what_names_returns_is_the_callers_own():
    models.names().clear()
    assert "mlp" in models.names()


def layer(inputs, outputs, window=1, extra=1):
    """The parameters of a layer: a weight for each input, output and place of the window, and `extra` per output."""
    return inputs * outputs * window**2 + extra * outputs


def wide(channels, outputs):
    """Three stages of two blocks; a convolution has a gain and a bias, a norm a scale and a shift."""
    total, before = layer(channels, 16, 3, extra=2), 16
    for width in (64, 128, 256):
        total += 2 * before + layer(before, width, 1, extra=2)  # the skip of the first block
        total += 2 * before + layer(before, width, 3, extra=2)
        total += 3 * (2 * width + layer(width, width, 3, extra=2))
        before = width
    return total + 2 * 256 + layer(256, outputs)


@pytest.mark.parametrize(
    ("name", "shape", "settings", "expected"),
    [
        ("linear", MNIST, {}, 7_850),
        ("mlp", MNIST, {}, layer(784, 32) + layer(32, 10)),
        ("mlp", (64,), {"hidden": [7, 5]}, layer(64, 7) + layer(7, 5) + layer(5, 10)),
        ("mlp", (64,), {"hidden": 7}, layer(64, 7) + layer(7, 10)),
        ("cnn", MNIST, {}, 26_010),
        ("cnn", CIFAR, {}, layer(3, 16, 8) + layer(16, 32, 4) + layer(32 * 5 * 5, 32) + layer(32, 10)),
        ("cnn", DIGITS, {}, layer(1, 16, 3) + layer(16, 32, 3) + layer(128, 10)),
        ("abadi", (60,), {}, 71_010),
        ("abadi", (60,), {"hidden": 200}, layer(60, 200) + layer(200, 10)),
        ("belu", (1, 32, 32), {}, 33_130),
        ("belu", MNIST, {}, layer(784, 32) + layer(32, 10)),
        ("alexnet", (3, 28, 28), {}, 1_387_786),  # Zhang et al. 2017, table 1
        ("alexnet", CIFAR, {}, 1_387_786 + (8 * 8 - 7 * 7) * 64 * 384),
        ("wrn-16-4", CIFAR, {}, wide(3, 10)),
        ("wrn-16-4", MNIST, {}, wide(1, 10)),
    ],
)
def test_parameters_are_those_of_the_papers_or_counted_by_hand(name, shape, settings, expected):
    assert count(models.build(name, shape, 10, **settings)) == expected


def test_the_wide_network_has_the_2_75_million_parameters_of_de_et_al():
    assert wide(3, 10) == 2_753_818


def test_the_small_alexnet_has_ten_tensors_that_paper_003_clips_separately():
    assert len(list(models.build("alexnet", CIFAR, 10).parameters())) == 10


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize(("name", "shape", "settings"), CASES, ids=identify)
def test_outputs_are_one_row_an_example(name, shape, settings, outputs):
    model = models.build(name, shape, outputs, **settings)
    for n in (1, 3):
        assert model(torch.randn(n, *shape)).shape == (n, outputs)


@pytest.mark.parametrize("side", [4, 5, 8, 13, 14, 15, 17, 28, 33])
@pytest.mark.parametrize("name", ["cnn", "alexnet", "wrn-16-4"])
def test_images_of_every_size_that_is_not_refused_fit(name, side):
    model = models.build(name, (2, side, side + 3), 3).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 2, side, side + 3)).shape == (1, 3)


REFERENCES = {
    "cnn": (MNIST, lambda: nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )),
    "cnn for digits": (DIGITS, lambda: nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 10),
    )),
    "alexnet": (CIFAR, lambda: nn.Sequential(
        nn.Conv2d(3, 64, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.LocalResponseNorm(9, 0.001, 0.75, 1.0),
        nn.Conv2d(64, 64, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.LocalResponseNorm(9, 0.001, 0.75, 1.0),
        nn.Flatten(), nn.Linear(4096, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10),
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_the_layers_are_those_of_the_source(name):
    shape, reference = REFERENCES[name]
    model, expected = models.build(name.split()[0], shape, 10), reference()
    expected.load_state_dict(model.state_dict())
    x = 3 * torch.randn(2, *shape)
    assert torch.equal(model(x), expected(x))


def test_the_tutorial_network_is_built_from_14_pixels_on_and_the_small_one_below():
    assert modules(models.build("cnn", (1, 14, 14), 2), nn.Conv2d)[0].kernel_size == (8, 8)
    assert modules(models.build("cnn", (1, 13, 14), 2), nn.Conv2d)[0].kernel_size == (3, 3)


@pytest.mark.parametrize("name", SMALL)
def test_the_same_seed_makes_the_same_network(name):
    def made(seed):
        torch.manual_seed(seed)
        return list(models.build(name, SMALL[name], 3).state_dict().values())

    assert all(torch.equal(a, b) for a, b in zip(made(3), made(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(made(3), made(4), strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_state_dicts_load_and_networks_can_be_copied(name):
    model, other = models.build(name, SMALL[name], 3), models.build(name, SMALL[name], 3)
    x = torch.randn(2, *SMALL[name])
    other.load_state_dict(model.state_dict())
    assert torch.equal(model(x), other(x))
    assert torch.equal(model(x), copy.deepcopy(model)(x))


# --- each example's gradient -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "shape", "settings"), CASES, ids=identify)
def test_gradients_equal_autograd_one_example_at_a_time(name, shape, settings):
    model = models.build(name, shape, 3, **settings)
    slack = 30.0 if name == "wrn-16-4" else 1.0  # norms follow its gains, so most of a gain's gradient cancels
    assert_exact(model, torch.randn(2, *shape), dtypes=(torch.float64,), slack=slack)


@pytest.mark.parametrize(("name", "shape", "settings"), CASES, ids=identify)
def test_an_examples_outputs_do_not_depend_on_the_other_rows(name, shape, settings):
    model = models.build(name, shape, 3, **settings).double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    others = torch.cat([x[:1], 100 * torch.randn(2, *shape, dtype=torch.float64)])
    torch.testing.assert_close(model(x)[:1], model(others)[:1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", SMALL)
def test_one_private_step_gives_every_parameter_a_gradient(name):
    model = models.build(name, SMALL[name], 3)
    guarantee = step(model, plan(Clip(1.0)), labelled(6, SMALL[name]))
    assert 0 < guarantee.epsilon < math.inf
    assert all(p.grad is not None and p.grad.isfinite().all() and p.grad.any() for p in model.parameters())


# --- the networks of the papers --------------------------------------------------------------------------------------


def test_the_belu_network_is_one_that_can_be_bounded():
    model = models.build("belu", (1, 4, 4), 3, alpha=0.5, beta=0.25)
    bound = BoundedNetwork(input_norm=1.0).fit_to(model)
    widths = BoundedNetwork.of_widths((16, 32, 3), 0.5, 0.25, input_norm=1.0)

    def norms(bound):
        return [block.norm for block in bound.contract(bound.layout, None).blocks]

    assert norms(bound) == norms(widths)
    guarantee = step(model, plan(bound), labelled(6, (1, 4, 4)))
    assert 0 < guarantee.epsilon < math.inf


def test_the_belu_network_has_the_settings_of_its_preset():
    (activation,) = modules(models.build("belu", (1, 32, 32), 10), BELU)
    preset = methods.belu(form="paper")
    assert f"alpha + beta = {activation.alpha + activation.beta:g} " in str(preset.guarantee().claims)
    (activation,) = modules(models.build("belu", (1, 32, 32), 10, alpha=0.5, beta=2.0), BELU)
    assert (activation.alpha, activation.beta) == (0.5, 2.0)


def test_the_belu_network_starts_as_he_et_al_say():
    first, last = modules(models.build("belu", (1, 32, 32), 10), nn.Linear)
    for linear in (first, last):
        limit = math.sqrt(6 / linear.in_features)
        assert 0.95 * limit < linear.weight.abs().max() <= limit
        assert not linear.bias.any()


def test_a_padded_image_and_the_image_itself_give_the_belu_network_the_same():
    padded, plain = models.build("belu", (1, 8, 8), 3), models.build("belu", (1, 4, 4), 3)
    weights = padded.state_dict()
    first = next(name for name in weights if name.endswith("weight"))
    weights[first] = weights[first].unflatten(1, (8, 8))[:, 2:6, 2:6].flatten(1)
    plain.load_state_dict(weights)
    x = torch.randn(5, 1, 4, 4)
    torch.testing.assert_close(padded(F.pad(x, (2, 2, 2, 2))), plain(x))


def test_the_abadi_network_follows_a_projection():
    directions = torch.linalg.qr(torch.randn(16, 6))[0]
    model = nn.Sequential(Projection(directions), models.build("abadi", (6,), 3))
    assert 0 < step(model, plan(Clip(4.0)), labelled(6, (1, 4, 4))).epsilon < math.inf
    assert modules(model, nn.Linear)[0].out_features == 1000
    assert len(modules(model, nn.ReLU)) == 1


def test_a_standardised_filter_has_mean_zero_and_the_length_of_its_gain():
    convolution = models.StandardisedConv2d(3, 5, 3, padding=1).double()
    with torch.no_grad():
        convolution.gain.copy_(torch.arange(1.0, 6.0))
        convolution.weight.mul_(7).add_(2)
    filters = convolution.standardised().flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(filters.norm(dim=1), torch.arange(1.0, 6.0, dtype=torch.float64))


def test_standardised_convolutions_do_not_feel_shift_and_scale_of_their_weights():
    convolution = models.StandardisedConv2d(3, 5, 3, stride=2, padding=1).double()
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64)
    before = convolution(x)
    with torch.no_grad():
        convolution.weight.mul_(7).add_(2)
    torch.testing.assert_close(convolution(x), before)


def test_a_filter_without_spread_is_finite_and_has_a_finite_gradient():
    convolution = models.StandardisedConv2d(3, 5, 3)
    with torch.no_grad():
        convolution.weight.fill_(1.0)
    convolution(torch.randn(2, 3, 5, 5)).square().sum().backward()
    assert convolution.weight.grad.isfinite().all()


def test_all_convolutions_of_the_wide_network_are_standardised_and_nothing_normalises_over_the_batch():
    model = models.build("wrn-16-4", DIGITS, 10)
    assert len(modules(model, models.StandardisedConv2d)) == 16  # 1 first, 12 in blocks, 3 on skips
    assert not modules(model, nn.Conv2d)
    assert {m.num_groups for m in modules(model, nn.GroupNorm)} == {16}
    assert not modules(model, nn.modules.batchnorm._BatchNorm)


def test_the_wide_network_activates_then_normalises_then_convolves():
    kinds = [type(m) for m in models.build("wrn-16-4", DIGITS, 10).modules() if not list(m.children())]
    three = [nn.ReLU, nn.GroupNorm, models.StandardisedConv2d]
    first, second = [*three, *three, *three], [*three, *three, nn.Identity]  # two convolutions, and the skip
    last = [nn.ReLU, nn.GroupNorm, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear]
    assert kinds == [models.StandardisedConv2d, *(first + second) * 3, *last]


def test_the_wide_network_halves_images_twice():
    model = models.build("wrn-16-4", (1, 16, 16), 10)
    x, shapes = torch.randn(1, 1, 16, 16), []
    for block in model[:7]:
        x = block(x)
        shapes.append(tuple(x.shape[1:]))
    expected = [(16, 16, 16), (64, 16, 16), (128, 8, 8), (256, 4, 4)]
    assert shapes == [expected[0], *(shape for shape in expected[1:] for _ in range(2))]


def test_a_residual_block_adds_to_what_it_skips():
    model = models.build("wrn-16-4", DIGITS, 10)
    with torch.no_grad():
        for convolution in modules(model, models.StandardisedConv2d):
            convolution.gain.zero_()
    x = torch.randn(2, 64, 8, 8)
    assert torch.equal(model[2](x), x)
    assert not model[1](x[:, :16]).any()


# --- activations -----------------------------------------------------------------------------------------------------

ACTIVATIONS = {
    "relu": (nn.ReLU, {}),
    "tanh": (nn.Tanh, {}),
    "sigmoid": (nn.Sigmoid, {}),
    "gelu": (nn.GELU, {}),
    "belu": (BELU, {"alpha": 0.5, "beta": 2.0}),
    "tempered": (TemperedSigmoid, {"scale": 1.5, "temperature": 3.0, "offset": 0.5}),
    "bounded-tanh": (BoundedTanh, {"bound": 0.5, "width": 2.0}),
}


@pytest.mark.parametrize("name", ["mlp", "cnn", "alexnet", "wrn-16-4"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_by_name_with_their_settings(name, activation):
    kind, settings = ACTIVATIONS[activation]
    model = models.build(name, SMALL[name], 3, activation=activation, **settings)
    every = tuple(kind for kind, _ in ACTIVATIONS.values())
    found = modules(model, every)
    assert found
    for module in found:
        assert type(module) is kind
        assert {key: getattr(module, key) for key in settings} == settings


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_exact_with_every_activation(activation):
    model = models.build("mlp", (5,), 3, activation=activation, **ACTIVATIONS[activation][1])
    assert_exact(model, torch.randn(4, 5), dtypes=(torch.float64,))


def test_settings_of_an_activation_may_be_left_out():
    (activation,) = modules(models.build("mlp", (5,), 3, activation="belu", beta=3.0), BELU)
    assert (activation.alpha, activation.beta) == (BELU().alpha, 3.0)


def test_between_layers_there_is_one_activation_each():
    kinds = [type(m) for m in models.build("mlp", (5,), 3, hidden=(4, 3)).children()]
    assert kinds == [nn.Flatten, nn.Linear, nn.Tanh, nn.Linear, nn.Tanh, nn.Linear]


# --- one's own -------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch):
    """A module of the user's, which is gone after the test."""
    module = types.ModuleType("own_networks")
    monkeypatch.setitem(sys.modules, "own_networks", module)
    return module


def test_a_function_of_ones_own_gets_shape_outputs_and_settings(own):
    calls = []

    def make(shape, outputs, *, width=3):
        calls.append((shape, outputs, width))
        return nn.Linear(math.prod(shape), outputs)

    own.make = make
    assert isinstance(models.build("own_networks:make", [4, 2], 5, width=7), nn.Linear)
    models.build("own_networks:make", (4,), 5)
    assert calls == [((4, 2), 5, 7), ((4,), 5, 3)]


def test_a_function_in_a_file_on_the_path_is_found(tmp_path, monkeypatch):
    text = "from torch import nn\n\n\ndef make(shape, outputs):\n    return nn.Linear(shape[0], outputs)\n"
    (tmp_path / "networks_on_the_path.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert models.build("networks_on_the_path:make", (4,), 2).in_features == 4
    monkeypatch.delitem(sys.modules, "networks_on_the_path")


def test_errors_of_ones_own_function_are_one_line_with_the_cause_behind_it(own):
    def make(shape, outputs):
        raise ValueError("two\nlines")

    own.make = make
    with pytest.raises(ConfigError, match=r"own_networks:make failed .*ValueError: two lines") as caught:
        models.build("own_networks:make", (4,), 2)
    assert isinstance(caught.value.__cause__, ValueError)
    assert "\n" not in str(caught.value)


def test_a_config_error_of_ones_own_function_stays_as_it_is(own):
    def make(shape, outputs):
        raise ConfigError("my own words.")

    own.make = make
    with pytest.raises(ConfigError, match=r"^my own words\.$"):
        models.build("own_networks:make", (4,), 2)


def test_a_module_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "networks_with_an_error.py").write_text("def (:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'networks_with_an_error' cannot be imported \(SyntaxError: "):
        models.build("networks_with_an_error:make", (4,), 2)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_networks:make", r"cannot be imported \(ModuleNotFoundError: .*PYTHONPATH"),
        ("own_networks:nothing", "own_networks has no function 'nothing'"),
        ("own_networks:number", "own_networks has no function 'number'"),
        ("own_networks:", "it must be module:function"),
        (":make", "it must be module:function"),
        ("own_networks:make:more", "it must be module:function"),
        ("own networks:make", "it must be module:function"),
        (".own_networks:make", "it must be module:function"),
        ("own_networks:none", "returned None, a NoneType"),
        ("own_networks:kind", r"returned .*Linear.*, a type"),
        ("own_networks:narrow", "failed .*TypeError: .*takes 1 positional argument"),
    ],
)
def test_what_is_no_function_that_makes_a_module_is_refused(own, name, words):
    own.number = 3
    own.none = lambda shape, outputs: None
    own.kind = lambda shape, outputs: nn.Linear
    own.narrow = lambda shape: nn.Linear(3, 2)
    with pytest.raises(ConfigError, match=words) as caught:
        models.build(name, (4,), 2)
    assert "\n" not in str(caught.value)


def test_a_setting_that_ones_own_function_does_not_have_is_refused(own):
    own.make = lambda shape, outputs: nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'width'"):
        models.build("own_networks:make", (4,), 2, width=3)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet", "", "MLP", None, 3, ["mlp"]])
def test_an_unknown_name_is_refused_with_the_choices(name):
    with pytest.raises(ConfigError, match=r"linear, mlp, cnn, abadi, belu, alexnet, wrn-16-4.*module:function"):
        models.build(name, MNIST, 10)


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("linear", {"hidden": (3,)}, "linear has no setting 'hidden'; it has none"),
        ("linear", {"activation": "relu"}, "linear has no setting 'activation'"),
        ("mlp", {"width": 3}, "mlp has no setting 'width'; it has hidden, activation"),
        ("mlp", {"depth": 3, "beta": 2.0}, "mlp has no setting 'beta' or 'depth'"),
        ("mlp", {"alpha": 3.0}, "mlp has no setting 'alpha'; .*'tanh'"),
        ("mlp", {"activation": "belu", "bound": 3.0}, "no setting 'bound'; .*alpha, beta"),
        ("mlp", {"activation": "relu", "inplace": True}, "no setting 'inplace'"),
        ("abadi", {"activation": "relu"}, "abadi has no setting 'activation'; it has hidden"),
        ("belu", {"hidden": (3,)}, "belu has no setting 'hidden'; it has alpha, beta"),
        ("cnn", {"hidden": (3,)}, "cnn has no setting 'hidden'; it has activation"),
        ("wrn-16-4", {"depth": 28}, "wrn-16-4 has no setting 'depth'"),
        ("mlp", {"activation": "swish"}, "activation is 'swish'; it must be one of relu, tanh, .*gelu"),
        ("mlp", {"activation": None}, "activation is None; it must be one of relu"),
        ("cnn", {"activation": ["relu"]}, "activation is .*; it must be one of relu"),
        ("mlp", {"activation": "belu", "alpha": -1.0}, "alpha is -1"),
        ("belu", {"beta": "much"}, "beta is 'much'"),
        ("mlp", {"hidden": ()}, "mlp's hidden is .*; .* or take the model linear"),
        ("mlp", {"hidden": "32"}, "mlp's hidden is '32'"),
        ("mlp", {"hidden": None}, "mlp's hidden is None"),
        ("mlp", {"hidden": [32, 0]}, "a size of mlp's hidden is 0"),
        ("mlp", {"hidden": [3.5]}, "a size of mlp's hidden is 3.5"),
        ("mlp", {"hidden": [True]}, "a size of mlp's hidden is True"),
        ("mlp", {"hidden": 10**9}, "a size of mlp's hidden is too large"),
        ("abadi", {"hidden": (1000,)}, r"abadi's hidden is \(1000,\)"),
        ("abadi", {"hidden": 0}, "abadi's hidden is 0"),
    ],
)
def test_unknown_and_impossible_settings_are_refused(name, settings, words):
    with pytest.raises(ConfigError, match=words) as caught:
        models.build(name, MNIST, 10, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [*SMALL, "own_networks:make"])
@pytest.mark.parametrize("shape", [(), 64, None, "28", (1, 0, 8), (1, -8, 8), (1, 8.0, 8), (True, 8, 8)])
def test_what_is_no_shape_is_refused(own, name, shape):
    own.make = lambda shape, outputs: nn.Linear(3, 2)
    with pytest.raises(ConfigError, match="shape"):
        models.build(name, shape, 10)


@pytest.mark.parametrize("name", [*SMALL, "own_networks:make"])
@pytest.mark.parametrize("outputs", [0, -1, 2.0, None, True])
def test_what_is_no_number_of_outputs_is_refused(own, name, outputs):
    own.make = lambda shape, outputs: nn.Linear(3, 2)
    with pytest.raises(ConfigError, match=r"outputs is .*; it must be a whole number >= 1"):
        models.build(name, (3, 16, 16), outputs)


@pytest.mark.parametrize("name", ["cnn", "alexnet", "wrn-16-4"])
@pytest.mark.parametrize("shape", [(64,), (28, 28), (1, 1, 28, 28)])
def test_networks_for_images_refuse_what_is_none(name, shape):
    with pytest.raises(ConfigError, match=r"takes images of shape \(channels, height, width\).*use mlp"):
        models.build(name, shape, 10)


@pytest.mark.parametrize("name", ["cnn", "wrn-16-4"])
@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (3, 1, 1)])
def test_networks_for_images_refuse_images_that_are_too_small(name, shape):
    with pytest.raises(ConfigError, match=f"{name} takes images of at least 4 x 4 pixels"):
        models.build(name, shape, 10)
