"""What a forward pass writes, and how random numbers are seeded, is seen in every step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo.neighbours import Scripted

import discreet
from discreet.errors import PrivacyError
from discreet.release.preflight.step_start import StepStart

WIDTH, CLASSES = 5, 3


def plan(steps):
    sampling = discreet.Poisson(examples=48, batch_size=12)
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(1.0))
    return discreet.Plan(sampling=sampling, mechanism=mechanism, steps=steps, delta=1e-5)


def trained(model, look=None, loss=None, steps=5):
    """A run of some steps, each of which begins with `look(batch)`."""
    torch.manual_seed(0)
    data = torch.randn(48, WIDTH), torch.arange(48) % CLASSES
    private = discreet.attach(model, plan(steps), seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = loss or (lambda batch: F.cross_entropy(model(batch[0]), batch[1], reduction="none"))
    for batch in private.batches(data):
        if look is not None:
            look(batch)
        private.backward(loss, batch)
        optimizer.step()
    private.detach()
    return private


def isolation(*arguments, **named):
    """What the guarantee of such a run says of isolation."""
    conditions = trained(*arguments, **named).guarantee().conditions
    (condition,) = [c for c in conditions if "another example" in c.text]
    return condition


def network(forward):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.passes = nn.Linear(WIDTH, CLASSES), 0

        def forward(self, x):
            self.passes += 1
            return self.net(forward(self, x))

    return Model()


def seeded(seed):
    """A model that seeds torch's random numbers by `seed(model, x)` before its dropout."""

    def forward(model, x):
        torch.manual_seed(seed(model, x.detach()))
        return F.dropout(x, 0.5)

    return network(forward)


@pytest.mark.parametrize("seed", [lambda model, x: int(1000 * x.abs().sum()), lambda model, x: len(x)])
def test_a_seed_that_the_batch_decides_is_not_vouched_for(seed):
    found = isolation(seeded(seed))
    assert found.status == "assumed"
    assert "seeded with what depends on the rows" in found.text


@pytest.mark.parametrize("seed", [lambda model, x: 7, lambda model, x: model.passes])
def test_a_seed_that_nobodys_row_decides_is_sound(seed):
    assert isolation(seeded(seed)).status == "checked"


def test_a_loop_that_seeds_by_its_batch_is_not_vouched_for():
    model = network(lambda model, x: F.dropout(x, 0.5))
    found = isolation(model, look=lambda batch: torch.manual_seed(int(1000 * batch[0].abs().sum())))
    assert found.status == "assumed"
    assert "seeded anew between steps" in found.text


def test_a_seed_before_the_first_step_is_sound():
    torch.manual_seed(5)
    assert isolation(network(lambda model, x: F.dropout(x, 0.5))).status == "checked"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_what_is_written_past_autograd_is_seen(dtype):
    model = nn.Module()
    model.one, model.other = nn.Parameter(torch.ones(2, 3, dtype=dtype).T), nn.Parameter(torch.ones(4, dtype=dtype))
    start = StepStart(model)
    start.note({"model": model}, (), changing=())
    assert start.passed() == set()
    model.other.data[2] += 2**-7
    assert start.passed() == {"model.other"}


def test_an_error_leaves_the_model_as_it_was_before_the_pass():
    model = nn.Linear(2, 2)
    start = StepStart(model)
    before = model.weight.detach().clone()
    start.note({"model": model}, (), changing={"model.weight"})
    model.weight.data.fill_(5.0)
    with start.again():
        assert torch.equal(model.weight, before)
    assert bool((model.weight == 5).all())
    with pytest.raises(ValueError, match="mixes"), start.again():
        raise ValueError("mixes")
    assert torch.equal(model.weight, before)


def test_a_backward_pass_that_mixes_large_batches_alone_leaves_earlier_steps_open():
    """Gradients are cut at a norm over the batch that few rows do not reach; then rows come one by one."""

    class Cut(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient / (gradient.norm() / 2.3).clamp(min=1)

    model, scale = nn.Linear(WIDTH, CLASSES), [0.1] * 3

    def loss(batch):
        factor = scale[0] if scale else 1.0
        return factor * F.cross_entropy(Cut.apply(model(0.01 * batch[0])), batch[1], reduction="none")

    with pytest.warns(UserWarning, match="in a batch of its own"):
        private = trained(model, lambda batch: scale and scale.pop(), loss)
    assert any("told apart on the first steps" in why for why in private.evidence.undecided)


def of_own(seed, *, anew):
    """A model with random numbers of its own, which every pass seeds for the next one by `seed(model, x)`."""

    def forward(model, x):
        shape = (len(x), 1)
        drawn = torch.rand(shape, generator=model.own) if model.passes > 1 else torch.ones(shape)
        if anew:
            model.own = torch.Generator()
        model.own.manual_seed(seed(model, x.detach()))
        return x * drawn

    model = network(forward)
    model.own = torch.Generator()
    return model


@pytest.mark.parametrize("anew", [False, True])
def test_random_numbers_of_a_models_own_that_the_last_batch_seeds_are_refused(anew):
    with pytest.raises(PrivacyError, match="'own' carries something from one batch to the next"):
        trained(of_own(lambda model, x: int(1000 * x.abs().sum()), anew=anew))
    assert isolation(of_own(lambda model, x: model.passes, anew=anew)).status == "checked"


def test_a_parameter_is_known_by_the_path_that_leads_to_it():
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    model.kept = [model[0][0].weight]
    start = StepStart(model)
    start.note({"model": model}, (), changing=())
    model[0][0].weight.data.fill_(1.0)
    assert start.passed() == {"model.kept.0"}


def test_of_large_tensors_those_alone_are_copied_in_each_step_that_are_known_to_change():
    model = nn.Linear(2, 2)
    for name in ("large", "other"):
        model.register_buffer(name, torch.zeros(1 << 19))
    start = StepStart(model)
    start.note({"model": model}, (), changing={"model.large"})
    model.large += 1
    model.other += 1
    with start.again():
        assert not model.large.any()
        assert bool(model.other.all())
    assert bool(model.large.all())


def test_what_is_refused_after_its_forward_pass_is_vouched_for_no_more():
    """The mean of the fourth batch is written to the weights: who goes on after the error has it in them."""

    def forward(model, x):
        if model.net.weight.requires_grad and len(private.evidence.tested) == 3 and not model.done:
            with torch.no_grad():
                model.net.weight += x.mean()
        return x

    model = network(forward)
    model.done = False
    torch.manual_seed(0)
    data = torch.randn(48, WIDTH), torch.arange(48) % CLASSES
    private = discreet.attach(model, plan(12), seed=1)

    def loss(batch):
        return F.cross_entropy(model(batch[0]), batch[1], reduction="none")

    def train():
        for batch in private.batches(data):
            private.backward(loss, batch)

    with pytest.raises(PrivacyError, match="written in the forward pass"):
        train()
    model.done = True
    train()
    (condition,) = [c for c in private.guarantee().conditions if "another example" in c.text]
    assert condition.status == "assumed"
    assert "a forward pass was refused after it had been made" in condition.text


def test_a_draw_of_nobody_is_no_step_that_is_looked_at():
    """At first, and after an optimizer's step: the weights are others, and no forward pass wrote to them."""
    model = nn.Linear(WIDTH, CLASSES)
    sampling = Scripted(examples=48, batch_size=12, script=((), tuple(range(12)), (), tuple(range(12))))
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(1.0))
    private = discreet.attach(model, discreet.Plan(sampling=sampling, mechanism=mechanism, steps=4, delta=1e-5))
    optimizer, tested = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batch in private.batches((torch.randn(48, WIDTH), torch.arange(48) % CLASSES)):
        private.backward(lambda given: F.cross_entropy(model(given[0]), given[1], reduction="none"), batch)
        optimizer.step()
        tested.append(private.evidence.tested)
    assert tested == [(), (1,), (1,), (1, 3)]
    (condition,) = [c for c in private.guarantee().conditions if "another example" in c.text]
    assert condition.status == "checked"
