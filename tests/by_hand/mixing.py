"""Networks and losses in which one example's gradient depends on others: each must be refused."""

import torch
from torch import nn
from torch.nn import functional as F

from by_hand.case import WIDTH, Net, case, graphs, head, itself, one_graph, summed, vectors


def mixing(rows=None, **more):
    return case(rows, mixes=True, **more)


def between(function):
    """Two layers, and something between them that sees the whole batch."""
    return Net(lambda net, x: net.head(function(net.inner(x))), inner=nn.Linear(WIDTH, WIDTH), head=head())


@mixing()
def batch_norm():
    return between(nn.BatchNorm1d(WIDTH))


@mixing()
def batch_mean_taken_off():
    return between(lambda h: h - h.mean(0))


@mixing()
def largest_of_the_batch():
    return between(lambda h: h / h.amax(0))


@mixing()
def attention_over_the_batch():
    return between(lambda h: (h @ h.t()).softmax(1) @ h)


@mixing()
def softmax_over_the_batch():
    return between(lambda h: h.softmax(0))


@mixing()
def cumulative_sums_over_the_batch():
    return between(lambda h: h.cumsum(0))


@mixing()
def next_example_added():
    return between(lambda h: h + h.roll(1, 0))


@mixing()
def sorted_over_the_batch():
    return between(lambda h: h.sort(0).values * torch.arange(1.0, len(h) + 1)[:, None])


@mixing()
def deviation_of_the_batch_as_a_feature():
    return between(lambda h: h * h.std(0).mean())


@mixing()
def whitened_over_the_batch():
    return between(lambda h: h / (h.t() @ h).norm())


@mixing()
def convolution_over_the_batch():
    return between(lambda h: F.avg_pool1d(h.t()[None], 3, 1, 1)[0].t())


@mixing(loss=itself)
def contrastive_loss():
    def forward(net, x):
        h = F.normalize(net.inner(x), dim=1)
        return F.cross_entropy(h @ h.t(), torch.arange(len(x)), reduction="none")

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH))


@mixing(loss=itself)
def decorrelated_features():
    def forward(net, x):
        h = net.inner(x)
        return h.square().sum(1) + (h - h.mean(0)).square().sum()

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH))


@mixing(loss=itself)
def losses_relative_to_their_mean():
    def forward(net, x):
        each = net.inner(x).square().sum(1)
        return each / each.mean()

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH))


@mixing(vectors(5, WIDTH), loss=itself)
def experts_with_a_balancing_loss():
    def forward(net, x):
        weights = net.gate(x).softmax(2)
        out = sum(weights[:, :, i, None] * expert(x) for i, expert in enumerate(net.experts))
        return out.square().sum((1, 2)) + weights.mean((0, 1)).square().sum()

    return Net(forward, gate=nn.Linear(WIDTH, 3), experts=nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(3)))


@mixing(vectors(5, WIDTH))
def experts_balanced_over_the_batch():
    def forward(net, x):
        scores = net.gate(x.flatten(0, 1)).exp()
        for _ in range(3):
            scores = scores / scores.sum(0)
            scores = scores / scores.sum(1, keepdim=True)
        every = torch.stack([expert(x.flatten(0, 1)) for expert in net.experts], 1)
        return (scores[:, :, None] * every).sum(1).view(len(x), 5, 3).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 3), experts=nn.ModuleList(nn.Linear(WIDTH, 3) for _ in range(3)))


@mixing(graphs, collate=one_graph)
def edges_between_graphs():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        source = (source + 3) % len(nodes)
        sent = torch.zeros_like(nodes).index_add(0, target, net.inner(nodes)[source]).tanh()
        return net.head(summed(sent, owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@mixing(graphs, collate=one_graph)
def graphs_normalised_over_all_nodes():
    def forward(net, batch):
        nodes, _, owner, units = batch
        hidden = net.inner(nodes)
        return net.head(summed((hidden - hidden.mean(0)) / hidden.std(0), owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@mixing()
def a_scale_of_the_whole_batch():
    return between(lambda h: h * torch.sigmoid(h.sum()))


@mixing()
def mixed_up_features():
    return between(lambda h: 0.7 * h + 0.3 * h.flip(0))
