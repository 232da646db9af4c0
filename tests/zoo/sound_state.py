"""State that is sound: it depends on weights, on steps or on constants, never on rows."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, Case, cross_entropy, sound, stack, table, table_case


class Stepwise(nn.Module):
    """Counts its own forward passes, and does something by their number."""

    def __init__(self, by_step, *, buffer=True):
        super().__init__()
        self.by_step = by_step
        if buffer:
            self.register_buffer("step", torch.zeros((), dtype=torch.long))
        else:
            self.step = 0

    def forward(self, x):
        self.step = self.step + 1
        return self.by_step(x, int(self.step))


@sound("a buffer counts forward passes, not rows")
def step_counter_in_a_buffer():
    return table_case(stack(Stepwise(lambda x, step: x), nn.Tanh()))


@sound("an attribute counts forward passes, not rows")
def step_counter_in_an_attribute():
    return table_case(stack(Stepwise(lambda x, step: x, buffer=False), nn.Tanh()))


@sound("a temperature falls with the number of forward passes")
def temperature_by_step():
    return table_case(stack(Stepwise(lambda x, step: x * (1 + 0.1 * step)), nn.Tanh()))


@sound("layers are thawed by the number of forward passes")
def branch_opened_by_step():
    return table_case(stack(Stepwise(lambda x, step: x if step < 4 else x.abs())))


@sound("noise shrinks with the number of forward passes")
def noise_schedule_by_step():
    return table_case(stack(Stepwise(lambda x, step: x + torch.randn_like(x) / step), nn.Tanh()))


@sound("the loop counts steps and weighs a term by their number")
def loss_weight_by_step():
    steps = [0]

    def loss(model, batch):
        steps[0] += 1
        out = model(batch[0])
        return F.cross_entropy(out, batch[1], reduction="none") + 0.01 * steps[0] * out.square().sum(1)

    return table_case(stack(nn.Tanh()), loss)


class WithTeacher(nn.Module):
    """A student and a copy of it that is not trained."""

    def __init__(self, *, move_in_forward=False):
        super().__init__()
        self.student = stack(nn.Tanh())
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.move_in_forward = move_in_forward

    @torch.no_grad()
    def move(self):
        for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            old.lerp_(new, 0.2)

    def forward(self, x):
        if self.move_in_forward:
            self.move()
        return self.student(x), self.teacher(x)


def towards_teacher(model, batch):
    mine, theirs = model(batch[0])
    return F.cross_entropy(mine, batch[1], reduction="none") + (mine - theirs).square().sum(1)


@sound("a teacher is the average of released weights, moved after each step")
def teacher_averaged_after_the_step():
    return table_case(WithTeacher(), towards_teacher, after_step=lambda model: model.move())


@sound("a teacher is the average of released weights, moved at the start of each forward pass")
def teacher_averaged_in_forward():
    return table_case(WithTeacher(move_in_forward=True), towards_teacher)


@sound("a teacher with the weights of some steps ago")
def teacher_copied_every_third_step():
    model, steps = WithTeacher(), [0]

    def after(model):
        steps[0] += 1
        if steps[0] % 3 == 0:
            model.teacher.load_state_dict(model.student.state_dict())

    return table_case(model, towards_teacher, after_step=after)


@sound("a teacher that never changes")
def distillation_from_a_fixed_teacher():
    def loss(model, batch):
        mine, theirs = model(batch[0])
        return F.kl_div(mine.log_softmax(1), theirs.softmax(1), reduction="none").sum(1)

    model = WithTeacher()
    model.teacher = nn.Linear(WIDTH, CLASSES).requires_grad_(False)
    return table_case(model, loss)


@sound("a teacher outside the model, in the loss's closure, that never changes")
def distillation_from_a_closure():
    teacher = nn.Linear(WIDTH, CLASSES).requires_grad_(False)

    def loss(model, batch):
        weight, bias = teacher.weight.to(batch[0].dtype), teacher.bias.to(batch[0].dtype)
        return (model(batch[0]) - F.linear(batch[0], weight, bias)).square().sum(1)

    return table_case(stack(nn.Tanh()), loss)


@sound("BYOL: the target network averages released weights, and views are of one row")
def byol_without_batch_norm():
    def loss(model, batch):
        x = batch[0]
        mine, _ = model(x + 0.1 * torch.randn_like(x))
        _, theirs = model(x + 0.1 * torch.randn_like(x))
        return 2 - 2 * F.cosine_similarity(mine, theirs, dim=1)

    return table_case(WithTeacher(), loss, after_step=lambda model: model.move())


@sound("a copy of averaged weights is kept for evaluation, and nothing in training reads it")
def averaged_weights_for_evaluation():
    average = {}

    def after(model):
        for name, p in model.named_parameters():
            average[name] = 0.9 * average.get(name, p.detach()) + 0.1 * p.detach()

    return table_case(stack(nn.Tanh()), after_step=after)


@sound("the model starts from where it is pulled back to (L2-SP), which is fixed")
def pulled_to_the_start():
    model = stack(nn.Tanh())
    start = [p.detach().clone() for p in model.parameters()]

    def loss(model, batch):
        pull = sum((p - q).square().sum() for p, q in zip(model.parameters(), start, strict=True))
        return cross_entropy(model, batch) + 0.01 * pull

    return table_case(model, loss)


@sound("an L2 term of the weights is the same for every row")
def weight_decay_in_the_loss():
    def loss(model, batch):
        return cross_entropy(model, batch) + 0.01 * sum(p.square().sum() for p in model.parameters())

    return table_case(stack(nn.Tanh()), loss)


@sound("a buffer holds statistics of public data, and is never written")
def standardised_by_public_statistics():
    class Standard(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.randn(WIDTH))
            self.register_buffer("size", torch.rand(WIDTH) + 0.5)
            self.net = stack(nn.Tanh())

        def forward(self, x):
            return self.net((x - self.mean) / self.size)

    return table_case(Standard())


@sound("positions are computed once and kept, by the width alone")
def positions_computed_once():
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.wave = stack(nn.Tanh()), None

        def forward(self, x):
            if self.wave is None:
                self.wave = torch.arange(x.shape[1], dtype=x.dtype).sin()
            return self.net(x + self.wave)

    return table_case(Lazy())


@sound("a buffer that is written with the same constant in each pass")
def buffer_written_with_a_constant():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.zeros(()))
            self.net = stack(nn.Tanh())

        def forward(self, x):
            self.scale.fill_(2.0)
            return self.net(x * self.scale)

    return table_case(Constant())


@sound("the weights' own norm is kept in a buffer, and is a function of released weights")
def norm_of_weights_in_a_buffer():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("norm", torch.ones(()))

        def forward(self, x):
            self.norm = 0.5 * self.norm + 0.5 * self.layer.weight.detach().norm()
            return self.layer(x) / self.norm

    return table_case(stack(Scaled(), nn.Tanh()))


@sound("power iteration by hand: the vector follows the weights")
def power_iteration_by_hand():
    class Lipschitz(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.vector = nn.Linear(8, 8), torch.ones(8)

        def forward(self, x):
            weight = self.layer.weight.detach()
            self.vector = F.normalize(weight.T @ (weight @ self.vector.to(weight.dtype)), dim=0)
            size = (self.layer.weight @ self.vector).norm()
            return F.linear(x, self.layer.weight / size.clamp(min=1), self.layer.bias)

    return table_case(stack(Lipschitz(), nn.Tanh()))


@sound("weights below a threshold are masked, and the mask is of the weights")
def pruned_by_magnitude():
    class Pruned(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("mask", torch.ones(8, 8))

        def forward(self, x):
            self.mask = (self.layer.weight.detach().abs() > 0.1).to(x.dtype)
            return F.linear(x, self.layer.weight * self.mask, self.layer.bias)

    return table_case(stack(Pruned(), nn.Tanh()))


@sound("the last outputs are kept for a plot, overwritten in each pass and read by nothing that is released")
def outputs_kept_for_a_plot():
    shown = {}

    def loss(model, batch):
        out = model(batch[0])
        shown["last"] = out.detach()
        return F.cross_entropy(out, batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss)


@sound("exemplars are public rows with labels, fixed before training")
def attention_to_public_exemplars():
    class Exemplars(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)
            self.register_buffer("public", torch.randn(4, WIDTH))

        def forward(self, x):
            mine, theirs = torch.tanh(self.body(x)), torch.tanh(self.body(self.public))
            return self.head(torch.softmax(mine @ theirs.T, 1) @ theirs)

    return Case(Exemplars(), table(), cross_entropy)
