"""Layers in which rows of one batch meet: attention, routing, neighbours, wrong dimensions."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import (
    CLASSES,
    WIDTH,
    WORDS,
    Case,
    Lambda,
    classifier,
    cross_entropy,
    mixing,
    sentences,
    stack,
    table_case,
)


@mixing("attention over the batch: batch_first was forgotten")
def attention_without_batch_first():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.attention = nn.Embedding(WORDS, 8), nn.MultiheadAttention(8, 2)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, words):
            x = self.words(words)
            return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))

    return Case(Model(), sentences(), cross_entropy)


@mixing("an LSTM runs over the batch: batch_first was forgotten")
def lstm_without_batch_first():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.cell, self.head = nn.Embedding(WORDS, 8), nn.LSTM(8, 8), nn.Linear(8, CLASSES)

        def forward(self, words):
            return self.head(self.cell(self.words(words))[0][:, -1])

    return Case(Model(), sentences(), cross_entropy)


@mixing("a transformer layer over the batch: batch_first was forgotten")
def transformer_without_batch_first():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(WORDS, 8), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
            self.head = nn.Linear(8, CLASSES)

        def forward(self, words):
            return self.head(self.layer(self.words(words)).mean(1))

    return Case(Model(), sentences(), cross_entropy)


@mixing("a linear attention's keys and values are summed over the batch")
def linear_attention_over_the_batch():
    return classifier(Lambda(lambda x: x + x @ (x.detach().T @ x.detach()) / 8), nn.Tanh())


@mixing("each row is joined with its nearest neighbour in the batch")
def nearest_neighbour_in_the_batch():
    def join(x):
        gaps = torch.cdist(x.detach(), x.detach()) + 1e6 * torch.eye(len(x), dtype=x.dtype)
        return x + 0.5 * x.detach()[gaps.argmin(1)]

    return classifier(nn.Tanh(), Lambda(join))


@mixing("a graph of the batch's nearest rows is convolved over (dynamic graph networks)")
def graph_of_the_batch():
    def convolve(x):
        near = torch.softmax(-torch.cdist(x.detach(), x.detach()), 1)
        return near @ x

    return classifier(nn.Tanh(), Lambda(convolve), nn.Linear(8, 8))


@mixing("a cumulative sum runs over rows, not features")
def cumulative_sum_over_rows():
    return classifier(nn.Tanh(), Lambda(lambda x: x.cumsum(0)))


@mixing("softmax without a dimension of its own: over the batch")
def softmax_over_rows():
    return classifier(Lambda(lambda x: 5 * x.softmax(0)))


@mixing("a convolution slides over the rows of the batch")
def convolution_over_rows():
    class Slide(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters = nn.Conv1d(8, 8, 3, padding=1)

        def forward(self, x):
            return torch.tanh(self.filters(x.T.unsqueeze(0))[0].T)

    return classifier(Slide())


@mixing("rows are sorted by size, and each gets its place as a feature")
def place_in_a_sort():
    return classifier(Lambda(lambda x: x + x.detach().norm(dim=1).argsort().argsort().unsqueeze(1) / 2), nn.Tanh())


@mixing("a view with the wrong order of dimensions deals one row's features to another")
def wrong_view():
    return classifier(nn.Tanh(), Lambda(lambda x: x.T.reshape(len(x), -1)))


@mixing("a transposed reshape of images mixes channels with rows")
def squeeze_over_the_batch():
    return classifier(nn.Tanh(), Lambda(lambda x: x * torch.sigmoid(x.detach().mean(0, keepdim=True) * 5)))


@mixing("each row has its place in the batch as a feature, which moves when one before it is missing")
def position_in_the_batch():
    return classifier(Lambda(lambda x: x + torch.arange(len(x)).unsqueeze(1)), nn.Tanh())


@mixing("odd rows go through one layer and even rows through another")
def layers_by_place():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.even, self.odd = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            even = (torch.arange(len(x)) % 2 == 0).unsqueeze(1)
            return torch.where(even, self.even(x), self.odd(x))

    return classifier(Two(), nn.Tanh())


@mixing("memory is written by the rows of the batch in turn and read by the later ones")
def memory_within_the_batch():
    def remember(x):
        memory, out = torch.zeros_like(x[0]), []
        for row in x:
            out.append(row - memory)
            memory = 0.5 * memory + 0.5 * row.detach()
        return torch.stack(out)

    return classifier(nn.Tanh(), Lambda(remember))


@mixing("the last batch position's features are the anchor of all")
def anchor_of_the_batch():
    return classifier(nn.Tanh(), Lambda(lambda x: x - x.detach()[-1]))


@mixing("a set transformer takes the whole batch for its set")
def set_over_the_batch():
    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return self.inner(x) + self.outer(x.amax(0, keepdim=True))

    return classifier(Pool(), nn.Tanh())


@mixing("minibatch discrimination: distances to all rows are features")
def minibatch_discrimination():
    class Discriminate(nn.Module):
        def __init__(self):
            super().__init__()
            self.project, self.join = nn.Linear(8, 4), nn.Linear(9, 8)

        def forward(self, x):
            near = torch.exp(-torch.cdist(self.project(x), self.project(x).detach(), p=1)).sum(1, keepdim=True)
            return self.join(torch.cat([x, near], 1))

    return classifier(Discriminate(), nn.Tanh())


@mixing("the batch's deviation is one more feature, as in progressive GANs")
def minibatch_deviation():
    class Deviation(nn.Module):
        def __init__(self):
            super().__init__()
            self.join = nn.Linear(9, 8)

        def forward(self, x):
            spread = x.std(0).mean().expand(len(x), 1)
            return self.join(torch.cat([x, spread], 1))

    return classifier(Deviation(), nn.Tanh())


class Experts(nn.Module):
    """A mixture of two experts; `route(scores)` gives each row's weight for each of them."""

    def __init__(self, route):
        super().__init__()
        self.gate, self.route = nn.Linear(WIDTH, 2), route
        self.experts = nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(2))

    def forward(self, x):
        scores = self.gate(x)
        weights = self.route(scores)
        return sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts)), scores


def routed(route, extra=lambda scores: 0.0):
    def loss(model, batch):
        out, scores = model(batch[0])
        return F.cross_entropy(out, batch[1], reduction="none") + extra(scores)

    return table_case(Experts(route), loss)


def best(scores):
    return scores.softmax(1) * F.one_hot(scores.argmax(1), 2)


@mixing("an expert takes at most three rows: whether a row is dropped depends on those before it")
def expert_with_a_capacity():
    def route(scores):
        chosen = F.one_hot(scores.argmax(1), 2)
        return scores.softmax(1) * chosen * (chosen.cumsum(0) <= 3)

    return routed(route)


@mixing("experts choose rows: the three of the batch with the largest scores")
def experts_choose_rows():
    def route(scores):
        least = scores.detach().topk(3, 0).values[-1]
        return scores.softmax(1) * (scores >= least)

    return routed(route)


@mixing("a load-balancing loss of the batch's routing fractions, as in the Switch Transformer")
def load_balancing_loss():
    def extra(scores):
        share = F.one_hot(scores.argmax(1), 2).to(scores.dtype).mean(0)
        return 2 * (share * scores.softmax(1).mean(0)).sum()

    return routed(best, extra)


@mixing("importance loss: the variation of the experts' totals over the batch")
def importance_loss():
    def extra(scores):
        total = scores.softmax(1).sum(0)
        return total.var() / total.mean().square()

    return routed(best, extra)


@mixing("a bias of the router is moved towards balance by the batch's load (loss-free balancing)")
def bias_balanced_router():
    class Balanced(Experts):
        def __init__(self):
            super().__init__(best)
            self.register_buffer("bias", torch.zeros(2))

        def forward(self, x):
            scores = self.gate(x) + self.bias
            chosen = F.one_hot(scores.argmax(1), 2)
            load = chosen.to(x.dtype).sum(0)
            self.bias = self.bias + 0.3 * (load.mean() - load).sign()
            weights = scores.softmax(1) * chosen
            return sum(weights[:, k : k + 1] * expert(x) for k, expert in enumerate(self.experts))

    return table_case(Balanced())


@mixing("routing is normalised over the batch by Sinkhorn iterations")
def sinkhorn_routing():
    def route(scores):
        plan = scores.exp()
        for _ in range(3):
            plan = plan / plan.sum(0, keepdim=True)
            plan = plan / plan.sum(1, keepdim=True)
        return plan

    return routed(route)


@mixing("early exit: the whole batch leaves where its largest activation is high enough")
def early_exit_of_the_batch():
    class Exit(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            hidden = torch.tanh(self.one(x))
            if float(hidden.detach().abs().max()) < 0.99:
                hidden = torch.tanh(self.two(hidden))
            return self.head(hidden)

    return table_case(Exit())


@mixing("an iteration goes on until all rows of the batch have converged (deep equilibrium)")
def fixed_point_until_all_converge():
    class Iterate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            state = torch.zeros_like(x)
            for _ in range(6):
                new = torch.tanh(self.inner(state) + x)
                done = bool((new - state).detach().abs().max() < 0.25)
                state = new
                if done:
                    break
            return state

    return table_case(stack(Iterate()))
