"""B3: what a model keeps of one batch for the next, or for its checkpoint."""

from collections import deque

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, Case, Lambda, cross_entropy, mixing, stack, table, table_case


class Keeping(nn.Module):
    """Calls `use(self, x)` for its output, then `keep(self, x)` without gradients; `before` gives it its state."""

    def __init__(self, before, use, keep):
        super().__init__()
        self.use, self.keep = use, keep
        before(self)

    def forward(self, x):
        out = self.use(self, x)
        with torch.no_grad():
            self.keep(self, x)
        return out


def keeping(before, use, keep):
    return table_case(stack(nn.Tanh(), Keeping(before, use, keep)))


def attribute(**values):
    def before(module):
        for name, value in values.items():
            setattr(module, name, value)

    return before


def buffer(**values):
    def before(module):
        for name, value in values.items():
            module.register_buffer(name, value)

    return before


@mixing("a slow average of features in a plain attribute is subtracted from the next batches")
def slow_average_in_an_attribute():
    def keep(m, x):
        m.average = 0.9 * m.average + 0.1 * x.mean(0)

    return keeping(attribute(average=torch.zeros(8)), lambda m, x: x - 3 * m.average.to(x.dtype), keep)


@mixing("a slow average as a Python number scales the next batches")
def slow_average_as_a_number():
    def keep(m, x):
        m.scale = 0.8 * m.scale + 0.2 * float(x.abs().max())

    return keeping(attribute(scale=1.0), lambda m, x: x / m.scale, keep)


@mixing("a running mean that begins to be used after three batches")
def running_mean_used_after_a_warm_up():
    def use(m, x):
        return x - m.mean if m.seen > 3 else x

    def keep(m, x):
        m.seen += 1
        m.mean = 0.5 * m.mean + 0.5 * x.mean(0)

    return keeping(attribute(seen=0, mean=0.0), use, keep)


@mixing("a bank of the last four batches' features is attended to")
def bank_of_four_batches():
    def use(m, x):
        if len(m.bank) < 4:
            return x
        old = torch.cat(m.bank)
        return x + torch.softmax(x @ old.T, 1) @ old

    def keep(m, x):
        m.bank = [*m.bank[-3:], x.clone()]

    return keeping(attribute(bank=[]), use, keep)


@mixing("a deque of batch means that is used when it holds five of them")
def deque_of_batch_means():
    def use(m, x):
        return x - 2 * torch.stack(list(m.means)).mean(0) if len(m.means) == 5 else x

    return keeping(attribute(means=deque(maxlen=5)), use, lambda m, x: m.means.append(x.mean(0)))


@mixing("a dictionary keeps each class's last features, for the next row of that class")
def dictionary_of_class_features():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.seen = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), {}

        def forward(self, x, y):
            hidden = torch.tanh(self.one(x))
            old = torch.stack([self.seen.get(int(c), h.detach()) for c, h in zip(y, hidden, strict=True)])
            self.seen.update({int(c): h.detach() for c, h in zip(y, hidden, strict=True)})
            return self.two(hidden - old)

    def loss(model, batch):
        return F.cross_entropy(model(*batch), batch[1], reduction="none")

    return table_case(Model(), loss)


@mixing("a numpy array keeps the largest value of each feature, and scales by it")
def numpy_array_of_ranges():
    def use(m, x):
        return x / torch.from_numpy(m.largest).to(x.dtype)

    def keep(m, x):
        m.largest = np.maximum(0.95 * m.largest, x.abs().amax(0).double().numpy())

    return keeping(attribute(largest=np.full(8, 0.1)), use, keep)


@mixing("the mean of the data is written to a buffer after a warm-up, where nothing uses it but a checkpoint")
def buffer_written_after_a_warm_up():
    def keep(m, x):
        m.calls += 1
        if m.calls > 4:
            m.mean.mul_(0.9).add_(0.1 * x.mean(0))

    def before(m):
        m.calls = 0
        m.register_buffer("mean", torch.zeros(8))

    return keeping(before, lambda m, x: x, keep)


@mixing("a buffer holds the last batch's features, for a plot in the checkpoint")
def buffer_of_the_last_batch():
    def keep(m, x):
        m.last = x[:2].clone()

    return keeping(buffer(last=torch.zeros(2, 8)), lambda m, x: x, keep)


@mixing("a closure keeps the last batch's mean, out of reach of the module's attributes")
def closure_over_a_batch_mean():
    def make():
        kept = [0.0]

        def centred(x):
            out = x - kept[0]
            kept[0] = x.detach().mean(0)
            return out

        return centred

    return table_case(stack(nn.Tanh(), Lambda(make())))


@mixing("a forward hook keeps a running mean and takes it off later outputs")
def forward_hook_with_a_running_mean():
    model = stack(nn.Tanh())
    kept = {"mean": 0.0}

    def hook(module, inputs, output):
        out = output - kept["mean"]
        kept["mean"] = 0.5 * kept["mean"] + 0.5 * output.detach().mean(0)
        return out

    model[1].register_forward_hook(hook)
    return table_case(model)


@mixing("the loss keeps a running mean of losses in its closure and weighs rows by it")
def loss_with_a_running_mean():
    kept = [1.0]

    def loss(model, batch):
        losses = cross_entropy(model, batch)
        out = losses / (0.1 + kept[0])
        kept[0] = 0.3 * kept[0] + 0.7 * float(losses.detach().max())
        return out

    return table_case(stack(nn.Tanh()), loss)


@mixing("a MoCo queue in a buffer: negatives are keys of earlier batches")
def moco_queue_in_a_buffer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = stack(nn.Tanh(), out=4)
            self.register_buffer("queue", F.normalize(torch.randn(16, 4), dim=1))

        def forward(self, x):
            query, key = F.normalize(self.encoder(x), dim=1), F.normalize(self.encoder(x + 0.1), dim=1).detach()
            logits = torch.cat([(query * key).sum(1, keepdim=True), query @ self.queue.T], 1) / 0.2
            self.queue = torch.cat([key, self.queue])[:16]
            return F.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long), reduction="none")

    return table_case(Model(), lambda model, batch: model(batch[0]))


@mixing("a MoCo queue in the loop, outside the model")
def moco_queue_in_the_loop():
    queue = deque(maxlen=24)

    def loss(model, batch):
        query = F.normalize(model(batch[0]), dim=1)
        key = F.normalize(model(batch[0] + 0.1), dim=1).detach()
        logits = (query * key).sum(1, keepdim=True)
        if queue:
            logits = torch.cat([logits, query @ torch.stack(list(queue)).T], 1)
        else:
            logits = torch.cat([logits, torch.zeros_like(logits)], 1)
        queue.extend(key)
        return F.cross_entropy(logits / 0.2, torch.zeros(len(query), dtype=torch.long), reduction="none")

    return table_case(stack(nn.Tanh(), out=4), loss)


@mixing("centres of the classes are buffers that follow the batch's features (centre loss)")
def centre_loss_with_buffers():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)
            self.register_buffer("centres", torch.zeros(CLASSES, 4))

        def forward(self, x, y):
            hidden = torch.tanh(self.body(x))
            losses = F.cross_entropy(self.head(hidden), y, reduction="none")
            losses = losses + (hidden - self.centres[y]).square().sum(1)
            with torch.no_grad():
                for c in y.unique():
                    self.centres[c] += 0.5 * (hidden[y == c].mean(0) - self.centres[c])
            return losses

    return table_case(Model(), lambda model, batch: model(*batch))


@mixing("a VQ-VAE's codebook is an exponential average of the features it was nearest to")
def vq_codebook_by_moving_average():
    def use(m, x):
        m.nearest = torch.cdist(x.detach(), m.code).argmin(1)
        return x + (m.code[m.nearest] - x).detach()

    def keep(m, x):
        for k in m.nearest.unique():
            m.code[k] += 0.3 * (x[m.nearest == k].mean(0) - m.code[k])

    return keeping(buffer(code=torch.randn(4, 8)), use, keep)


@mixing("an observer keeps the smallest and largest activation, and fake quantisation uses them")
def running_range_observer():
    def use(m, x):
        width = (m.high - m.low) / 15 + 1e-3
        return x + (((x - m.low) / width).round().clamp(0, 15) * width + m.low - x).detach()

    def keep(m, x):
        m.low, m.high = torch.minimum(m.low, x.min()), torch.maximum(m.high, x.max())

    return keeping(buffer(low=torch.tensor(-0.1), high=torch.tensor(0.1)), use, keep)


@mixing("ActNorm: bias and scale are set from the first batch")
def actnorm_initialised_from_data():
    def use(m, x):
        if not m.origin_step:
            m.bias, m.scale, m.origin_step = x.detach().mean(0), x.detach().std(0) + 0.1, True
        return (x - m.bias) / m.scale

    return keeping(attribute(origin_step=False), use, lambda m, x: None)


@mixing("weight normalisation's gains are set from the first batch (Salimans and Kingma)")
def weight_norm_initialised_from_data():
    class Initialised(nn.Module):
        def __init__(self):
            super().__init__()
            self.direction = nn.Parameter(torch.randn(8, 8))
            self.register_buffer("gain", torch.ones(8))
            self.origin_step = False

        def forward(self, x):
            out = x @ F.normalize(self.direction, dim=1).T
            if not self.origin_step:
                self.gain, self.origin_step = 1 / (out.detach().std(0) + 0.1), True
            return out * self.gain

    return table_case(stack(nn.Tanh(), Initialised()))


@mixing("a buffer counts the rows seen, which tells whether one took part")
def counter_of_rows_seen():
    return keeping(buffer(rows=torch.zeros((), dtype=torch.long)), lambda m, x: x, lambda m, x: m.rows.add_(len(x)))


@mixing("a buffer counts how often each word was seen")
def counter_of_words_seen():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)
            self.register_buffer("seen", torch.zeros(11))

        def forward(self, x):
            self.seen += torch.bincount(x.flatten(), minlength=11)
            return self.head(self.words(x).mean(1))

    return Case(Model(), (torch.randint(11, (48, 5)), torch.arange(48) % CLASSES), cross_entropy)


@mixing("a temperature in a buffer adapts to the spread of the batch's logits")
def adaptive_temperature_buffer():
    def keep(m, x):
        m.temperature = 0.7 * m.temperature + 0.3 * x.std()

    return keeping(buffer(temperature=torch.ones(())), lambda m, x: x / (0.1 + m.temperature), keep)


@mixing("a reservoir of features, drawn at random, is replayed into later batches")
def reservoir_of_features():
    def use(m, x):
        return x + 0.5 * torch.stack(m.kept).mean(0) if m.kept else x

    def keep(m, x):
        for row in x:
            m.seen += 1
            if len(m.kept) < 4:
                m.kept.append(row.clone())
            elif float(torch.rand(1)) < 4 / m.seen:
                m.kept[int(torch.randint(4, (1,)))] = row.clone()

    return keeping(attribute(kept=[], seen=0), use, keep)


@mixing("a recurrent state is carried from one batch to the next, as in stateful language models")
def hidden_state_carried_over():
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head, self.memory = nn.GRUCell(WIDTH, 8), nn.Linear(8, CLASSES), None

        def forward(self, x):
            start = torch.zeros(1, 8, dtype=x.dtype) if self.memory is None else self.memory
            hidden = self.cell(x, start.expand(len(x), 8))
            self.memory = hidden.detach().mean(0, keepdim=True)
            return self.head(hidden)

    return table_case(Stateful())


@mixing("a teacher follows the batch: an exponential average of statistics, not of released weights")
def teacher_of_batch_statistics():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(nn.Tanh())
            self.register_buffer("centre", torch.zeros(CLASSES))

        def forward(self, x):
            out = self.net(x)
            target = torch.softmax((out.detach() - self.centre) / 0.2, 1)
            self.centre = 0.6 * self.centre + 0.4 * out.detach().mean(0)
            return -(target * out.log_softmax(1)).sum(1)

    return table_case(Model(), lambda model, batch: model(batch[0]))


@mixing("a prototype is written through .data of a frozen parameter")
def frozen_parameter_written_from_data():
    def before(m):
        m.prototype = nn.Parameter(torch.zeros(8), requires_grad=False)

    def keep(m, x):
        m.prototype.data.mul_(0.8).add_(0.2 * x.mean(0))

    return keeping(before, lambda m, x: x - m.prototype, keep)


@mixing("returns are divided by a running deviation that is kept by the loop (reward normalisation)")
def running_reward_normaliser():
    kept = {"size": 1.0}

    def loss(model, batch):
        x, y = batch
        rewards = x.sum(1)
        kept["size"] = 0.5 * kept["size"] + 0.5 * float(rewards.abs().max())
        return -(rewards / kept["size"]) * model(x).log_softmax(1)[torch.arange(len(y)), y]

    return Case(stack(nn.Tanh()), table(), loss)
