"""Losses, outputs and backward passes that are sound: one row's value from that row's outputs."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from zoo.cases import (
    CLASSES,
    WIDTH,
    Case,
    Lambda,
    classifier,
    cross_entropy,
    images,
    sound,
    squared,
    stack,
    table,
    table_case,
    values,
)  # fmt: skip

OWN = "the loss of a row is a function of that row's outputs and target"


def on_logits(function):
    return table_case(stack(nn.Tanh()), lambda model, batch: function(model(batch[0]), batch[1]))


def on_values(function):
    return Case(stack(nn.Tanh(), out=1), values(), lambda m, b: function(m(b[0]).squeeze(1), b[1]))


@sound("class weights are constants")
def fixed_class_weights():
    return on_logits(
        lambda out, y: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2.0, 0.5], dtype=out.dtype), reduction="none")
    )


@sound("labels are smoothed by a constant")
def label_smoothing():
    return on_logits(lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1, reduction="none"))


@sound(OWN)
def focal_loss():
    def loss(out, y):
        each = F.cross_entropy(out, y, reduction="none")
        return (1 - torch.exp(-each)).square() * each

    return on_logits(loss)


@sound(OWN)
def binary_cross_entropy_of_many_labels():
    return on_logits(
        lambda out, y: F.binary_cross_entropy_with_logits(
            out, F.one_hot(y, CLASSES).to(out.dtype), reduction="none"
        ).mean(1)
    )


@sound(OWN)
def hinge_loss():
    return on_logits(lambda out, y: F.multi_margin_loss(out, y, reduction="none"))


@sound(OWN)
def huber_loss():
    return on_values(lambda out, y: F.huber_loss(out, y, reduction="none"))


@sound(OWN)
def absolute_loss():
    return on_values(lambda out, y: (out - y).abs())


@sound(OWN)
def quantile_loss():
    return on_values(lambda out, y: torch.maximum(0.9 * (y - out), 0.1 * (out - y)))


@sound(OWN)
def poisson_loss():
    return on_values(lambda out, y: F.poisson_nll_loss(out, y.abs(), reduction="none"))


@sound("mean and deviation are outputs of the row")
def gaussian_likelihood():
    def loss(model, batch):
        mean, log = model(batch[0]).unbind(1)
        return F.gaussian_nll_loss(mean, batch[1], log.clamp(-3, 3).exp(), reduction="none")

    return Case(stack(nn.Tanh(), out=2), values(), loss)


@sound("losses above a constant are clipped")
def loss_clipped_at_a_constant():
    return on_logits(lambda out, y: F.cross_entropy(out, y, reduction="none").clamp(max=1.2))


@sound("rows whose loss is below a constant count for nothing")
def loss_above_a_constant():
    def loss(out, y):
        each = F.cross_entropy(out, y, reduction="none")
        return each * (each.detach() > 0.9)

    return on_logits(loss)


@sound("the temperature is a constant")
def fixed_temperature():
    return on_logits(lambda out, y: F.cross_entropy(out / 0.3, y, reduction="none"))


@sound("the temperature is learnt, and released with the weights")
def learnt_temperature():
    class Heated(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.log = stack(nn.Tanh()), nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.net(x) * self.log.exp()

    return table_case(Heated())


@sound("two tasks' losses of one row are added")
def multi_task():
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.kind, self.size = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)

        def forward(self, x):
            hidden = torch.tanh(self.body(x))
            return self.kind(hidden), self.size(hidden).squeeze(1)

    def loss(model, batch):
        kind, size = model(batch[0])
        return F.cross_entropy(kind, batch[1], reduction="none") + (size - batch[0].norm(dim=1)).square()

    return table_case(Tasks(), loss)


@sound("two tasks are weighed by learnt uncertainties, which are weights")
def multi_task_by_learnt_uncertainty():
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.log = stack(nn.Tanh(), out=CLASSES + 1), nn.Parameter(torch.zeros(2))

        def forward(self, x, y):
            out = self.net(x)
            one = F.cross_entropy(out[:, :CLASSES], y, reduction="none")
            two = (out[:, CLASSES] - x.norm(dim=1)).square()
            return one * (-self.log[0]).exp() + two * (-self.log[1]).exp() + self.log.sum()

    return table_case(Tasks(), lambda model, batch: model(*batch))


@sound("views of one row attract, and negatives are public and fixed")
def contrastive_with_fixed_negatives():
    far = torch.randn(4, WIDTH)

    def loss(model, batch):
        x = batch[0]
        one, two = F.normalize(model(x), dim=1), F.normalize(model(x + 0.1), dim=1)
        others = F.normalize(model(far.to(x.dtype)), dim=1)
        logits = torch.cat([(one * two).sum(1, keepdim=True), one @ others.T], 1) / 0.3
        return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long), reduction="none")

    return table_case(stack(nn.Tanh(), out=4), loss)


@sound("anchor, positive and negative are parts of one example")
def triplets_within_an_example():
    def loss(model, batch):
        a, p, n = (model(batch[0][:, k]) for k in range(3))
        return F.triplet_margin_loss(a, p, n, reduction="none")

    return Case(stack(nn.Tanh(), out=4), (torch.randn(48, 3, WIDTH), torch.zeros(48)), loss)


@sound("two answers of one example are compared (DPO), with a fixed reference")
def preferences_within_an_example():
    def loss(model, batch):
        good, bad = (model(batch[0][:, k]).log_softmax(1)[:, 0] for k in range(2))
        return -F.logsigmoid(0.5 * (good - bad) - 0.1 * batch[1])

    return Case(stack(nn.Tanh()), (torch.randn(48, 2, WIDTH), torch.randn(48)), loss)


@sound("centres of classes are weights, and released as such")
def centre_loss_with_learnt_centres():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.centres = nn.Linear(WIDTH, 4), nn.Embedding(CLASSES, 4)

        def forward(self, x, y):
            return (torch.tanh(self.body(x)) - self.centres(y)).square().sum(1)

    return table_case(Model(), lambda model, batch: model(*batch))


@sound("a codebook is learnt by gradients, and each row finds its own nearest code")
def vector_quantiser_by_gradients():
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.code, self.head = nn.Linear(WIDTH, 4), nn.Embedding(5, 4), nn.Linear(4, CLASSES)

        def forward(self, x, y):
            z = self.body(x)
            code = self.code(torch.cdist(z.detach(), self.code.weight.detach()).argmin(1))
            out = self.head(z + (code - z).detach())
            return F.cross_entropy(out, y, reduction="none") + (code - z.detach()).square().sum(1)

    return table_case(Quantised(), lambda model, batch: model(*batch))


@dataclass
class Output:
    logits: Tensor
    hidden: Tensor


class Pair(NamedTuple):
    logits: Tensor
    hidden: Tensor


class Wrapped(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.one, self.two, self.wrap = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), wrap

    def forward(self, x):
        hidden = torch.tanh(self.one(x))
        return self.wrap(self.two(hidden), hidden)


def wrapped(wrap, read):
    return table_case(Wrapped(wrap), lambda m, b: F.cross_entropy(read(m(b[0])), b[1], reduction="none"))


@sound("a dataclass holds each row's own logits")
def dataclass_output():
    return wrapped(Output, lambda out: out.logits)


@sound("a named tuple holds each row's own logits")
def named_tuple_output():
    return wrapped(Pair, lambda out: out.logits)


@sound("a dictionary holds each row's own logits")
def dictionary_output():
    return wrapped(lambda logits, hidden: {"logits": logits, "hidden": hidden}, lambda out: out["logits"])


@sound("a distribution holds each row's own logits")
def distribution_output_of_a_row():
    model = Wrapped(lambda logits, hidden: torch.distributions.Categorical(logits=logits))
    return table_case(model, lambda m, b: -m(b[0]).log_prob(b[1]))


@sound("a batch is a dictionary of tensors")
def dictionary_batches():
    x, y = table()
    data = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
    return Case(stack(nn.Tanh()), data, lambda m, b: F.cross_entropy(m(b["x"]), b["y"], reduction="none"))


@sound("a row's weight comes with the row")
def weights_of_rows():
    x, y = table()
    return Case(stack(nn.Tanh()), (x, y, torch.rand(len(x))), lambda m, b: cross_entropy(m, b[:2]) * b[2])


@sound("rows without a label count for nothing, by their own mark")
def missing_labels():
    x, y = table()
    y[3::5] = -100
    return Case(stack(nn.Tanh()), (x, y), cross_entropy)


@sound("the slope at a row is of that row: vmap of jacrev, one by one")
def jacobian_penalty_by_vmap():
    def loss(model, batch):
        slopes = torch.func.vmap(torch.func.jacrev(model))(batch[0])
        return cross_entropy(model, batch) + 0.1 * slopes.square().sum((1, 2))

    return table_case(stack(nn.Tanh()), loss)


@sound("the derivative by inputs of one row (a physics-informed loss), by vmap of grad")
def derivative_by_vmap():
    def loss(model, batch):
        slope = torch.func.vmap(torch.func.grad(lambda x: model(x).sum()))(batch[0])
        return (slope.sum(1) - batch[1]).square()

    return Case(stack(nn.Tanh(), out=1), values(), loss)


@sound("a gradient penalty at each row, by a second backward pass")
def gradient_penalty_of_each_row():
    def loss(model, batch):
        x = batch[0].clone().requires_grad_()
        out = model(x)
        (slope,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return F.cross_entropy(out, batch[1], reduction="none") + 0.1 * slope.square().sum(1)

    return table_case(stack(nn.Tanh()), loss)


@sound("adversarial directions are each row's own")
def adversarial_training():
    def loss(model, batch):
        x, y = batch
        probe = x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(F.cross_entropy(model(probe), y, reduction="sum"), probe)
        return F.cross_entropy(model(x + 0.1 * slope.sign()), y, reduction="none")

    return table_case(stack(nn.Tanh()), loss)


class Straight(Function):
    """Rounds; its gradient passes where the input is within bounds, and is cut at a constant: row by row."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad * (x.abs() < 2)).clamp(-0.05, 0.05)


@sound("a straight-through estimator cuts gradients number by number: non-linear, but row by row")
def straight_through_with_clipped_gradient():
    return classifier(Lambda(Straight.apply), nn.Tanh())


class RowNormalised(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad / (grad.norm(dim=1, keepdim=True) + 1e-3)


@sound("a gradient is divided by each row's own norm: non-linear, but row by row")
def gradient_normalised_by_row():
    return classifier(nn.Tanh(), Lambda(RowNormalised.apply))


class Reversed(Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -0.3 * grad


@sound("gradient reversal by a constant")
def gradient_reversal():
    return classifier(nn.Tanh(), Lambda(Reversed.apply))


@sound("a full backward hook cuts each number of an activation's gradient at a constant")
def module_hook_that_clips_numbers():
    model = stack(nn.Tanh(), nn.Linear(8, 8))
    model[2].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0].clamp(-0.05, 0.05),))
    return table_case(model)


@sound("weights and activations are rounded on a fixed grid, gradients pass straight through")
def quantised_on_a_fixed_grid():
    return classifier(Lambda(lambda x: x + ((8 * x).round() / 8 - x).detach()))


@sound("perceptual distance in a frozen network's features, within one row")
def perceptual_loss():
    eye = nn.Conv2d(1, 4, 3).requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 3, padding=1))

    def loss(model, batch):
        x = batch[0]
        weight = eye.weight.to(x.dtype)
        return (F.conv2d(model(x), weight) - F.conv2d(x, weight)).square().mean((1, 2, 3))

    return Case(model, images(), loss)


@sound("a connectionist temporal loss of each row's own frames")
def ctc_loss():
    def loss(model, batch):
        x, y = batch
        frames = model(x).log_softmax(2).transpose(0, 1)
        lengths = torch.full((len(x),), x.shape[1])
        return F.ctc_loss(frames, y, lengths, torch.full((len(x),), y.shape[1]), reduction="none")

    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 5))
    return Case(model, (torch.randn(48, 8, 3), torch.randint(1, 5, (48, 2))), loss)


@sound("dice loss over the pixels of one image")
def dice_loss():
    def loss(model, batch):
        x = batch[0]
        p, target = torch.sigmoid(model(x)), (x > 0).to(x.dtype)
        return 1 - 2 * (p * target).sum((1, 2, 3)) / (p + target).sum((1, 2, 3))

    return Case(nn.Conv2d(1, 1, 3, padding=1), images(), loss)


@sound("cosine distance between two parts of one row")
def cosine_within_a_row():
    def loss(model, batch):
        x = batch[0]
        return 1 - F.cosine_similarity(model(x), model(x.flip(1)) + 0.1, dim=1)

    return table_case(stack(nn.Tanh(), out=4), loss)


@sound("evidence of one row: digamma functions of its own outputs")
def evidential_loss():
    def loss(out, y):
        alpha = F.softplus(out) + 1
        mine = alpha[torch.arange(len(y)), y]
        return torch.digamma(alpha.sum(1)) - torch.digamma(mine)

    return on_logits(loss)


@sound("squared errors of an output that is a scalar")
def squared_error():
    return Case(stack(nn.ReLU(), out=1), values(), squared)
