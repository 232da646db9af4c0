"""A bound, a noise or a denoiser of one's own is a few lines in one's own file: the proof of the design."""

import inspect
import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.special import expit
from torch import nn
from torch.nn import functional as F

from discreet import (
    Clip,
    ConfigError,
    Encode,
    Gaussian,
    Kalman,
    Ledger,
    Mechanism,
    Plan,
    Poisson,
    PrivacyError,
    attach,
    calibrate,
    verify,
)
from discreet.stages.bounds.clip import one_block
from discreet.stages.noise.distribution import NoiseDistribution
from discreet.stages.sensitivity import Blocks, Box


@dataclass(frozen=True)
class SignOfEach:
    """Every coordinate becomes +-step: elements in, elements out."""

    step: float = 0.1
    needs: ClassVar[str] = "elements"

    def start(self, layout):
        return None

    def apply(self, rows, state):
        return rows.sign() * self.step

    def contract(self, layout, state):
        return Box(layout.names, self.step, sum(layout.sizes))


@dataclass(frozen=True)
class Normalise:
    """Every gradient gets the same length: norms in, weights out."""

    norm: float = 1.0
    needs: ClassVar[str] = "norms"

    def start(self, layout):
        return None

    def apply(self, norms, state):
        length = sum(norms.values()).sqrt()
        return dict.fromkeys(norms, torch.where(length > 0, self.norm / length, 0.0))

    def contract(self, layout, state):
        return one_block(layout, self.norm)


@dataclass(frozen=True)
class Bell(NoiseDistribution):
    """Logistic noise, written anew."""

    scale: float | None = None
    fisher: ClassVar[float] = 1 / 3
    far: ClassVar[float] = 700.0
    variance: ClassVar[float] = math.pi**2 / 3
    mean_size: ClassVar[float] = 2 * math.log(2)
    largest_score: ClassVar[float] = 1.0

    def log_density(self, x):
        return -np.abs(x) - 2 * np.log1p(np.exp(-np.abs(x)))

    def upper(self, x):
        return expit(-x)

    def score(self, x):
        return np.tanh(x / 2)

    def loss(self, x, shift):
        return self.log_density(x - shift) - self.log_density(x)

    def largest_loss(self, shift):
        return abs(shift)

    def draw(self, count, source):
        u = source.uniforms(count)
        return np.log(u) - np.log1p(-u)


@dataclass(frozen=True)
class Halved:
    """A denoiser that believes half of it."""

    def start(self, layout):
        return None

    def apply(self, released, noise, state):
        return {name: tensor / 2 for name, tensor in released.items()}, None


@dataclass(frozen=True)
class Longest:
    """Clips to the longest norm it was told of: asks, learns and remembers."""

    norm: float = 1.0
    needs: ClassVar[str] = "norms"

    def start(self, layout):
        return {"norm": self.norm}

    def apply(self, norms, state):
        return dict.fromkeys(norms, (state["norm"] / sum(norms.values()).sqrt()).clamp(max=1.0))

    def ask(self, norms, state):
        return {"length": sum(norms.values()).sqrt().clamp(max=state["norm"])}

    def learn(self, answers, state):
        return {"norm": max(0.1, 2 * float(answers["length"]))}

    def contract(self, layout, state):
        gradients = one_block(layout, state["norm"])
        question = replace(gradients.blocks[0], members=("length",), size=1, share=0.1)
        return replace(gradients, blocks=(*gradients.blocks, question))


OWN = [SignOfEach, Normalise, Longest, Bell, Halved]


def plan(bound, noise, denoise=None, steps=5):
    sampling = Poisson(examples=60, batch_size=12)
    return Plan(sampling=sampling, mechanism=Mechanism(bound, noise, denoise=denoise), steps=steps, delta=1e-5)


def train(made, ledger=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    private = attach(model, made, ledger, seed=1)
    rows = torch.randn(60, 5), torch.randint(3, (60,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    grads = []
    for x, y in private.batches(rows):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        optimizer.step()
    return private, grads


@pytest.mark.parametrize("stage", [SignOfEach, Normalise, Bell, Halved, Longest])
def test_it_is_a_few_lines(stage):
    lines = [line for line in inspect.getsource(stage).splitlines() if line.strip()]
    assert len(lines) < 25


@pytest.mark.parametrize("bound", [SignOfEach(), Normalise(), Longest()])
@pytest.mark.parametrize("noise", [Gaussian(1.0), Bell(2.0)])
@pytest.mark.parametrize("denoise", [None, Halved(), Kalman(gain=0.5)])
def test_it_plugs_into_plan_attach_guarantee_and_ledger(bound, noise, denoise, tmp_path):
    if isinstance(bound, Longest) and isinstance(noise, Bell):
        with pytest.raises(ConfigError, match="asks something"):
            plan(bound, noise, denoise)
        return
    made = calibrate(plan(bound, type(noise)(), denoise), epsilon=4.0)
    private, grads = train(made, tmp_path / "ledger.jsonl")
    assert private.released == 5
    assert 0 < private.guarantee().epsilon <= 4.0
    assert all(g.isfinite().all() for g in grads)
    private.detach()
    found = verify(tmp_path / "ledger.jsonl", stages=OWN).runs[0]
    assert found.follows_from_its_plan
    assert found.guarantee.epsilon == pytest.approx(private.guarantee().epsilon)
    saved = tmp_path / "plan.toml"
    made.save(saved)
    assert Plan.load(saved, OWN) == made


def test_a_box_of_ones_own_is_accounted_exactly_where_it_can_be():
    """The element-wise contract reaches the accountant: cheaper than what the norm alone would give."""
    private, _ = train(plan(SignOfEach(), Bell(2.0)))
    norm_only, _ = train(plan(Clip(1.0), Bell(2.0)))
    assert private.guarantee().epsilon <= norm_only.guarantee().epsilon


def test_a_bound_of_ones_own_that_does_not_bound_is_caught_by_the_probe():
    class Liar(SignOfEach):
        def apply(self, rows, state):
            return rows.sign() * self.step * 3

    with pytest.raises(PrivacyError, match="does not bound"):
        train(plan(Liar(), Gaussian(1.0)))

    class Lopsided(Encode):
        def apply(self, rows, state):
            rows = super().apply(rows, state)
            rows[:, 0] = rows.norm(dim=1)
            rows[:, 1:] = 0
            return rows

    with pytest.raises(PrivacyError, match="a coordinate of the sum"):
        train(plan(Lopsided(), Gaussian(1.0)))


def test_what_is_not_finite_in_ones_own_bound_contributes_nothing():
    class Divides(SignOfEach):
        def apply(self, rows, state):
            rows = super().apply(rows, state)
            rows[0] = math.nan
            return rows

    _, grads = train(plan(Divides(), Gaussian(1.0)))
    assert all(g.isfinite().all() for g in grads)


def test_a_denoiser_sees_the_release_and_nothing_else():
    """Its input is what would have been released without it; its output is what is assigned."""
    _, plain = train(plan(Clip(1.0), Gaussian(1.0)))
    _, halved = train(plan(Clip(1.0), Gaussian(1.0), Halved()))
    torch.testing.assert_close(halved[0], plain[0] / 2)
    assert plan(Clip(1.0), Gaussian(1.0), Halved()).guarantee() == plan(Clip(1.0), Gaussian(1.0)).guarantee()


def test_a_filter_over_steps_is_resumed_where_it_was():
    def begin():
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        return model, attach(model, plan(Clip(1.0), Gaussian(1.0), Kalman(gain=0.3), steps=6), seed=2)

    def run(model, private, steps):
        rows = torch.ones(60, 5), torch.zeros(60, dtype=torch.long)
        for x, y in private.batches(rows, steps=steps):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        return model.weight.grad.clone()

    model, private = begin()
    run(model, private, 4)
    state = private.state_dict()
    whole = run(model, private, 2)
    again, resumed = begin()
    resumed.load_state_dict(state)
    torch.testing.assert_close(run(again, resumed, 2), whole)
    fresh, started = begin()
    started.load_state_dict({**state, "denoise": started._aggregate._denoised})
    assert not torch.allclose(run(fresh, started, 2), whole)  # so that the comparison could fail
    with pytest.raises(PrivacyError, match="does not fit"):
        resumed.load_state_dict({**state, "denoise": {"nonsense": 1.0}})


def test_a_question_with_several_members_is_cut_as_one():
    class Two(Longest):
        def ask(self, norms, state):
            many = sum(norms.values()).sqrt() * 1e6 + 1
            return {"one": many, "other": many}

        def learn(self, answers, state):
            seen.append(math.hypot(float(answers["one"]), float(answers["other"])))
            return state

        def contract(self, layout, state):
            gradients = one_block(layout, state["norm"])
            question = replace(gradients.blocks[0], members=("one", "other"), norm=0.5, size=2, share=0.1)
            return replace(gradients, blocks=(*gradients.blocks, question))

    seen = []
    model = nn.Linear(5, 3)
    private = attach(model, replace(plan(Two(), Gaussian(0.0), steps=1), sampling=Poisson(rate=1.0, batch_size=1)))
    for x, y in private.batches((torch.randn(7, 5), torch.zeros(7, dtype=torch.long))):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert seen == [pytest.approx(7 * 0.5)]


def test_what_cannot_work_is_refused_before_a_step_is_counted():
    class Mute(Longest):
        learn = None

        def __getattribute__(self, name):
            if name == "learn":
                raise AttributeError(name)
            return super().__getattribute__(name)

    with pytest.raises(ConfigError, match="give it learn"):
        plan(Mute(), Gaussian(1.0))

    class Asks(SignOfEach):
        def ask(self, norms, state):
            return {}

        def learn(self, answers, state):
            return state

    with pytest.raises(ConfigError, match="needs 'norms'"):
        plan(Asks(), Gaussian(1.0))

    class Forgetful(Normalise):
        def contract(self, layout, state):
            return one_block(replace(layout, names=layout.names[1:], shapes=layout.shapes[1:]), self.norm)

    with pytest.raises(ConfigError, match=r"each parameter once; look at '0\.weight'"):
        train(plan(Forgetful(), Gaussian(1.0)))

    class Greedy(Longest):
        def contract(self, layout, state):
            made = super().contract(layout, state)
            return replace(made, blocks=(made.blocks[0], replace(made.blocks[1], share=1.0)))

    with pytest.raises(ConfigError, match="whole budget"):
        train(plan(Greedy(), Gaussian(1.0)))

    class Lazy(Bell):
        def sample(self, out, scale, source):
            return scale * self.draw(len(out), source)

    with pytest.raises(PrivacyError, match="did not fill"):
        train(plan(Clip(1.0), Lazy(1.0)))

    class Wrong(Halved):
        def apply(self, released, noise, state):
            return {"other": torch.zeros(1)}, None

    with pytest.raises(PrivacyError, match="other parameters"):
        train(plan(Clip(1.0), Gaussian(1.0), Wrong()))


def test_a_fixed_seed_is_remembered_by_ledger_and_checkpoint(tmp_path):
    def begin(seed, ledger):
        torch.manual_seed(0)
        model = nn.Linear(5, 3)
        return model, attach(model, plan(Clip(1.0), Gaussian(1.0), steps=4), ledger, seed=seed)

    rows = torch.randn(60, 5), torch.randint(3, (60,))
    model, private = begin(7, tmp_path / "ledger.jsonl")
    for x, y in private.batches(rows, steps=2):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    state = private.state_dict()
    assert not private.guarantee().sound
    private.detach()
    assert not verify(tmp_path / "ledger.jsonl").runs[0].guarantee.sound
    _, again = begin(None, tmp_path / "ledger.jsonl")
    assert not again.guarantee().sound
    again.detach()
    _, elsewhere = begin(None, None)  # the ledger is lost, the checkpoint is not
    assert elsewhere.guarantee().sound
    elsewhere.load_state_dict(state)
    assert not elsewhere.guarantee().sound


def test_steps_without_preflight_stay_unprobed(tmp_path):
    rows = torch.randn(60, 5), torch.randint(3, (60,))
    model = nn.Linear(5, 3)
    for preflight in (False, True):
        private = attach(model, plan(Clip(1.0), Gaussian(1.0), steps=4), tmp_path / "ledger.jsonl", preflight=preflight)
        for batch in private.batches(rows, steps=2):
            private.backward(lambda rows: F.cross_entropy(model(rows[0]), rows[1], reduction="none"), batch)
        private.detach()
    assert "some steps were made without such a test" in str(private.guarantee())


def test_a_seeded_run_in_a_data_sets_ledger_breaks_itself_and_the_total_and_no_other(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", dataset="d", epsilon=100.0, delta=1e-5)
    rows = torch.randn(60, 5), torch.randint(3, (60,))
    for seed in (3, None):
        model = nn.Linear(5, 3)
        private = attach(model, plan(Clip(1.0), Gaussian(2.0 if seed else 3.0), steps=1), ledger, seed=seed)
        for x, y in private.batches(rows):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.detach()
        assert private.guarantee().sound == (seed is None)
    found = verify(tmp_path / "ledger.jsonl")
    assert [run.guarantee.sound for run in found.runs] == [False, True]
    assert not found.total.sound
    assert not ledger.guarantee().sound


def test_noise_follows_a_contract_that_changes_in_place(monkeypatch):
    """A bound should not, but if it does, the noise is that of what it says now."""

    class Moody(Normalise):
        says: ClassVar = SimpleNamespace(members=(), norm=1.0, size=0, share=0.0)

        def contract(self, layout, state):
            self.says.members, self.says.size = layout.names, sum(layout.sizes)
            return Blocks((self.says,))

    model = nn.Linear(5, 3)
    private = attach(model, plan(Moody(), Gaussian(1.0)), seed=1)
    total, rows = private._aggregate, (torch.randn(60, 5), torch.randint(3, (60,)))
    scales, noised = [], total._sums.noised

    def recorded(drawing):
        scales.append(dict(drawing.scales))
        return noised(drawing)

    monkeypatch.setattr(total._sums, "noised", recorded)
    for (x, y), norm in zip(private.batches(rows), (1.0, 3.0, 3.0, 0.5, 1.0), strict=True):
        Moody.says.norm = norm
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
        assert scales[-1] == dict.fromkeys(total.layout.names, norm)
