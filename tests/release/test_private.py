import copy
import io
import math
import os
import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info

import discreet
from discreet import (
    BoundedNetwork,
    BudgetExhausted,
    Clip,
    ConfigError,
    Gaussian,
    Mechanism,
    PerLayerClip,
    Plan,
    Poisson,
    PrivacyError,
    attach,
)
from discreet.cli import exits

N, D, K = 40, 6, 3


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, 5), nn.Tanh(), nn.Linear(5, K))


def data(n=N):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, D, generator=generator), torch.randint(K, (n,), generator=generator)


def plan(steps=4, batch_size=10, noise=0.0, examples=N, bound=None, allocation="joint"):
    return Plan(
        sampling=Poisson(examples=examples, batch_size=batch_size),
        mechanism=Mechanism(bound or Clip(0.5), Gaussian(noise), allocation),
        steps=steps,
        delta=1e-5,
    )


def losses(model, x, y):
    return F.cross_entropy(model(x), y, reduction="none")


def train(private, model, batches, lr=0.5):
    """An ordinary loop; the gradients of every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    found = []
    for x, y in batches:
        if private.backward(losses(model, x, y)):
            found.append([p.grad.clone() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    return found


def clipped_mean(model, x, y, norm, batch_size):
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        each = torch.autograd.grad(losses(model, x[i : i + 1], y[i : i + 1]).sum(), list(model.parameters()))
        factor = min(1.0, norm / torch.cat([g.flatten() for g in each]).norm().item())
        total = [t + factor * g for t, g in zip(total, each, strict=True)]
    return [t / batch_size for t in total]


def test_the_gradient_is_the_bounded_sum_over_the_public_batch_size():
    model, twin = network(), network()
    private = attach(model, plan(noise=0.0))
    for x, y in private.batches(data()):
        private.backward(losses(model, x, y))
        twin.load_state_dict(model.state_dict())
        for p, expected in zip(model.parameters(), clipped_mean(twin, x, y, 0.5, 10), strict=True):
            torch.testing.assert_close(p.grad, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("at_most", [1, 2, 3, 7, 100])
def test_the_result_does_not_depend_on_the_chunks(at_most):
    def run(size):
        model = network()
        private = attach(model, plan(noise=1.3), seed=5)
        return train(private, model, private.batches(data(), at_most=size))

    for one, other in zip(run(None), run(at_most), strict=True):
        for g, h in zip(one, other, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-4, atol=1e-6)


def test_all_planned_steps_are_drawn_and_then_the_loop_ends():
    model = network()
    private = attach(model, plan(steps=5))
    assert len(train(private, model, private.batches(data(), steps=2))) == 2
    assert (private.released, private.remaining) == (2, 3)
    assert len(train(private, model, private.batches(data()))) == 3
    assert len(train(private, model, private.batches(data()))) == 0
    assert private.remaining == 0


def test_while_a_batch_is_incomplete_there_is_no_gradient():
    model = network()
    private = attach(model, plan(batch_size=40, steps=2))
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    complete = []
    for x, y in private.batches(data(), at_most=15):
        complete.append(private.backward(losses(model, x, y)))
        if not complete[-1]:
            assert all(p.grad is None for p in model.parameters())
            optimizer.step()
            assert len(complete) > 3 or all(
                torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values(), strict=True)
            )
    assert complete == [False, False, True] * 2


def test_gradients_stay_until_the_next_batch_and_are_assigned_not_added():
    model = network()
    private = attach(model, plan(steps=3))
    kept = None
    for x, y in private.batches(data()):
        if kept is not None:
            assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True))
        twin = copy.deepcopy(model)
        private.backward(losses(model, x, y))
        kept = [p.grad.clone() for p in model.parameters()]
        for g, expected in zip(kept, clipped_mean(twin, x, y, 0.5, 10), strict=True):
            torch.testing.assert_close(g, expected, rtol=1e-5, atol=1e-7)
    private.detach()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), kept, strict=True))


@pytest.mark.parametrize("ending", ["break", "exception", "second call"])
def test_an_abandoned_batch_leaves_nothing_behind(ending):
    model, twin = network(), network()
    private = attach(model, plan(batch_size=40, steps=2), seed=3)
    first = private.batches(data(), at_most=10)
    try:
        for x, y in first:
            private.backward(losses(model, x, y))
            if ending == "exception":
                raise KeyError
            break
    except KeyError:
        pass
    assert private.released == 0
    other = attach(twin, plan(batch_size=40, steps=2), seed=3)
    for a, b in zip(
        train(private, model, private.batches(data())), train(other, twin, other.batches(data())), strict=True
    ):
        for g, h in zip(a, b, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-5, atol=1e-7)
    if ending == "second call":
        with pytest.raises(PrivacyError, match="replaced by a later call"):
            next(first)


def test_a_batch_without_backward_is_an_error_that_says_what_to_do():
    model = network()
    private = attach(model, plan())
    batches = private.batches(data())
    model(next(batches)[0])
    with pytest.raises(PrivacyError, match=r"private\.backward\(losses\) was not called"):
        next(batches)
    assert private.released == 0


def test_backward_twice_and_backward_without_a_batch_are_refused():
    model = network()
    private = attach(model, plan())
    x, y = data()
    with pytest.raises(PrivacyError, match="no open batch"):
        private.backward(losses(model, x, y))
    x, y = next(private.batches(data()))
    private.backward(losses(model, x, y))
    with pytest.raises(PrivacyError, match="no open batch"):
        private.backward(losses(model, x, y))


def test_evaluation_in_between_is_harmless():
    model, twin = network(), network()
    private, other = attach(model, plan(), seed=1), attach(twin, plan(), seed=1)
    for (x, y), (v, w) in zip(private.batches(data()), other.batches(data()), strict=True):
        model(x)  # a forward pass whose losses are thrown away
        with torch.no_grad():
            model.eval()(data()[0])
        model.train()
        private.backward(losses(model, x, y))
        other.backward(losses(twin, v, w))
        for p, q in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize(
    "reduce", [torch.mean, torch.sum, lambda t: t[:-1], lambda t: t[:, None], lambda t: t.tolist()]
)
def test_losses_of_the_wrong_shape_are_refused_and_the_batch_can_go_on(reduce):
    model = network()
    private = attach(model, plan())
    x, y = next(private.batches(data()))
    with pytest.raises(PrivacyError, match="reduction='none'"):
        private.backward(reduce(losses(model, x, y)))
    assert private.backward(losses(model, x, y))


@pytest.mark.parametrize(
    "wrong", [torch.mean, lambda t: t[:-1], lambda t: torch.cat([t, t]), lambda t: t[:, None], lambda t: t.long()]
)
@pytest.mark.parametrize("bound", [None, BoundedNetwork(2.0, 1.5)], ids=["clip", "bounded network"])
def test_no_error_about_losses_tells_how_many_rows_were_drawn(wrong, bound):
    model = network()
    private = attach(model, plan(batch_size=30, bound=bound))
    x, y = next(private.batches(data()))
    assert len(x) > 9  # 30 of 40 are drawn on average
    with pytest.raises(PrivacyError, match="one loss for each row of the batch") as refused:
        private.backward(wrong(losses(model, x, y)))
    told = set(re.findall(r"\d+", str(refused.value).replace("torch.int64", "")))
    assert not told & {str(n) for n in (len(x), len(x) - 1, 2 * len(x))}


def test_a_bounded_network_does_not_tell_how_many_rows_it_was_given():
    model = network()
    private = attach(model, plan(batch_size=30, bound=BoundedNetwork(2.0, 1.5)))
    x, y = next(private.batches(data()))
    found = losses(model, x[1:], y[1:])
    with pytest.raises(PrivacyError, match="more or fewer rows than the batch has") as refused:
        private.backward(torch.cat([found, found[:1]]))
    assert not re.findall(r"\d", str(refused.value))


@pytest.mark.parametrize("drawn", [(0, 1, 4040), (-17, 3), 0.25, ((7, 8), (9, 10))])
def test_no_error_about_a_draw_shows_it(drawn, monkeypatch):
    monkeypatch.setattr(Poisson, "draw", lambda *_: drawn)
    with pytest.raises(PrivacyError, match="no list of indices") as refused:
        next(attach(network(), plan(batch_size=30)).batches(data()))
    assert not re.findall(r"\d", str(refused.value))


def test_losses_of_another_batch_are_refused():
    model = network()
    private = attach(model, plan(batch_size=40))
    batches = private.batches(data())
    x, y = next(batches)
    old = losses(model, x, y)
    private.backward(losses(model, x, y))
    next(batches)
    with pytest.raises(PrivacyError, match="before this batch was drawn"):
        private.backward(old)


def test_a_plain_backward_is_refused_and_leaves_no_gradient():
    model = network()
    private = attach(model, plan())
    x, y = data()
    with pytest.raises(PrivacyError, match=r"private\.backward"):
        losses(model, x, y).mean().backward()
    assert all(p.grad is None for p in model.parameters())
    private.detach()
    losses(model, x, y).mean().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_detached_model_is_as_it_was():
    model = network()
    hooks = [dict(m._forward_hooks) for m in model.modules()]
    private = attach(model, plan())
    assert hooks == [dict(m._forward_hooks) for m in model.modules()]
    private.detach()
    private.detach()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not any(hasattr(p, name) for p in model.parameters() for name in ("grad_sample", "private"))
    with pytest.raises(PrivacyError, match="detached"):
        private.batches(data())
    attach(model, plan()).detach()


def test_a_second_plan_on_the_same_parameters_is_refused():
    model = network()
    attach(model, plan())
    with pytest.raises(PrivacyError, match="attached already"):
        attach(nn.Sequential(model), plan())


def test_copies_and_files_of_the_model_are_unchanged():
    model, twin = network(), network()
    private = attach(model, plan())
    assert model.state_dict().keys() == twin.state_dict().keys()
    files = []
    for m in (model, twin):
        file = io.BytesIO()
        torch.save(m, file)
        files.append(file)
    assert len(files[0].getvalue()) == len(files[1].getvalue())
    files[0].seek(0)
    for other in (copy.deepcopy(model), torch.load(files[0], weights_only=False)):
        losses(other, *data()).mean().backward()  # a copy has no plan and trains as it likes
    assert private.released == 0


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01),
        lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
        lambda p: torch.optim.RMSprop(p, lr=0.01),
        lambda p: torch.optim.Adagrad(p, lr=0.01),
    ],
)
@pytest.mark.parametrize("zero", ["before", "after", "never", "zeros"])
def test_any_optimizer_any_scheduler_any_zero_grad(optimizer, zero):
    def run(zeroing):
        model = network()
        private = attach(model, plan(noise=0.5), seed=2)
        chosen = optimizer(model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 4)
        for x, y in private.batches(data()):
            if zeroing == "before":
                chosen.zero_grad()
            private.backward(losses(model, x, y))
            chosen.step()
            schedule.step()
            if zeroing in ("after", "zeros"):
                chosen.zero_grad(set_to_none=zeroing == "after")
        return list(model.parameters())

    for p, q in zip(run(zero), run("after"), strict=True):
        torch.testing.assert_close(p, q)


def test_unused_parameters_get_pure_noise():
    model = network()
    model.unused = nn.Parameter(torch.zeros(4000))
    private = attach(model, plan(noise=2.0, steps=1), seed=1)
    x, y = next(private.batches(data()))
    private.backward(losses(model, x, y))
    scaled = model.unused.grad * 10 / (2.0 * 0.5)
    assert stats.kstest(scaled.numpy(), "norm").pvalue > 1e-6  # false-alarm rate 1e-6


def test_an_empty_draw_yields_a_padding_row_and_is_released_and_counted():
    model = network()
    private = attach(model, plan(batch_size=1, steps=200, noise=0.0))
    sizes = []
    for x, y in private.batches(data()):
        private.backward(losses(model, x, y) * math.nan if not x.any() else losses(model, x, y))
        if not x.any():
            sizes.append(len(x))
            assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in model.parameters())
    assert set(sizes) == {1}  # (1 - 1/40)^40 = 0.36 of 200 draws are empty
    assert private.released == 200


class Records(Dataset):
    """A map-style data set of dictionaries."""

    def __init__(self, n=N):
        self.x, self.y = data(n)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"x": self.x[i], "y": int(self.y[i]), "name": f"record {i}"}


@pytest.mark.parametrize("workers", [0, 2])
def test_data_sets_with_workers_give_what_tensors_give(workers):
    def run(make):
        model = network()
        private = attach(model, plan(batch_size=2, steps=12, noise=0.3), seed=8)
        for batch in make(private):
            x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
            private.backward(losses(model, x, y))
        return [p.grad for p in model.parameters()], private.released

    for make in (
        lambda private: private.batches(Records(), num_workers=workers),
        lambda private: private.batches(TensorDataset(*data())),
        lambda private: DataLoader(
            Records(),
            batch_sampler=private.batch_sampler(ahead=2 * workers),
            collate_fn=private.collate(Records()),
            num_workers=workers,
        ),
    ):
        (found, released), (expected, _) = run(make), run(lambda private: private.batches(data()))
        assert released == 12
        for g, h in zip(found, expected, strict=True):
            torch.testing.assert_close(g, h)


def test_a_collate_function_of_your_own():
    model = network()
    private = attach(model, plan(batch_size=1, steps=30))

    def collate(rows):
        return torch.stack([r["x"] for r in rows]), torch.tensor([r["y"] for r in rows])

    assert len(train(private, model, private.batches(Records(), collate_fn=collate))) == 30


def test_a_loader_of_your_own_must_pad_empty_draws():
    private = attach(network(), plan())
    loader = DataLoader(Records(), batch_sampler=private.batch_sampler())
    with pytest.raises(ConfigError, match=r"collate_fn=private\.collate"):
        next(iter(loader))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (DataLoader(Records(), batch_size=4), "draws its own batches"),
        (Stream(), "map-style Dataset"),
        (data(N + 1), "the data has 41 examples, the plan says 40"),
        ((torch.zeros(40), torch.zeros(39)), "different lengths"),
        ((), "tuple of tensors"),
        (([1, 2], [3, 4]), "tuple of tensors"),
        ([], "no examples"),
        (3, "map-style Dataset"),
    ],
)
def test_data_that_cannot_be_drawn_from_is_refused_with_the_remedy(bad, message):
    with pytest.raises(ConfigError, match=message):
        attach(network(), plan()).batches(bad)


def test_a_secret_number_of_examples():
    model = network()
    sampling = Poisson(rate=0.25, batch_size=10)
    private = attach(model, Plan(sampling=sampling, mechanism=Mechanism(Clip(1.0), Gaussian(1.0)), steps=3, delta=1e-5))
    train(private, model, private.batches(data(37)))
    assert private.guarantee().adjacency == "add-remove"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("where", ["input", "loss", "all"])
@pytest.mark.parametrize("bound", [Clip(0.5), PerLayerClip(0.5), discreet.AutomaticClip()])
def test_an_example_that_is_not_finite_contributes_exactly_zero(bad, where, bound, recwarn):
    def run(spoil):
        model = network()
        private = attach(model, plan(batch_size=40, steps=1, bound=bound))
        x, y = next(private.batches(data()))
        good = torch.arange(40) != 7
        if where == "all":
            good &= False
        if spoil and where != "loss":
            x[~good] = bad
        found = losses(model, x, y)
        if where == "loss":
            found = found * torch.where(good, 1.0, bad) if spoil else found
        if not spoil:  # the same sums without the example: its loss is constant
            found = torch.where(good, found, torch.zeros(()))
        private.backward(found)
        return [p.grad for p in model.parameters()]

    for spoiled, expected in zip(run(True), run(False), strict=True):
        torch.testing.assert_close(spoiled, expected, rtol=1e-5, atol=1e-8)
        assert where != "all" or not spoiled.any()
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(dtype):
    model = network().to(dtype)
    private = attach(model, plan(batch_size=40, steps=1))
    x, y = next(private.batches((data()[0].to(dtype), data()[1])))
    private.backward(losses(model, x, y))
    twin = network().to(dtype).to(torch.float64)
    expected = clipped_mean(twin, x.double(), y, 0.5, 40)
    for p, e in zip(model.parameters(), expected, strict=True):
        assert p.grad.dtype == dtype
        tolerance = 1e-10 if dtype == torch.float64 else 0.05
        assert (p.grad.double() - e).norm() <= tolerance * e.norm()


def test_a_model_under_autocast():
    model = network()
    private = attach(model, plan(batch_size=40, steps=1))
    x, y = next(private.batches(data()))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = losses(model, x, y)
    private.backward(found)
    for p, e in zip(model.parameters(), clipped_mean(network(), x, y, 0.5, 40), strict=True):
        assert p.grad.dtype == torch.float32
        assert (p.grad - e).norm() <= 0.05 * e.norm()


@pytest.mark.parametrize(
    ("bound", "allocation", "scales"),
    [
        (Clip(0.5), "joint", {"0.weight": 0.5, "2.bias": 0.5}),
        (PerLayerClip({"0": 0.3, "2": 0.4}), "joint", {"0.weight": 0.5, "2.bias": 0.5}),
        (PerLayerClip({"0": 0.3, "2": 0.4}), "each", {"0.weight": 0.3 * 2**0.5, "2.bias": 0.4 * 2**0.5}),
        (
            PerLayerClip({"0": 0.3, "2": 0.4}),
            "power",
            {
                "0.weight": math.sqrt(0.3 / 35**0.5 * (0.3 * 35**0.5 + 0.4 * 18**0.5)),
                "2.bias": math.sqrt(0.4 / 18**0.5 * (0.3 * 35**0.5 + 0.4 * 18**0.5)),
            },
        ),
    ],
)
def test_the_released_noise_has_the_stated_law(bound, allocation, scales):
    """End to end, 600 steps on zero gradients, Kolmogorov-Smirnov; false-alarm rate 1e-6 a block."""
    model = network()
    private = attach(model, plan(steps=600, noise=3.0, bound=bound, allocation=allocation), seed=4)
    drawn = {name: [] for name in scales}
    for x, y in private.batches(data()):
        private.backward(losses(model, x, y) * 0)
        for name in scales:
            drawn[name].append(model.get_parameter(name).grad.flatten() * 10)
    for name, scale in scales.items():
        values = torch.cat(drawn[name]).double().numpy() / (3.0 * scale)
        assert stats.kstest(values, "norm").pvalue > 1e-6
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 5 / math.sqrt(len(values))


def test_an_absolute_standard_deviation():
    model = network()
    mechanism = Mechanism(PerLayerClip(0.5), Gaussian(std=1.5))
    private = attach(model, Plan(sampling=Poisson(examples=N, batch_size=10), mechanism=mechanism, steps=2, delta=1e-5))
    assert private.guarantee().epsilon == pytest.approx(plan(steps=2, noise=1.5 / (0.5 * 4**0.5)).guarantee().epsilon)


def test_a_seed_repeats_the_run_and_breaks_the_guarantee():
    def run():
        model = network()
        private = attach(model, plan(noise=1.0), seed=11)
        train(private, model, private.batches(data()))
        return model, private

    (one, private), (two, _) = run(), run()
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), two.parameters(), strict=True))
    guarantee = private.guarantee()
    assert not guarantee.sound
    assert "NOT PRIVATE" in str(guarantee)
    assert "seed" in str(guarantee)
    assert attach(network(), plan(noise=1.0)).guarantee().sound


def test_without_a_seed_no_two_runs_are_alike():
    def run():
        model = network()
        torch.manual_seed(0)
        private = attach(model, plan(noise=1.0))
        return train(private, model, private.batches(data()))[0][0]

    assert not torch.equal(run(), run())


def test_the_guarantee_before_and_at_the_end():
    model = network()
    private = attach(model, plan(steps=50, noise=1.5))
    horizon = plan(steps=50, noise=1.5).guarantee().epsilon
    start = private.guarantee()
    assert (start.epsilon, start.so_far, start.released) == (horizon, 0.0, 0)
    train(private, model, private.batches(data(), steps=20))
    middle = private.guarantee()
    assert middle.epsilon == horizon
    assert middle.so_far == plan(steps=20, noise=1.5).guarantee().epsilon
    assert "20 were released" in str(middle)
    train(private, model, private.batches(data()))
    end = private.guarantee()
    assert (end.epsilon, end.so_far, end.released) == (horizon, None, 50)
    assert {c.status for c in end.conditions} == {"proven", "checked", "assumed"}


def test_a_plan_beyond_its_limit_is_refused():
    beyond = replace(plan(steps=50, noise=1.0), epsilon=1.0)
    with pytest.raises(BudgetExhausted, match="more than its limit 1"):
        attach(network(), beyond)


def test_nothing_is_released_past_the_plan():
    model = network()
    private = attach(model, plan(steps=1))
    x, y = next(private.batches(data()))
    private.load_state_dict(private.state_dict() | {"released": 1, "participations": 1})
    with pytest.raises(PrivacyError):
        private.backward(losses(model, x, y))
    assert private.released == 1


def test_a_state_continues_and_never_goes_back():
    model = network()
    private = attach(model, plan(steps=6, noise=1.0))
    train(private, model, private.batches(data(), steps=4))
    state = private.state_dict()
    private.detach()
    resumed = attach(model, plan(steps=6, noise=1.0))
    resumed.load_state_dict(state)
    assert (resumed.released, resumed.remaining) == (4, 2)
    train(resumed, model, resumed.batches(data(), steps=1))
    resumed.load_state_dict(state)  # an older checkpoint: the step since then stays spent
    assert resumed.released == 5
    with pytest.raises(PrivacyError, match="another plan"):
        resumed.load_state_dict(state | {"plan": plan(steps=7).to_dict()})


@pytest.mark.parametrize(("rows", "status"), [("all", "checked"), ("all some", "checked"), ("none some", "assumed")])
def test_a_state_tells_of_ranks_that_trained_together_and_of_their_rows(rows, status):
    model = network()
    private = attach(model, plan(noise=1.0))
    together = {"ranks": 2, "rows": rows, "noise_shares": True}
    private.load_state_dict(private.state_dict() | {"released": 3, "participations": 3, "together": together})
    assert private.state_dict()["together"] == together  # and so on, from one checkpoint to the next
    found = {c.text: c.status for c in private.guarantee().conditions}
    (same,) = [text for text in found if "all ranks had the same examples" in text]
    (coin,) = [text for text in found if "by its own secret coin" in text]
    assert found[same] == found[coin] == status
    assert any("2 processes trained together" in text for text in found)
    for wrong in ({"step": 0}, 2):
        with pytest.raises(PrivacyError, match="'together'"):
            private.check_state_dict(private.state_dict() | {"together": wrong})


def test_parameters_that_change_after_attach_are_refused():
    model = network()
    private = attach(model, plan())
    x, y = next(private.batches(data()))
    model[0].bias.requires_grad_(False)
    with pytest.raises(PrivacyError, match=r"'0\.bias' was frozen"):
        private.backward(losses(model, x, y))
    model[0].bias.requires_grad_(True)
    model[2] = nn.Linear(5, K)
    with pytest.raises(PrivacyError, match=r"'2\.(weight|bias)' was unfrozen, added or replaced"):
        private.backward(losses(model, x, y))


def test_a_gradient_hook_after_attach_is_refused_before_it_sees_a_gradient():
    model, seen = network(), []
    private = attach(model, plan())
    x, y = next(private.batches(data()))
    hook = model[0].weight.register_hook(seen.append)
    with pytest.raises(PrivacyError, match="has a gradient hook"):
        private.backward(losses(model, x, y))
    hook.remove()
    assert private.backward(losses(model, x, y))
    assert not seen


def compiled_in_place():
    model = network()
    model.compile(backend="eager")
    return model


def hooked():
    model = network()
    model[0].weight.register_hook(lambda g: 2 * g)
    return model


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: torch.compile(network(), backend="eager"), PrivacyError, "is compiled"),
        (compiled_in_place, PrivacyError, "is compiled"),
        (lambda: nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4)), PrivacyError, r"'1' \(BatchNorm1d\).*GroupNorm"),
        (lambda: nn.Embedding(4, 3, max_norm=1.0), PrivacyError, "max_norm=None"),
        (lambda: nn.Embedding(4, 3, scale_grad_by_freq=True), PrivacyError, "scale_grad_by_freq"),
        (lambda: nn.LazyLinear(3), PrivacyError, "not initialised"),
        (
            lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
            PrivacyError,
            "track_running_stats=False",
        ),
        (hooked, PrivacyError, "gradient hook"),
        (lambda: nn.DataParallel(network()), PrivacyError, "attach the module inside"),
        (lambda: network().requires_grad_(False), ConfigError, "no trainable parameters"),
        (lambda: "model", ConfigError, "not a torch.nn.Module"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Lazy modules:UserWarning")
def test_models_that_cannot_be_made_private_are_refused_by_name(build, error, message):
    with pytest.raises(error, match=message):
        attach(build(), plan())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_model_compiled_after_attach_is_refused():
    model = network()
    private = attach(model, plan())
    compiled = torch.compile(model, backend="aot_eager")
    x, y = next(private.batches(data()))
    with pytest.raises(PrivacyError, match="compiled"):
        private.backward(losses(compiled, x, y))
    torch._dynamo.reset()


def test_a_plan_must_be_a_plan_and_be_solved():
    with pytest.raises(ConfigError, match="not a Plan"):
        attach(network(), "plan")
    unsolved = Plan(
        sampling=Poisson(examples=N, batch_size=4), mechanism=Mechanism(Clip(1.0), Gaussian()), steps=3, delta=1e-5
    )
    with pytest.raises(ConfigError, match="calibrate"):
        attach(network(), unsolved)


def test_a_bound_of_your_own_plugs_in():
    """Nothing registers it, nothing in the library knows it: a class with four members is a bound."""

    class Half:
        needs = "norms"

        def start(self, layout):
            return None

        def apply(self, norms, state):
            total = sum(norms.values())
            return dict.fromkeys(norms, 0.5 / total.sqrt().clamp(min=1.0))

        def contract(self, layout, state):
            return Clip(0.5).contract(layout, state)

    model = network()
    mechanism = Mechanism(Half(), Gaussian(2.0))
    own = Plan(sampling=Poisson(examples=N, batch_size=10), mechanism=mechanism, steps=3, delta=1e-5)
    assert own.guarantee().epsilon == plan(steps=3, noise=2.0).guarantee().epsilon
    private = attach(model, own)
    assert len(train(private, model, private.batches(data()))) == 3


def test_an_error_in_the_middle_of_a_batch_gives_the_whole_batch_up(monkeypatch):
    model, twin = network(), network()
    private, other = attach(model, plan(batch_size=40), seed=6), attach(twin, plan(batch_size=40), seed=6)
    batches = private.batches(data(), at_most=20)
    x, y = next(batches)
    private.backward(losses(model, x, y))
    x, y = next(batches)
    with monkeypatch.context() as patch:
        patch.setattr("discreet.gradients.forms.outer.OuterProduct.add_weighted", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            private.backward(losses(model, x, y))
    with pytest.raises(PrivacyError, match="no open batch"):
        private.backward(losses(model, x, y))
    for a, b in zip(
        train(private, model, private.batches(data())), train(other, twin, other.batches(data())), strict=True
    ):
        assert all(torch.allclose(g, h, atol=1e-6) for g, h in zip(a, b, strict=True))


def test_a_loader_that_reads_ahead_cannot_be_given_the_same_losses_twice():
    model = network()
    private = attach(model, plan(batch_size=40))
    loader = DataLoader(
        Records(), batch_sampler=private.batch_sampler(ahead=2), collate_fn=private.collate(Records()), num_workers=1
    )
    batch = next(iter(loader))
    found = losses(model, batch["x"], batch["y"])
    private.backward(losses(model, batch["x"], batch["y"]))
    with pytest.raises(PrivacyError, match="before this batch was drawn"):
        private.backward(found)


def test_tensors_with_a_collate_function_and_lists_of_examples():
    model = network()
    private = attach(model, plan(batch_size=3, steps=4))

    def collate(rows):
        return torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows])

    assert len(train(private, model, private.batches(data(), collate_fn=collate, steps=2))) == 2
    examples = list(zip(*data(), strict=True))
    assert len(train(private, model, private.batches(examples))) == 2


def test_batch_norm_put_in_training_mode_later_is_refused_before_it_sees_a_batch():
    model = nn.Sequential(nn.Linear(D, 4), nn.BatchNorm1d(4), nn.Linear(4, K)).eval()
    private = attach(model, plan())
    batches = private.batches(data())
    model.train()
    with pytest.raises(PrivacyError, match=r"'1' \(BatchNorm1d\)"):
        next(batches)


def test_no_secret_of_a_run_is_pickled_or_copied(tmp_path):
    key = b"0123456789abcdef, a secret"
    ledger = discreet.Ledger(tmp_path / "ledger.jsonl", key=key)
    model = network()
    private = attach(model, plan(noise=1.0, steps=2), ledger)
    train(private, model, private.batches(data()))
    private.detach()
    for secret in (private, private._aggregate.root):
        for take in (pickle.dumps, copy.deepcopy, copy.copy):
            with pytest.raises(PrivacyError, match="secret key"):
                take(secret)
    fitted = discreet.fit(network(), data(), plan(noise=1.0), ledger=discreet.Ledger(tmp_path / "fit.jsonl", key=key))
    for kept in (pickle.dumps(fitted), pickle.dumps(model), pickle.dumps(private.guarantee()), pickle.dumps(ledger)):
        assert key not in kept
        assert private._aggregate.root._key not in kept
    assert pickle.loads(pickle.dumps(fitted)).guarantee == fitted.guarantee


def test_a_handle_is_not_copied():
    private = attach(network(), plan())
    for attempt in (copy.deepcopy, lambda p: torch.save(p, io.BytesIO())):
        with pytest.raises(PrivacyError, match="secret key"):
            attempt(private)


def test_parameters_that_change_between_the_chunks_of_a_batch_are_noticed():
    model = network()
    private = attach(model, plan(batch_size=40))
    batches = private.batches(data(), at_most=10)
    x, y = next(batches)
    assert not private.backward(losses(model, x, y))
    with torch.no_grad():
        model[0].weight.add_(1.0)
    x, y = next(batches)
    with pytest.raises(PrivacyError, match="changed between two chunks"):
        private.backward(losses(model, x, y))
    assert private.released == 0


class TestFixedFeatures:
    def released(self, change=None, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3)).double()
        x, y = torch.randn(20, 3, 4, dtype=torch.float64) * 3, torch.randint(3, (20,))
        plan = discreet.methods.dp_sgd(examples=20, batch_size=8, steps=6, noise=0.1, delta=1e-5, norm=0.5)
        private = discreet.attach(model, plan, seed=3)
        found = []
        for inputs, labels in private.batches((x, y), **options):
            if change is not None:
                change(inputs)
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            private.backward(losses)
            found += [p.grad.clone() for p in model.parameters()]
        return found

    def test_release_what_others_release(self):
        for one, other in zip(self.released(fixed=True), self.released(), strict=True):
            assert torch.equal(one, other)

    def test_a_batch_that_was_changed_after_all_is_measured_again(self):
        def change(inputs):
            inputs.mul_(100.0)

        for one, other in zip(self.released(change, fixed=True), self.released(change), strict=True):
            assert torch.equal(one, other)

    def test_known_norms_are_used_and_wrong_ones_are_caught_by_preflight(self, monkeypatch):
        from discreet.release import draws

        monkeypatch.setattr(draws, "squared_norms", lambda rows: torch.full((len(rows),), 1e-9, dtype=rows.dtype))
        with pytest.raises(discreet.PrivacyError, match="the bound does not bound"):
            self.released(fixed=True)

    def test_all_rows_are_not_copied(self):
        model = nn.Linear(4, 2)
        x, y = torch.randn(6, 4), torch.randint(2, (6,))
        plan = discreet.methods.dp_sgd(examples=6, batch_size=6, steps=1, noise=1.0, delta=1e-5)
        inputs, _ = next(discreet.attach(model, plan).batches((x, y), fixed=True))
        assert inputs.data_ptr() == x.data_ptr()

    def test_need_tensors(self):
        model = nn.Linear(4, 2)
        x, y = torch.randn(6, 4), torch.randint(2, (6,))
        plan = discreet.methods.dp_sgd(examples=6, batch_size=6, steps=1, noise=1.0, delta=1e-5)
        private = discreet.attach(model, plan)
        with pytest.raises(discreet.ConfigError, match="fixed=True is for data in tensors"):
            private.batches((x, y), fixed=True, collate_fn=torch.utils.data.default_collate)

    def setting(self, steps=4):
        model = nn.Linear(4, 2)
        x, y = torch.randn(12, 4), torch.randint(2, (12,))
        plan = discreet.methods.dp_sgd(examples=12, batch_size=12, steps=steps, noise=1.0, delta=1e-5)
        return model, x, y, discreet.attach(model, plan)

    @pytest.mark.parametrize("which", ["data", "batch"])
    def test_that_are_written_to_between_batches_are_refused(self, which):
        model, x, y, private = self.setting()
        batches = private.batches((x, y), fixed=True)
        inputs, labels = next(batches)
        private.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
        (x if which == "data" else inputs).mul_(10.0)
        with pytest.raises(discreet.PrivacyError, match="have been written to"):
            next(batches)

    def test_are_forgotten_with_the_loop(self):
        _, x, y, private = self.setting()
        for _ in private.batches((x, y), fixed=True):
            assert private._engine.known_norms is not None
            break
        assert private._engine.known_norms is None


@pytest.mark.parametrize("memory", [0.0, 1.3, math.inf])
def test_backward_inside_autocast_takes_norms_and_sums_in_full(memory):
    """One example, 16 times in a batch with noise off: the sum is 16 times its clipped gradient, and no longer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4))
    x = torch.randn(1, 24, 8).expand(16, -1, -1).contiguous()
    plan = discreet.Plan(
        mechanism=discreet.Mechanism(discreet.bounds.Clip(1.0), discreet.noise.Gaussian(0.0)),
        sampling=discreet.stages.sampling.Poisson(16, 16), steps=3, delta=1e-5,
    )  # fmt: skip
    private = discreet.attach(model, plan, memory=memory, preflight=False)
    for rows in private.batches(x):
        with torch.autocast("cpu", torch.bfloat16):
            private.backward((100 * model(rows).float()).square().flatten(1).sum(1))
        length = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
        assert length == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize("batch_size", [1, 10])
def test_losses_of_another_model_are_refused(batch_size):
    model = network()
    private = attach(copy.deepcopy(model), plan(batch_size=batch_size, examples=batch_size))
    with pytest.raises(PrivacyError, match="from another model"):
        train(private, model, private.batches(data(batch_size)))
    assert private.released == 0


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, K)

    def forward(self, x):
        return self.head(self.layer(x.unflatten(1, (2, 3)))[0][:, -1])


def test_torchs_own_lstm_in_bfloat16_and_under_autocast():
    """Its biases' gradients are summed in full, as all others are."""
    try:
        nn.LSTM(3, 4, batch_first=True).bfloat16()(torch.zeros(2, 2, 3, dtype=torch.bfloat16))
    except RuntimeError as error:
        pytest.skip(reason=f"torch's own LSTM does not run in bfloat16 on this processor ({error})")
    found = []
    for dtype, autocast in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
        torch.manual_seed(0)
        model = Recurrent().to(dtype)
        private = attach(model, plan(steps=2, batch_size=N))
        x, y = data()
        for rows, labels in private.batches((x.to(dtype), y)):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                found_losses = losses(model, rows, labels)
            private.backward(found_losses.float())
        found.append(torch.cat([p.grad.float().flatten() for p in model.parameters()]))
    for short in found[1:]:
        assert float((short - found[0]).norm()) < 0.05 * float(found[0].norm())


class Dying(Records):
    """Rows of which reading the last kills the process that reads it."""

    def __getitem__(self, i):
        if i == len(self) - 1 and get_worker_info() is not None:
            os._exit(1)
        return super().__getitem__(i)


def test_a_loaders_worker_that_dies_is_an_error_of_one_line_and_the_step_is_not_counted(capsys):
    model = network()
    private = attach(model, plan(batch_size=len(Records()), steps=12, noise=0.3), seed=8)

    def run():
        for batch in private.batches(Dying(), num_workers=1):
            private.backward(losses(model, batch["x"], batch["y"]))

    with pytest.raises(RuntimeError, match="DataLoader worker") as error:
        run()
    assert private.released == 0
    assert exits.ended_by(error.value) == 2
    assert capsys.readouterr().err.count("\n") == 1
