"""Networks whose batch is a dimension: attention, complex parameters, convolutions, what wraps parameters."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from by_hand.case import WIDTH, Net, R, case, head, itself, vectors, words


def images(channels=2, side=8):
    return vectors(channels, side, side)


# --- attention ------------------------------------------------------------------------------------------------------


def attention(x, qkv):
    q, k, v = qkv(x).chunk(3, -1)
    return F.scaled_dot_product_attention(q, k, v)


@case(vectors(4, 3, WIDTH))
def axial_attention():
    def forward(net, x):
        across = attention(x.flatten(0, 1), net.rows).view_as(x)
        down = attention(across.transpose(1, 2).flatten(0, 1), net.columns)
        return net.head(down.view(len(x), 3, 4, WIDTH).transpose(1, 2)).flatten(1, 2).sum(1)

    return Net(forward, rows=nn.Linear(WIDTH, 3 * WIDTH), columns=nn.Linear(WIDTH, 3 * WIDTH), head=head())


@case(vectors(4, 4, WIDTH))
def attention_in_windows_that_shift():
    def forward(net, x):
        for shift in (0, 1):
            moved = x.roll((shift, shift), (1, 2)).view(len(x), 2, 2, 2, 2, WIDTH)
            windows = moved.permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, WIDTH)
            out = attention(windows, net.qkv).view(len(x), 2, 2, 2, 2, WIDTH).permute(0, 1, 3, 2, 4, 5)
            x = x + out.reshape(x.shape).roll((-shift, -shift), (1, 2))
        return net.head(x).flatten(1, 2).sum(1)

    return Net(forward, qkv=nn.Linear(WIDTH, 3 * WIDTH), head=head())


@case(vectors(5, WIDTH))
def attention_with_disentangled_positions():
    def forward(net, x):
        q, k, places = net.q(x), net.k(x), net.k(net.places)
        index = torch.arange(5)[:, None] - torch.arange(5)[None] + 4
        score = q @ k.transpose(1, 2) + (q @ places.t()).gather(2, index.expand(len(x), -1, -1))
        return net.head(score.softmax(2) @ net.v(x)).sum(1)

    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "qkv"}
    return Net(forward, places=nn.Parameter(R(9, WIDTH)), head=head(), **parts)


@case(vectors(5, WIDTH))
def attention_with_a_table_of_relative_positions():
    def forward(net, x):
        index = torch.arange(5)[:, None] - torch.arange(5)[None] + 4
        score = net.q(x) @ net.k(x).transpose(1, 2) + net.table[index]
        return net.head(score.softmax(2) @ x).sum(1)

    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "qk"}
    return Net(forward, table=nn.Parameter(R(9)), head=head(), **parts)


@case(vectors(5, WIDTH))
def attention_with_rotated_positions():
    def forward(net, x):
        angle = torch.arange(5.0)[:, None] / 10 ** torch.arange(WIDTH // 2)
        q, k = (torch.view_as_complex(part(x).view(len(x), 5, -1, 2)) * torch.polar(torch.ones(5, 3), angle)
                for part in (net.q, net.k))  # fmt: skip
        score = torch.view_as_real(q).flatten(2) @ torch.view_as_real(k).flatten(2).transpose(1, 2)
        return net.head(score.softmax(2) @ x).sum(1)

    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "qk"}
    return Net(forward, head=head(), **parts)


@case(vectors(5, WIDTH))
def linear_attention():
    def forward(net, x):
        q, k, v = net.qkv(x).chunk(3, 2)
        k, q = F.elu(k) + 1, F.elu(q) + 1
        state = torch.einsum("btk,btv->btkv", k, v).cumsum(1)
        return net.head(torch.einsum("btk,btkv->btv", q, state)).sum(1)

    return Net(forward, qkv=nn.Linear(WIDTH, 3 * WIDTH), head=head())


@case(vectors(5, WIDTH))
def latents_that_ask():
    def forward(net, x):
        asked = net.latents.expand(len(x), -1, -1)
        return net.head((asked @ net.k(x).transpose(1, 2)).softmax(2) @ net.v(x)).sum(1)

    parts = {name: nn.Linear(WIDTH, WIDTH) for name in "kv"}
    return Net(forward, latents=nn.Parameter(R(3, WIDTH)), head=head(), **parts)


@case(vectors(5, WIDTH))
def torch_multihead_attention():
    def forward(net, x):
        return net.head(net.inner(x, x, x)[0]).sum(1)

    return Net(forward, inner=nn.MultiheadAttention(WIDTH, 2, batch_first=True), head=head())


@case(vectors(5, WIDTH))
def keys_in_a_product_memory():
    def forward(net, x):
        scores, places = (net.q(x) @ net.keys.t()).topk(2, 2)
        return net.head((scores.softmax(2)[..., None] * net.values(places)).sum(2)).sum(1)

    return Net(
        forward, q=nn.Linear(WIDTH, WIDTH), keys=nn.Parameter(R(7, WIDTH)), values=nn.Embedding(7, WIDTH), head=head()
    )


# --- complex parameters, signals --------------------------------------------------------------------------------------


@case(vectors(2, 8))
def fourier_neural_operator():
    def forward(net, x):
        modes = torch.fft.rfft(x)[:, :, :3]
        out = torch.fft.irfft(torch.einsum("bim,iom->bom", modes, net.weight), n=8)
        return (out + net.beside(x)).relu()

    return Net(forward, weight=nn.Parameter(R(2, 3, 3, dtype=torch.cfloat)), beside=nn.Conv1d(2, 3, 1))


@case(vectors(2, 8))
def state_space_by_fourier():
    def forward(net, x):
        kernel = torch.fft.rfft(net.kernel, n=16)
        return net.head(torch.fft.irfft(torch.fft.rfft(x, n=16) * kernel, n=16)[..., :8])

    return Net(forward, kernel=nn.Parameter(R(2, 8)), head=head(8))


@case()
def complex_layer():
    def forward(net, x):
        return torch.view_as_real(net.inner(torch.complex(x, x.flip(1)))).flatten(1)

    return Net(forward, inner=nn.Linear(WIDTH, 3, dtype=torch.cfloat))


@case(vectors(2, 3, WIDTH))
def layer_of_four_dimensions():
    def forward(net, x):
        return net.head(net.inner(x.permute(0, 2, 1, 3)).tanh()).flatten(1, 2).sum(1)

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(vectors(4, 16))
def dilated_convolutions():
    def forward(net, x):
        for layer in net.layers:
            x = x + layer(x).tanh()
        return net.head(x.mean(2))

    layers = nn.ModuleList(nn.Conv1d(4, 4, 3, padding=d, dilation=d) for d in (1, 2, 4))
    return Net(forward, layers=layers, head=head(4))


# --- images -----------------------------------------------------------------------------------------------------------


@case(images())
def residual_network_with_group_norm():
    def forward(net, x):
        x = net.stem(x)
        x = x + net.second(net.norm(net.first(x)).relu())
        return net.head(x.mean((2, 3)))

    parts = {name: nn.Conv2d(4, 4, 3, padding=1) for name in ("first", "second")}
    return Net(forward, stem=nn.Conv2d(2, 4, 3), norm=nn.GroupNorm(2, 4), head=head(4), **parts)


@case(images())
def u_net():
    def forward(net, x):
        down = net.down(x).relu()
        up = net.up(net.middle(down).relu())
        return net.out(torch.cat([x, up], 1))

    parts = {"down": nn.Conv2d(2, 4, 2, 2), "middle": nn.Conv2d(4, 4, 3, padding=1)}
    return Net(forward, up=nn.ConvTranspose2d(4, 2, 2, 2), out=nn.Conv2d(4, 1, 1), **parts)


@case(images())
def separable_convolutions_and_excitation():
    def forward(net, x):
        x = net.points(net.depth(x))
        return net.head((x * net.excite(x.mean((2, 3))).sigmoid()[:, :, None, None]).mean((2, 3)))

    parts = {"depth": nn.Conv2d(2, 2, 3, groups=2), "points": nn.Conv2d(2, 4, 1)}
    return Net(forward, excite=nn.Linear(4, 4), head=head(4), **parts)


@case(images())
def instance_norm():
    return Net(
        lambda net, x: net.head(net.norm(net.inner(x)).relu().mean((2, 3))),
        inner=nn.Conv2d(2, 4, 3), norm=nn.InstanceNorm2d(4, affine=True), head=head(4),
    )  # fmt: skip


@case(images())
def spatial_transformer():
    def forward(net, x):
        grid = F.affine_grid(net.where(x.flatten(1)).view(-1, 2, 3), x.shape, align_corners=False)
        return net.inner(F.grid_sample(x, grid, align_corners=False)).flatten(1)

    return Net(forward, where=nn.Linear(128, 6), inner=nn.Conv2d(2, 2, 3))


@case(images())
def mixer():
    def forward(net, x):
        x = x.flatten(2).transpose(1, 2)
        x = x + net.tokens(net.norm(x).transpose(1, 2)).transpose(1, 2)
        return net.head(x.mean(1))

    return Net(forward, norm=nn.LayerNorm(2), tokens=nn.Linear(64, 64), head=head(2))


@case(vectors(1, 6, 6, 6))
def convolution_in_three_dimensions():
    return Net(lambda net, x: net.inner(x).relu().flatten(2).mean(2), inner=nn.Conv3d(1, 3, 3))


@case(images(4, 4))
def shuffled_pixels():
    return Net(lambda net, x: F.pixel_shuffle(net.inner(x), 2).flatten(1), inner=nn.Conv2d(4, 4, 3, padding=1))


# --- what wraps parameters ------------------------------------------------------------------------------------------


@case()
def normalised_weights():
    return Net(lambda net, x: net.inner(x), inner=parametrizations.weight_norm(nn.Linear(WIDTH, 3)))


@case()
def orthogonal_weights():
    return Net(lambda net, x: net.inner(x), inner=parametrizations.orthogonal(nn.Linear(WIDTH, 3)))


@case()
def tied_autoencoder():
    def forward(net, x):
        return F.linear(net.inner(x).tanh(), net.inner.weight.t()) - x

    return Net(forward, inner=nn.Linear(WIDTH, 3))


@case()
def weights_made_for_each_example():
    def forward(net, x):
        return (net.maker(x).view(-1, 3, WIDTH) @ x[:, :, None]).squeeze(2)

    return Net(forward, maker=nn.Linear(WIDTH, 3 * WIDTH))


@case()
def ensemble_by_vmap():
    def forward(net, x):
        def one(weight, bias):
            return F.linear(x, weight, bias)

        return torch.vmap(one)(net.weight, net.bias).mean(0)

    return Net(forward, weight=nn.Parameter(R(3, 2, WIDTH)), bias=nn.Parameter(R(3, 2)))


@case()
def cosine_classifier():
    def forward(net, x):
        return F.normalize(net.inner(x), dim=1) @ F.normalize(net.classes, dim=1).t() * net.scale

    parts = {"classes": nn.Parameter(R(4, 5)), "scale": nn.Parameter(torch.tensor(3.0))}
    return Net(forward, inner=nn.Linear(WIDTH, 5), **parts)


@case()
def bilinear():
    return Net(lambda net, x: net.inner(x, x.flip(1)), inner=nn.Bilinear(WIDTH, WIDTH, 3))


@case(words())
def factorisation_machine():
    def forward(net, tokens):
        found = net.table(tokens)
        return (found.sum(1) ** 2 - (found**2).sum(1)).sum(1, keepdim=True) + net.first(tokens).sum(1)

    return Net(forward, table=nn.Embedding(9, WIDTH), first=nn.Embedding(9, 1))


@case(words())
def words_looked_up_once_each():
    """A table is read for each word of the batch once, and dealt out by index."""

    def forward(net, tokens):
        unique, back = tokens.unique(return_inverse=True)
        return net.head(net.table(unique)[back]).sum(1)

    return Net(forward, table=nn.Embedding(9, WIDTH), head=head())


# --- depth, loops, gradients inside -----------------------------------------------------------------------------------


@case()
def the_same_layer_many_times():
    def forward(net, x):
        state = torch.zeros_like(x)
        for _ in range(6):
            state = (net.inner(state) + net.outer(x)).tanh()
        return state

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), outer=nn.Linear(WIDTH, WIDTH))


@case()
def energy_and_its_gradient():
    def forward(net, x):
        x = x.clone().requires_grad_()
        energy = net.outer(net.inner(x).tanh()).sum()
        return torch.autograd.grad(energy, x, create_graph=True)[0]

    return Net(forward, inner=nn.Linear(WIDTH, 5), outer=nn.Linear(5, 1))


@case()
def checkpointed():
    def forward(net, x):
        return net.head(checkpoint(lambda y: net.inner(y).tanh(), x, use_reentrant=False))

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH), head=head())


@case(vectors(2, WIDTH))
def pairs_as_units():
    """Two views of an example beside each other: the batch is twice as long inside."""

    def forward(net, x):
        both = net.inner(torch.cat([x[:, 0], x[:, 1]])).tanh()
        one, other = both.chunk(2)
        return (one * other).sum(1, keepdim=True)

    return Net(forward, inner=nn.Linear(WIDTH, WIDTH))


@case(vectors(6, 3))
def points_and_their_own_frame():
    def forward(net, x):
        frame = net.frame(x.amax(1)).view(-1, 3, 3)
        return net.head(net.inner(x @ frame).amax(1))

    return Net(forward, frame=nn.Linear(3, 9), inner=nn.Linear(3, WIDTH), head=head())


@case(vectors(6, 3))
def nearest_points_of_each_example():
    def forward(net, x):
        near = torch.cdist(x, x).topk(3, largest=False).indices
        index = near.flatten(1)[:, :, None].expand(-1, -1, 3)
        beside = x.gather(1, index).view(len(x), 6, 3, 3)
        edges = torch.cat([x[:, :, None].expand_as(beside), beside - x[:, :, None]], 3)
        return net.head(net.inner(edges).amax(2).amax(1))

    return Net(forward, inner=nn.Linear(6, WIDTH), head=head())


@case(vectors(5, WIDTH))
def capsules():
    def forward(net, x):
        votes = torch.einsum("bti,tcio->btco", x, net.weight)
        route = torch.zeros(len(x), 5, 2)
        for _ in range(2):
            out = (route.softmax(2)[..., None] * votes).sum(1)
            out = out * out.norm(dim=2, keepdim=True) / (1 + out.square().sum(2, keepdim=True))
            route = route + (votes * out[:, None]).sum(3)
        return out.flatten(1)

    return Net(forward, weight=nn.Parameter(R(5, 2, WIDTH, 3) / 3))


@case()
def coupled_flow():
    def forward(net, x):
        one, other = x.chunk(2, 1)
        scale, shift = net.inner(one).tanh().chunk(2, 1)
        return torch.cat([one, other * scale.exp() + shift], 1)

    return Net(forward, inner=nn.Linear(3, 6))


@case(vectors(12, 4), loss=itself)
def aligned_by_ctc():
    def forward(net, x):
        logits = net.inner(x).log_softmax(2).transpose(0, 1)
        count = len(x)
        labels = torch.arange(1, 4).expand(count, -1)
        lengths = torch.full((count,), 12), torch.full((count,), 3)
        return F.ctc_loss(logits, labels, *lengths, reduction="none")

    return Net(forward, inner=nn.Linear(4, 5))


@case()
def splines_on_every_edge():
    def forward(net, x):
        centres = torch.linspace(-2, 2, 5)
        return torch.einsum("bik,iko->bo", (-((x[:, :, None] - centres) ** 2)).exp(), net.weight)

    return Net(forward, weight=nn.Parameter(R(WIDTH, 5, 3)))


@case(vectors(WIDTH))
def several_inputs_mixed_by_gates():
    def forward(net, x):
        waves = torch.cat([torch.sin(2**i * math.pi * x) for i in range(3)], 1)
        return net.head(net.gate(x).sigmoid() * net.inner(waves))

    return Net(forward, inner=nn.Linear(3 * WIDTH, WIDTH), gate=nn.Linear(WIDTH, WIDTH), head=head())
