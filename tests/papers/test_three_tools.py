from typing import get_args

import pytest
import torch
from torch import nn

from discreet.papers import experiment, paper
from discreet.papers.experiment import Place, Result, Results, Size
from discreet.papers.render import stated_rows
from discreet.papers.three_tools import alexnet, batch_sizes, clipping, gradient_norms, memorisation, plans
from discreet.papers.three_tools.verdicts import proven
from discreet.stages.bounds import AdaptiveClip

NAMES = ("figure-1", "figure-2", "figure-3", "figure-4", "alpha", "figure-5", "table-1")


def results(*rows):
    return Results(Result(case, seed, measured, 1.0) for case, seed, measured in rows)


SHORT = {"examples": 10_000, "epochs": 1}  # one epoch, where the paper has 60 of 50,000 examples


def tiny():
    """Ten tensors, as the small AlexNet has."""
    layers = [nn.Flatten(), nn.Linear(3 * 28 * 28, 4)]
    for _ in range(4):
        layers += [nn.Tanh(), nn.Linear(4, 10 if len(layers) == 8 else 4)]
    return nn.Sequential(*layers)


@pytest.fixture
def small(monkeypatch):
    """A small network on made-up images instead of CIFAR-10."""
    torch.manual_seed(0)
    data = (torch.rand(60, 3, 32, 32), torch.randint(10, (60,)))
    alexnet.images.cache_clear()
    monkeypatch.setattr(alexnet, "pairs", lambda name: (data, data))
    for module in (memorisation, gradient_norms, clipping, batch_sizes):
        monkeypatch.setattr(module, "alexnet", tiny)
    yield
    alexnet.images.cache_clear()


def test_the_experiments_are_figures_1_to_5_and_table_1():
    assert tuple(e.name for e in paper("003").experiments) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", get_args(Size))
def test_cases_are_different_and_plain(name, size):
    cases = [tuple(case.items()) for case in experiment("003", name).cases(size)]
    assert 0 < len(cases) == len(set(cases))
    assert all(isinstance(v, (str, int, float, bool, type(None))) for case in cases for _, v in case)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stated_names_cases_that_are_run_with_full(name):
    found = experiment("003", name)
    cases = [dict(case) for case in found.cases("full")]
    for stated in found.stated:
        for chosen in (stated.published, stated.sound):
            assert chosen is None or any(chosen.items() <= case.items() for case in cases)


def test_the_papers_noise_is_found_by_the_papers_accounting():
    noise = plans.noise_as_said(128 / 50_000, 23_438, 50_000**-1.1)
    assert noise == pytest.approx(0.7225, abs=0.002)


def test_what_is_said_to_be_20_is_proven_to_be_hundreds_and_the_sound_form_is_20():
    said = plans.constant(50_000, 128, 60, "paper").fit_to(tiny()).guarantee()
    assert said.epsilon > 400
    proven = plans.constant(50_000, 128, 60, "sound").fit_to(tiny()).guarantee()
    assert 19.5 < proven.epsilon <= 20


def test_adaptive_norms_start_on_noise_and_the_sound_form_is_20():
    case = {"examples": 2_000, "epochs": 1, "form": "sound", "doubled": "beta"}
    plan = plans.adaptive(tiny(), case)
    bound = plan.mechanism.bound
    assert isinstance(bound, AdaptiveClip)
    assert bound.reach == 4.0
    assert len(bound.norm) == 10
    assert 19 < plan.guarantee().epsilon <= 20
    assert plans.adaptive(tiny(), case | {"form": "paper"}).guarantee().epsilon > 20


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("figure-1", {"data": "noise", "form": "paper", "examples": 60, "epochs": 1, "plain": "adam", "rate": 0.01}),
        ("figure-1", {"data": "cifar10", "form": "none", "examples": 60, "epochs": 1, "plain": "sgd", "rate": 0.01}),
        ("figure-3", {"examples": 60, "epochs": 5, "rate": 0.01}),
        ("figure-4", {"clipping": "adaptive", "form": "paper", "doubled": "nothing", "examples": 60, "epochs": 3}),
        ("table-1", {"batch_size": 30, "scaled": True, "form": "sound", "examples": 60, "epochs": 1}),
    ],
)
def test_a_tiny_case_runs_to_its_charts(name, case, small, tmp_path, monkeypatch):
    if name == "figure-4":
        monkeypatch.setattr(clipping, "adaptive", lambda model, case: plans.constant(60, 30, 1, "paper"))
    if case.get("data") == "noise":
        monkeypatch.setattr(memorisation, "constant", lambda *_, **more: constant(60, 30, 1, "paper"))
    found = experiment("003", name)
    case = {"rate": 0.1, **case}
    measured = found.run(case, Place(tmp_path))
    assert 0 <= measured["accuracy"] <= 1
    if case.get("form") == "paper":
        assert measured["claimed"] == 20
        assert measured["epsilon"] > 20
    if case.get("data") == "cifar10":
        assert measured["gap"] == measured["gaps"][-1][1]
    everything = results((case, 0, measured))
    assert found.charts(everything)
    assert len(stated_rows(found, everything)) == len(found.stated)


constant = plans.constant


def test_what_is_proven_is_said_beside_what_is_claimed():
    rows = results(*(({"form": f}, 0, {"epsilon": e}) for f, e in (("paper", 421.3), ("sound", 19.98))))
    words = proven(rows)
    assert words == "Epsilon is said to be 20; proven is as published up to 421.3 and in the sound form 19.98."
    assert proven(results()) == ""


def test_images_are_the_middle_of_the_picture_each_scaled_by_itself(small):
    (x, y), (test_x, _) = alexnet.images(50)
    assert x.shape == (50, 3, 28, 28)
    assert len(y) == 50
    assert len(test_x) == 60
    torch.testing.assert_close(x.mean((1, 2, 3)), torch.zeros(50), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((1, 2, 3)), torch.ones(50))


def test_figure_2_runs_with_privacy_and_without(tmp_path):
    found = experiment("003", "figure-2")
    rows = []
    for form in ("paper", "none"):
        case = {"where": "distributed", "patterns": 1_000, "form": form, "rounds": 1}
        rows.append((case, 0, found.run(case, Place(tmp_path))))
    assert rows[0][2]["epsilon"] > 0
    assert rows[1][2]["epsilon"] is None
    assert found.charts(results(*rows))


def test_noise_an_example_falls_as_batches_grow():
    found = experiment("003", "figure-5")
    cases = [c for c in found.cases("quick") if c["epsilon"] == 4.0 and c["batch_size"] in (128, 8192)]
    rows = results(*((c, 0, found.run(c, Place(None))) for c in cases))
    assert all(3.9 < r["epsilon"] <= 4 or r.measured["epsilon"] <= 4 for r in rows)
    assert found.stated[0].judged(rows).word == "reproduces"
    worse = results(*((c, 0, {"per_example": 1.0}) for c in cases))
    assert found.stated[0].judged(worse).word == "refuted"


def test_the_faster_normalisation_is_the_same():
    x = torch.randn(2, 64, 7, 7, requires_grad=True)
    slow, fast = torch.nn.LocalResponseNorm(9, alpha=0.001), alexnet.ChannelNormalisation(9, 0.001, 1.0)
    torch.testing.assert_close(fast(x), slow(x))
    weights = torch.randn(2, 64, 7, 7)
    (one,), (other,) = (torch.autograd.grad((f(x) * weights).sum(), x) for f in (slow, fast))
    torch.testing.assert_close(one, other)


def test_a_part_of_a_plan_has_the_noise_of_the_whole():
    whole, part = (plans.constant(50_000, 128, epochs, "paper", planned=60) for epochs in (60, 6))
    assert part.mechanism == whole.mechanism
    assert part.steps == pytest.approx(whole.steps / 10, abs=1)
    assert plans.constant(50_000, 128, 60, "paper").mechanism == whole.mechanism
