"""Rows that belong to examples by data: sets and graphs side by side, experts, bags, packed and nested sequences."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_packed_sequence

from by_hand.case import (
    UNITS,
    WIDTH,
    Net,
    R,
    bags,
    case,
    flat,
    graphs,
    head,
    itself,
    jagged,
    lists_of_words,
    one_graph,
    packed,
    padded,
    sets,
    summed,
    time_first,
    vectors,
    words,
)

NESTED = ("nested rows",)  # autograd does not show their rows

# --- sets -----------------------------------------------------------------------------------------------------------


@case(sets, flat)
def sets_by_index_add():
    def forward(net, batch):
        rows, owner, units = batch
        return net.head(summed(net.inner(rows).tanh(), owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def sets_by_scatter_add():
    def forward(net, batch):
        rows, owner, units = batch
        hidden = net.inner(rows).tanh()
        zeros = hidden.new_zeros(units, WIDTH)
        return net.head(zeros.scatter_add(0, owner[:, None].expand_as(hidden), hidden))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def sets_by_scatter_reduce_mean():
    def forward(net, batch):
        rows, owner, units = batch
        hidden = net.inner(rows).tanh()
        index = owner[:, None].expand_as(hidden)
        return net.head(hidden.new_zeros(units, WIDTH).scatter_reduce(0, index, hidden, "mean", include_self=False))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def sets_by_largest_value():
    def forward(net, batch):
        rows, owner, units = batch
        hidden = net.inner(rows).tanh()
        index = owner[:, None].expand_as(hidden)
        return net.head(hidden.new_zeros(units, WIDTH).scatter_reduce(0, index, hidden, "amax", include_self=False))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def sets_by_split():
    def forward(net, batch):
        rows, owner, units = batch
        parts = net.inner(rows).tanh().split(owner.bincount(minlength=units).tolist())
        return net.head(torch.stack([part.mean(0) for part in parts]))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def sets_by_segment_reduce():
    def forward(net, batch):
        rows, owner, units = batch
        hidden = net.inner(rows).tanh()
        return net.head(torch.segment_reduce(hidden, "sum", lengths=owner.bincount(minlength=units), axis=0))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, padded)
def sets_padded_under_a_mask():
    def forward(net, batch):
        rows, mask = batch
        return net.head((net.inner(rows).tanh() * mask[:, :, None]).sum(1))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, padded)
def sets_padded_then_picked_by_mask():
    def forward(net, batch):
        rows, mask = batch
        owner = mask.nonzero()[:, 0]
        return net.head(summed(net.inner(rows[mask.bool()]).tanh(), owner, len(rows)))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def attention_over_each_set():
    def forward(net, batch):
        rows, owner, units = batch
        score = net.score(rows).squeeze(1).exp()
        weights = score / summed(score, owner, units)[owner]
        return net.head(summed(weights[:, None] * net.inner(rows), owner, units))

    return Net(forward, score=nn.Linear(WIDTH, 1), inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, flat)
def packed_attention_under_a_mask_of_blocks():
    def forward(net, batch):
        rows, owner, units = batch
        q, k, v = net.qkv(rows).chunk(3, 1)
        mask = owner[:, None] == owner[None]
        out = F.scaled_dot_product_attention(q[None, None], k[None, None], v[None, None], attn_mask=mask)
        return net.head(summed(out[0, 0], owner, units))

    return Net(forward, qkv=nn.Linear(WIDTH, 3 * WIDTH), head=head())


@case(sets, jagged)
def nested_rows():
    def forward(net, batch):
        return net.head(net.inner(batch).tanh().to_padded_tensor(0.0).sum(1))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, jagged)
def nested_rows_by_their_values():
    def forward(net, batch):
        lengths = batch.offsets().diff()
        owner = torch.arange(len(lengths)).repeat_interleave(lengths)
        return net.head(summed(net.inner(batch.values()).tanh(), owner, len(lengths)))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


# --- graphs ---------------------------------------------------------------------------------------------------------


def messages(net, batch, mean=False):
    nodes, (source, target), owner, units = batch
    for layer in net.layers:
        sent = layer(nodes)[source]
        nodes = torch.zeros_like(nodes).index_add(0, target, sent).tanh() + nodes
    pooled = summed(nodes, owner, units)
    return net.head(pooled / owner.bincount(minlength=units)[:, None] if mean else pooled)


@case(graphs, one_graph)
def graph_convolutions():
    return Net(messages, layers=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)), head=head())


@case(graphs, one_graph)
def graph_convolutions_and_means():
    def forward(net, batch):
        return messages(net, batch, mean=True)

    return Net(forward, layers=nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2)), head=head())


@case(graphs, one_graph)
def graph_attention():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        hidden = net.inner(nodes)
        score = F.leaky_relu(net.score(torch.cat([hidden[source], hidden[target]], 1))).squeeze(1).exp()
        whole = torch.zeros(len(nodes)).index_add(0, target, score)
        sent = (score / whole[target])[:, None] * hidden[source]
        return net.head(summed(torch.zeros_like(hidden).index_add(0, target, sent).tanh(), owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), score=nn.Linear(2 * WIDTH, 1), head=head())


@case(graphs, one_graph)
def graph_isomorphism():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        for layer in net.layers:
            nodes = layer((1 + net.own) * nodes + torch.zeros_like(nodes).index_add(0, target, nodes[source]))
        return net.head(summed(nodes, owner, units))

    layers = [nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH)) for _ in range(2)]
    return Net(forward, layers=nn.ModuleList(layers), own=nn.Parameter(torch.tensor(0.1)), head=head())


@case(graphs, one_graph)
def graph_edges_with_features():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        edge = net.edge(torch.cat([nodes[source], nodes[target] - nodes[source]], 1)).relu()
        return net.head(summed(edge, owner[target], units))

    return Net(forward, edge=nn.Linear(2 * WIDTH, WIDTH), head=head())


@case(graphs, one_graph)
def graph_messages_of_the_largest_value():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        sent = net.inner(nodes)[source]
        index = target[:, None].expand_as(sent)
        got = torch.zeros_like(nodes).scatter_reduce(0, index, sent, "amax", include_self=False)
        return net.head(summed(net.outer(torch.cat([nodes, got], 1)).tanh(), owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), outer=nn.Linear(2 * WIDTH, WIDTH), head=head())


@case(graphs, one_graph)
def graph_convolutions_by_a_sparse_matrix():
    def forward(net, batch):
        nodes, edges, owner, units = batch
        ones, size = torch.ones(edges.shape[1]), (len(nodes), len(nodes))
        matrix = torch.sparse_coo_tensor(edges.flip(0), ones, size, check_invariants=True)
        return net.head(summed(torch.sparse.mm(matrix, net.inner(nodes)).tanh(), owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(graphs, one_graph)
def graph_recurrence():
    def forward(net, batch):
        nodes, (source, target), owner, units = batch
        for _ in range(3):
            got = torch.zeros_like(nodes).index_add(0, target, net.inner(nodes)[source])
            nodes = net.cell(got, nodes)
        return net.head(summed(nodes, owner, units))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), cell=nn.GRUCell(WIDTH, WIDTH), head=head())


# --- experts --------------------------------------------------------------------------------------------------------


def experts(count=4):
    return nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))


@case(vectors(5, WIDTH))
def experts_by_index():
    def forward(net, x):
        tokens = x.flatten(0, 1)
        weights, chosen = net.gate(tokens).softmax(1).topk(2, 1)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(net.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, rows, expert(tokens[rows]) * weights[rows, place, None])
        return net.head(out.view_as(x)).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=experts(), head=head())


@case(vectors(5, WIDTH))
def experts_by_mask_one_without_rows():
    def forward(net, x):
        chosen = net.gate(x)[..., :3].argmax(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(net.experts):
            out[chosen == number] = expert(x[chosen == number])
        return net.head(out).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4).requires_grad_(False), experts=experts(), head=head())


@case(vectors(5, WIDTH))
def experts_of_which_some_get_no_row():
    def forward(net, x):
        tokens = x.flatten(0, 1)
        chosen = tokens[:, 0].gt(9).long()
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(net.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(tokens[rows]))
        return net.head(out.view_as(x)).sum(1)

    return Net(forward, experts=experts(), head=head())


@case(vectors(5, WIDTH))
def experts_sorted_and_split():
    def forward(net, x):
        tokens = x.flatten(0, 1)
        weights, chosen = net.gate(tokens).softmax(1).max(1)
        order = chosen.argsort()
        parts = tokens[order].split(chosen.bincount(minlength=4).tolist())
        out = torch.cat([expert(part) for expert, part in zip(net.experts, parts, strict=True)])
        back = torch.zeros_like(out).index_copy(0, order, out)
        return net.head((back * weights[:, None]).view_as(x)).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=experts(), head=head())


@case(vectors(5, 8))
def experts_by_a_grouped_product():
    def forward(net, x):
        tokens = x.flatten(0, 1)
        weights, chosen = net.gate(tokens).softmax(1).max(1)
        order = chosen.argsort()
        ends = chosen.bincount(minlength=4).cumsum(0).to(torch.int32)
        out = F.grouped_mm(tokens[order], net.experts, offs=ends)
        return net.head((out[order.argsort()] * weights[:, None]).view_as(x)).sum(1)

    return Net(forward, gate=nn.Linear(8, 4), experts=nn.Parameter(R(4, 8, 8) / 3), head=head(8))


@case(vectors(5, WIDTH))
def experts_mixed_by_weight():
    def forward(net, x):
        every = torch.stack([expert(x) for expert in net.experts], 2)
        return net.head((net.gate(x).softmax(2)[..., None] * every).sum(2)).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=experts(), head=head())


@case(vectors(5, WIDTH))
def experts_weights_by_einsum():
    def forward(net, x):
        every = torch.einsum("btd,edh->bteh", x, net.experts)
        return net.head(torch.einsum("bte,bteh->bth", net.gate(x).softmax(2), every)).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=nn.Parameter(R(4, WIDTH, WIDTH) / 3), head=head())


@case(vectors(5, WIDTH))
def experts_whose_matrices_are_gathered():
    def forward(net, x):
        weights, chosen = net.gate(x).softmax(2).max(2)
        out = (x[:, :, None] @ net.experts[chosen]).squeeze(2)
        return net.head(out * weights[:, :, None]).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=nn.Parameter(R(4, WIDTH, WIDTH) / 3), head=head())


@case(vectors(5, WIDTH))
def experts_that_choose_tokens_of_each_example():
    def forward(net, x):
        scores = net.gate(x).softmax(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(net.experts):
            weights, places = scores[:, :, number].topk(2, 1)
            index = places[:, :, None].expand(-1, -1, WIDTH)
            out = out.scatter_add(1, index, expert(x.gather(1, index)) * weights[:, :, None])
        return net.head(out).sum(1)

    return Net(forward, gate=nn.Linear(WIDTH, 4), experts=experts(), head=head())


# --- bags, packed sequences, time first ------------------------------------------------------------------------------


def bag(mode):
    def forward(net, batch):
        return net.head(net.words(*batch))

    return Net(forward, words=nn.EmbeddingBag(9, WIDTH, mode=mode), head=head())


@case(lists_of_words, bags)
def bags_of_words_and_sums():
    return bag("sum")


@case(lists_of_words, bags)
def bags_of_words_and_means():
    return bag("mean")


@case(lists_of_words, bags)
def bags_of_words_and_largest():
    return bag("max")


@case(words())
def bags_of_equal_size_with_weights():
    def forward(net, batch):
        return net.head(net.words(batch, per_sample_weights=net.weights(batch).squeeze(-1).sigmoid()))

    return Net(forward, words=nn.EmbeddingBag(9, WIDTH, mode="sum"), weights=nn.Embedding(9, 1), head=head())


def last_of(net, batch):
    out, _ = net.layer(batch)
    rows, lengths = pad_packed_sequence(out, batch_first=True)
    mask = torch.arange(rows.shape[1])[None] < lengths[:, None]
    return net.head((rows * mask[:, :, None]).sum(1))


@case(sets, packed)
def packed_lstm():
    return Net(last_of, layer=nn.LSTM(WIDTH, WIDTH), head=head())


@case(sets, packed)
def packed_gru_in_two_directions():
    return Net(last_of, layer=nn.GRU(WIDTH, WIDTH, bidirectional=True), head=head(2 * WIDTH))


@case(vectors(5, WIDTH), time_first)
def time_first_lstm():
    def forward(net, x):
        return net.head(net.layer(x)[0]).sum(0)

    return Net(forward, layer=nn.LSTM(WIDTH, WIDTH), head=head())


@case(vectors(5, WIDTH), time_first)
def time_first_transformer():
    def forward(net, x):
        return net.head(net.layer(x)).sum(0)

    return Net(forward, layer=nn.TransformerEncoderLayer(WIDTH, 2, 8, dropout=0.0), head=head())


@case(vectors(5, WIDTH), time_first)
def time_first_cells():
    def forward(net, x):
        state = x.new_zeros(x.shape[1], WIDTH)
        for now in x:
            state = net.cell(now, state)
        return net.head(state)

    return Net(forward, cell=nn.GRUCell(WIDTH, WIDTH), head=head())


@case(lambda: [R(2 + i % 3, WIDTH) for i in range(UNITS)], lambda rows: rows, itself)
def a_loop_over_examples():
    def forward(net, rows):
        return torch.stack([net.head(net.inner(row).tanh().mean(0)).square().sum() for row in rows])

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(sets, padded)
def rows_that_leave_the_batch():
    """Whoever is done early is taken out of what goes on."""

    def forward(net, batch):
        rows, mask = batch
        lengths = mask.sum(1).long()
        order = lengths.argsort(descending=True)
        state, ended = rows.new_zeros(len(rows), WIDTH), []
        rows, left = rows[order], lengths[order]
        for step in range(rows.shape[1]):
            going = int((left > step).sum())
            ended.append(state[going:])
            state = net.cell(rows[:going, step], state[:going])
        ended.append(state)
        out = torch.cat(ended[::-1])
        return net.head(out[order.argsort()])

    return Net(forward, cell=nn.GRUCell(WIDTH, WIDTH), head=head())


@case(words())
def adaptive_softmax():
    def forward(net, tokens):
        hidden = net.words(tokens[:, :-1]).tanh().flatten(0, 1)
        return -net.out(hidden, tokens[:, 1:].flatten()).output.view(len(tokens), -1).sum(1, keepdim=True)

    return Net(forward, words=nn.Embedding(9, WIDTH), out=nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 9, [3, 6], 1.5))
