"""What ran is what is accounted, for every sampler, noise and microbatch size, end to end through attach."""

import math
import multiprocessing
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from forgery import rewritten
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from discreet import (
    AirySquared,
    Allocation,
    AutomaticClip,
    Cauchy,
    Clip,
    ConfigError,
    FixedBatches,
    FixedSize,
    Gaussian,
    Laplace,
    Ledger,
    Logistic,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    Sech,
    Shuffled,
    StudentT,
    VarianceGamma,
    attach,
    verify,
)
from discreet.accounting import cost
from discreet.accounting.events import Event, Magnitudes
from discreet.stages.bounds.envelope import half_normal
from discreet.stages.sensitivity import Block, Box, Envelope, Layout


def linear(inputs=3, dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Linear(inputs, 1, bias=False, dtype=dtype)


def plan(sampling, steps, noise=None, bound=None, **settings):
    mechanism = Mechanism(bound or Clip(1.0), noise or Gaussian(5.0), **settings)
    return Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


def identified(count):
    """Examples whose first coordinate says who they are."""
    return TensorDataset(torch.arange(count, dtype=torch.float64)[:, None].repeat(1, 3) + 1)


def take_part(private, model, batches, stop=None):
    """Who took part in each release."""
    seen = []
    for (x,) in batches:
        private.backward(model(x)[:, 0])
        seen.append([int(v) for v in x[:, 0].tolist()])
        if stop is not None and len(seen) == stop:
            break
    return seen


@pytest.mark.parametrize(
    "sampling",
    [Poisson(examples=12, batch_size=4), FixedSize(examples=12, batch_size=4), Shuffled(examples=12, batch_size=4),
     FixedBatches(examples=12, batch_size=4), Poisson(examples=12, batch_size=1, cap=11), Allocation(12, batches=4)],
    ids=lambda s: type(s).__name__,
)  # fmt: skip
def test_every_sampler_trains_and_its_guarantee_is_the_plans(sampling):
    model, made = linear(), plan(sampling, 6)
    private = attach(model, made)
    seen = take_part(private, model, private.batches(identified(12)))
    assert len(seen) == 6
    assert private.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)
    assert private.guarantee().adjacency == sampling.contract().adjacency


def epochs_of(private, model, batches, stop=None):
    """Who took part in each release; an empty draw is a row that nobody is."""
    return [[v for v in batch if 1 <= v <= 12] for batch in take_part(private, model, batches, stop)]


def test_an_epoch_of_random_allocation_has_everybody_once_and_survives_breaks():
    model, made = linear(), plan(Allocation(examples=12, batches=5), 15)
    private = attach(model, made)
    seen = epochs_of(private, model, private.batches(identified(12)), stop=2)
    seen += epochs_of(private, model, private.batches(identified(12)))
    assert len(seen) == 15
    for first in (0, 5, 10):
        assert sorted(v for batch in seen[first : first + 5] for v in batch) == list(range(1, 13))
    assert sum(p.steps for p in private.guarantee().events) == 3


def test_after_a_crash_random_allocation_begins_a_new_epoch_and_charges_it(tmp_path):
    made = plan(Allocation(examples=12, batches=4), 12)
    made = replace(made, epsilon=made.guarantee().epsilon * 1.0001)
    model, ledger = linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    epochs_of(private, model, private.batches(identified(12)), stop=5)  # one step into the second epoch
    private.detach()
    private = attach(model, made, ledger)
    assert private.remaining == 4  # one whole epoch is left: the broken one is spent
    seen = epochs_of(private, model, private.batches(identified(12)))
    assert sorted(v for batch in seen for v in batch) == list(range(1, 13))
    assert private.remaining == 0
    assert sum(p.steps for p in private.guarantee().events) == 3
    assert private.guarantee().epsilon <= made.epsilon
    private.detach()
    (run,) = verify(ledger).runs
    assert (run.planned, run.released) == (12, 9)
    assert run.follows_from_its_plan
    assert run.guarantee.epsilon == pytest.approx(made.guarantee().epsilon)
    assert "epochs of 4" in str(run.guarantee)


def test_a_capped_run_of_an_earlier_version_is_verified_continued_and_charged_as_it_was(tmp_path):
    """Its lines say how likely the cap is met, and not what it leaves."""
    made = plan(Poisson(examples=12, batch_size=2, cap=11), 4)
    model, ledger = linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    take_part(private, model, private.batches(identified(12)), stop=2)
    private.detach()
    before = verify(ledger).runs[0].guarantee
    assert before.epsilon == pytest.approx(made.guarantee().epsilon)

    def as_it_was(line):
        for key in ("crowded", "crowded_rate"):
            line.get("phase", {}).pop(key, None)

    rewritten(ledger, as_it_was)
    (run,) = verify(ledger).runs
    assert run.follows_from_its_plan
    assert any(event.slack > 0 for event in run.guarantee.events)
    again = attach(model, made, ledger)
    assert again.remaining == 2
    take_part(again, model, again.batches(identified(12)))
    again.detach()
    assert verify(ledger).runs[0].released == 4
    rewritten(ledger, lambda line: line.get("phase", {}).update(crowded=1e-300, crowded_rate=1.0))
    with pytest.raises(PrivacyError, match="forged"):
        verify(ledger)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line["phase"].update(rate=1 / 8), "cost|plan|forged"),  # more batches, so cheaper
        (lambda line: line["phase"].update(multiplier=50.0), "cost|plan|forged"),
        (lambda line: line["phase"].update(scheme="poisson"), "cost|plan|forged"),
        (lambda line: line.update({"pass": 12}), "pass|plan|forged"),
        (lambda line: line.update(participations=1), "participations|plan|forged"),
    ],
)
def test_a_forged_ledger_of_epochs_is_refused(tmp_path, change, words):
    made, model, ledger = plan(Allocation(examples=12, batches=4), 12), linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    take_part(private, model, private.batches(identified(12)))
    private.detach()
    assert verify(ledger).runs[0].released == 12
    rewritten(ledger, lambda line: change(line) if line["kind"] == "run" else None)
    with pytest.raises(PrivacyError, match=words):
        verify(ledger)


def test_an_epoch_that_a_ledger_does_not_count_is_refused(tmp_path):
    made, model, ledger = plan(Allocation(examples=12, batches=4), 12), linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    take_part(private, model, private.batches(identified(12)))
    private.detach()
    rewritten(ledger, lambda line: line.update(participations=0) if line.get("step") == 4 else None)
    with pytest.raises(PrivacyError, match="fewer participations"):
        verify(ledger)


def test_counts_that_are_pure_and_training_have_one_total_in_one_ledger(tmp_path):
    book = Ledger(tmp_path / "patients.jsonl", dataset="patients", epsilon=20.0, delta=1e-5)
    book.query("a count by age, with Laplace noise", Event.of_pure(0.25))
    book.query("the most frequent diagnosis, by the exponential mechanism", Event.of_pure(0.5))
    model, made = linear(), plan(Allocation(examples=12, batches=4), 8)
    private = attach(model, made, book)
    take_part(private, model, private.batches(identified(12)))
    private.detach()
    found = verify(book.path)
    counts = [Event.of_pure(0.25), Event.of_pure(0.5)]
    assert found.total.epsilon == pytest.approx(cost([*counts, made.event()], 1e-5).epsilon)
    assert made.guarantee().epsilon < found.total.epsilon < made.guarantee().epsilon + 0.75
    assert "0.5-private by themselves" in found.total.proof


def test_the_sum_is_divided_by_a_constant_that_need_not_be_whole():
    """12 examples in 5 batches: 2.4; hardly any noise, gradients 1 long, so each release says how many there were."""
    model, made = linear(1), plan(Allocation(examples=12, batches=5), 5, noise=Gaussian(1e-9))
    private, data = attach(model, made), TensorDataset(torch.ones(12, 1, dtype=torch.float64))
    total = 0.0
    for (x,) in private.batches(data):
        private.backward(model(x)[:, 0])
        total += model.weight.grad.item() * 2.4
    assert total == pytest.approx(12, abs=1e-6)


def test_shuffled_passes_survive_breaks_and_count_once():
    model, made = linear(), plan(Shuffled(examples=12, batch_size=4), 9)
    private = attach(model, made)
    seen = take_part(private, model, private.batches(identified(12)), stop=2)
    seen += take_part(private, model, private.batches(identified(12)))
    counts = np.bincount(np.concatenate(seen), minlength=13)[1:]
    assert len(seen) == 9
    assert (counts == 3).all()
    assert sum(p.steps for p in private.guarantee().events) == 3


def test_a_resumed_shuffled_run_loses_the_broken_pass_and_stays_within_its_budget(tmp_path):
    made = plan(Shuffled(examples=12, batch_size=4), 9)
    made = replace(made, epsilon=made.guarantee().epsilon * 1.0001)
    model, ledger = linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    seen = take_part(private, model, private.batches(identified(12)), stop=4)  # one step into the second pass
    private.detach()
    private = attach(model, made, ledger)
    assert private.remaining == 3  # one whole pass is left: the broken one is spent
    seen += take_part(private, model, private.batches(identified(12)))
    assert np.bincount(np.concatenate(seen)).max() <= 3
    assert private.remaining == 0
    assert private.guarantee().epsilon <= made.epsilon


def test_a_shuffled_checkpoint_without_its_ledger_counts_passes_not_steps():
    made = plan(Shuffled(examples=12, batch_size=4), 9)
    model = linear()
    private = attach(model, made)
    take_part(private, model, private.batches(identified(12)), stop=5)
    state = private.state_dict()
    private.detach()
    again = attach(model, made)
    again.load_state_dict(state)
    assert (again.released, again.remaining) == (5, 3)
    assert again.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)


def test_a_torn_line_in_the_middle_of_a_pass_does_not_count_as_another_pass(tmp_path):
    made, model, ledger = plan(Shuffled(examples=12, batch_size=4), 3), linear(), tmp_path / "ledger.jsonl"
    private = attach(model, made, ledger)
    take_part(private, model, private.batches(identified(12)), stop=2)
    private.detach()
    ledger.write_bytes(ledger.read_bytes() + b'{"kind": "rel')
    again = attach(model, made, ledger)
    assert again.released == 3
    assert again.guarantee().epsilon == pytest.approx(made.guarantee().epsilon)


def test_skipping_a_batch_of_ones_own_loader_is_noticed():
    """Else whoever is in the batches that are kept would take part more often than is counted."""
    model = linear()
    private = attach(model, plan(Shuffled(examples=4, batch_size=2), 8))
    dataset = identified(4)
    loader = DataLoader(dataset, batch_sampler=private.batch_sampler(), collate_fn=private.collate(dataset))

    def skip_some():
        for (x,) in loader:
            if 1.0 in x:
                private.backward(model(x)[:, 0])

    with pytest.raises(PrivacyError, match="was not called for it"):
        skip_some()


def _train_in_a_fork(private, model, queue):
    try:
        take_part(private, model, private.batches(identified(12)))
        queue.put("trained")
    except PrivacyError as error:
        queue.put(str(error))


def test_a_forked_process_cannot_spend_the_same_budget():
    context = multiprocessing.get_context("fork")
    model, queue = linear(), context.Queue()
    private = attach(model, plan(Poisson(examples=12, batch_size=4), 6))
    child = context.Process(target=_train_in_a_fork, args=(private, model, queue))
    child.start()
    said = queue.get(timeout=60)
    child.join()
    assert "was forked" in said


@dataclass(frozen=True)
class Rigged(FixedSize):
    """A sampler of one's own that draws what it must not."""

    drawn: tuple = ()

    def draw(self, length, step, origin_step, streams):
        return list(self.drawn)


@pytest.mark.parametrize(
    ("drawn", "words"),
    [
        ((0, 0, 0), "twice"),
        ((5, 3, 5), "twice"),
        ((3, 99), "no list of indices"),
        ((99, 3), "no list of indices"),
        ((-1,), "no list"),
        ((-1, 3), "no list"),
        ((3, -1), "no list"),
        ((0.5,), "no list"),
        (((1, 2), (3, 4)), "no list"),
    ],
)
def test_a_draw_that_is_no_set_of_examples_is_refused(drawn, words):
    model = linear()
    private = attach(model, plan(Rigged(examples=12, batch_size=3, drawn=drawn), 2))
    with pytest.raises(PrivacyError, match=words):
        take_part(private, model, private.batches(identified(12)))


def test_a_sampler_of_ones_own_works_through_and_through(tmp_path):
    made = plan(Rigged(examples=12, batch_size=3, drawn=[1, 5]), 2)
    model = linear()
    private = attach(model, made)
    assert take_part(private, model, private.batches(identified(12))) == [[2, 6]] * 2
    made.save(tmp_path / "plan.toml")
    assert Plan.load(tmp_path / "plan.toml", stages=[Rigged]) == made


# --- microbatches ----------------------------------------------------------------------------------------------------


def released_sum(data, size, noise=0.0, at_most=None, seed=3, steps=1, bound=None):
    """The released sum (times the public divisor) of one step with these rows, and the slots' number."""
    model = linear()
    made = plan(Poisson(examples=len(data[0]), batch_size=8), steps, Gaussian(noise), bound, microbatch=size)
    private = attach(model, made, seed=seed)
    for x, y in private.batches(data, at_most=at_most):
        private.backward(model(x)[:, 0] * y)
    slots = max(1, round(8 / size))
    return model.weight.grad.flatten() * slots, slots


def rows(seed=0, count=16):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, generator=generator, dtype=torch.float64) * 3, torch.ones(count, dtype=torch.float64)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("neighbour", [0.0, -1.0, 1e9, math.nan, math.inf])
def test_one_example_moves_the_sum_by_at_most_twice_the_bound(size, neighbour):
    x, y = rows()
    base, _ = released_sum((x, y), size)
    worst = 0.0
    for i in range(len(x)):
        changed = x.clone()
        changed[i] = changed[i] * neighbour
        moved, _ = released_sum((changed, y), size)
        assert moved.isfinite().all()
        worst = max(worst, float((moved - base).norm()))
    assert worst <= 2 * (1 + 1e-9)


def test_what_is_bounded_is_the_mean_gradient_of_a_microbatch():
    """Against the slots' means by hand, from the same secret assignment."""
    from discreet.stages.noise.random import KeyTree

    x, y = rows()
    found, slots = released_sum((x, y), 2)
    sampling, root = Poisson(examples=16, batch_size=8), KeyTree(seed=3)
    indices = sampling.draw(16, 0, 0, lambda step: root.stream("sampling", step))
    assigned = root.stream("microbatches", 0).below(slots, len(indices))
    total = torch.zeros(3, dtype=torch.float64)
    for slot in range(slots):
        mean = x[indices[assigned == slot]].sum(0) / 2
        total += mean * min(1.0, 1.0 / max(float(mean.norm()), 1e-300))
    torch.testing.assert_close(found, total)


@pytest.mark.parametrize("at_most", [1, 3, 100])
def test_chunks_do_not_change_microbatches(at_most):
    expected, _ = released_sum(rows(), 4)
    found, _ = released_sum(rows(), 4, at_most=at_most)
    torch.testing.assert_close(found, expected)


def test_microbatches_carry_noise_for_twice_the_bound():
    """The multiplier is the effective one: the noise's deviation is multiplier * 2 * norm; 1,000 releases, 5 sigma."""
    made = plan(Poisson(examples=16, batch_size=8), 1_000, Gaussian(1.5), Clip(0.1), microbatch=4)
    assert made.guarantee().epsilon == pytest.approx(plan(made.sampling, 1_000, Gaussian(1.5)).guarantee().epsilon)
    model = linear()
    private = attach(model, made, seed=1)
    drawn = []
    for x, _ in private.batches(rows()):
        private.backward(model(x)[:, 0] * 0.0)
        drawn.append(model.weight.grad.flatten() * 2)
    values = torch.cat(drawn)
    assert float(values.std()) == pytest.approx(1.5 * 2 * 0.1, rel=5 / math.sqrt(2 * len(values)))


def test_microbatches_larger_than_a_batch_are_refused():
    with pytest.raises(ConfigError, match="microbatches of 9"):
        plan(Poisson(examples=16, batch_size=8), 1, microbatch=9)


# --- other noises, end to end ----------------------------------------------------------------------------------------

NOISES = [Laplace(0.7), StudentT(9, 0.7), Cauchy(0.7), Sech(0.7), Logistic(0.7), VarianceGamma(0.7)]


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_released_noise_has_the_stated_law_and_scale(noise, dtype):
    """Kolmogorov-Smirnov through attach, 12,000 values: alarm below 1e-6 of chance."""
    model = linear(3_000, dtype)
    private = attach(model, plan(Poisson(examples=4, batch_size=2), 4, noise, Clip(0.5)), seed=5)
    drawn = []
    for (x,) in private.batches(TensorDataset(torch.zeros(4, 3_000, dtype=dtype))):
        private.backward(model(x)[:, 0])
        drawn.append(model.weight.grad.flatten().double() * 2)
    values = torch.cat(drawn).numpy() / (0.7 * 0.5)
    assert stats.kstest(values, noise.cdf).pvalue > 1e-6


@pytest.mark.parametrize("allocation", ["joint", "each", "power"])
def test_blocks_with_other_noise_have_the_scales_accounting_assumed(allocation):
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 1)).double()
    made = plan(
        Poisson(examples=4, batch_size=2), 50, Laplace(2.0), PerLayerClip({"0": 0.3, "1": 3.0}), allocation=allocation
    )
    private = attach(model, made, seed=5)
    found = {"0": [], "1": []}
    for (x,) in private.batches(TensorDataset(torch.zeros(4, 40, dtype=torch.float64))):
        private.backward(model(x)[:, 0] * 0.0)
        for name, p in model.named_parameters():
            found[name[0]].append(p.grad.flatten() * 2)
    layout = Layout(*zip(*((n, tuple(p.shape)) for n, p in model.named_parameters()), strict=True))
    contract = made.mechanism.contract(layout, None)
    ratios = 0.0
    for block, scale, values in zip(contract.blocks, made.mechanism.scales(contract), found.values(), strict=True):
        measured = float(torch.cat(values).abs().mean())  # a Laplace's mean size is its scale
        assert measured == pytest.approx(scale, rel=0.15)
        ratios += (block.norm / scale) ** 2
    assert 1 / math.sqrt(ratios) == pytest.approx(2.0)


def test_other_noise_with_a_norm_bound_is_proven_and_without_a_proof_refused():
    for bound in (Clip(1.0), AutomaticClip(), PerLayerClip(1.0)):
        found = plan(Poisson(examples=1000, batch_size=10), 50, StudentT(9, 1.0), bound).guarantee()
        assert math.isfinite(found.epsilon)
        assert "StudentT df 9" in found.proof
    with pytest.raises(PrivacyError, match="score is unbounded"):
        plan(Poisson(examples=1000, batch_size=10), 50, AirySquared(1.0)).guarantee()
    with pytest.raises(PrivacyError, match="score is unbounded"):
        attach(linear(), plan(Poisson(examples=1000, batch_size=10), 50, AirySquared(1.0)))


@dataclass(frozen=True)
class Enveloped:
    """A bound of one's own: every gradient is scaled into the half-normal envelope, by its largest coordinate."""

    norm: float = 1.0
    needs: str = "norms"

    def start(self, layout):
        return None

    def apply(self, norms, state):
        raise AssertionError("only its contract is used here")

    def contract(self, layout, state):
        envelope = half_normal(sum(layout.sizes))
        return Envelope(layout.names, Magnitudes(tuple(self.norm * x for x in envelope.levels), envelope.counts))


def test_an_envelope_is_accounted_coordinate_by_coordinate():
    layout = Layout(("w",), ((2_000,),))
    for noise in (StudentT(9, 1.1), AirySquared(1.3)):
        made = plan(Poisson(examples=60_000, batch_size=256), 14_062, noise, Enveloped(0.25))
        event = made.event(layout)
        assert event.shifts.norm == pytest.approx(1 / noise.scale)
        equal = cost(
            [replace(made.event(layout), law=None, shifts=None, multiplier=noise.scale / math.sqrt(noise.fisher))], 1e-5
        )
        assert cost([event], 1e-5).epsilon == pytest.approx(equal.epsilon, rel=2e-3)
    with pytest.raises(ConfigError, match="depends on the model"):
        plan(Poisson(examples=60_000, batch_size=256), 5, AirySquared(1.3), Enveloped()).guarantee()


@dataclass(frozen=True)
class TwoBlocks(Enveloped):
    """Blocks with noise of their own, and coordinates of very different sizes."""

    def contract(self, layout, state):
        blocks = (Block(("a",), 10.0, 1), Block(("b",), 0.1, 10_000))

        @dataclass(frozen=True)
        class Own:
            blocks: tuple
            magnitudes: Magnitudes
            premises: tuple = ()

        return Own(blocks, Magnitudes((10.0, 0.001), (1, 10_000)))


def test_shifts_are_in_units_of_the_noise_that_is_really_added():
    layout = Layout(("a", "b"), ((1,), (10_000,)))
    each = Mechanism(TwoBlocks(), Laplace(2.0), "each").query(layout)
    assert each.shifts is None  # scales differ from block to block: only the norms are used
    joint = Mechanism(TwoBlocks(), Laplace(2.0)).query(layout)
    assert joint.shifts.levels[0] == pytest.approx(10 / (2 * math.hypot(10, 0.1)))


def test_a_box_costs_the_root_of_its_size():
    """The paper's tanh filter: c = 1 on 26,010 coordinates with standard deviation 1.1."""
    box = Box(("all",), 1.0, 26_010)
    assert box.blocks[0].norm == pytest.approx(161.28, abs=0.01)
    assert box.magnitudes.norm == pytest.approx(box.blocks[0].norm)
