"""Networks that are sound: each row's outputs come from that row and the weights."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

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

EACH = "each row goes through the layers on its own"


def pictures(*layers, channels=1):
    return Case(nn.Sequential(*layers), images(channels=channels), cross_entropy)


def head(width):
    return nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)


@sound(EACH)
def logistic_regression():
    return table_case(nn.Linear(WIDTH, CLASSES))


@sound(EACH)
def linear_regression():
    return Case(nn.Linear(WIDTH, 1), values(), squared)


@sound(EACH)
def mlp_with_relu():
    return classifier(nn.ReLU(), nn.Linear(8, 8), nn.ReLU())


@sound(EACH)
def mlp_with_gelu_and_biases_shared():
    shared = nn.Linear(8, 8)
    return classifier(nn.GELU(), shared, nn.GELU(), shared)


@sound(EACH)
def mlp_with_swiglu():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.both, self.out = nn.Linear(8, 32), nn.Linear(16, 8)

        def forward(self, x):
            a, b = self.both(x).chunk(2, 1)
            return x + self.out(F.silu(a) * b)

    return classifier(Gated())


@sound(EACH)
def mlp_with_prelu():
    return classifier(nn.PReLU(8), nn.Linear(8, 8), nn.PReLU())


@sound("a maximum over pieces of one row's features")
def maxout():
    return classifier(nn.Linear(8, 16), Lambda(lambda x: x.unflatten(1, (8, 2)).amax(2)))


@sound("residual connections add a row to itself")
def residual_mlp():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, x):
            return x + self.inner(x)

    return classifier(Residual(), Residual())


@sound("a product of two projections of one row")
def bilinear_layer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair, self.head = nn.Bilinear(WIDTH, WIDTH, 4), nn.Linear(4, CLASSES)

        def forward(self, x):
            return self.head(torch.tanh(self.pair(x, x.flip(1))))

    return table_case(Model())


@sound("layer norm's statistics are over one row's features")
def layer_norm():
    return classifier(nn.LayerNorm(8), nn.ReLU())


@sound("RMS norm's scale is of one row's features")
def rms_norm():
    return classifier(nn.RMSNorm(8), nn.ReLU())


@sound("an RMS norm of one's own, with the scale detached: still of one row's features")
def detached_rms_norm_of_a_row():
    return classifier(Lambda(lambda x: x / (x.detach().square().mean(1, keepdim=True) + 0.1).sqrt()))


@sound(EACH)
def cnn():
    return pictures(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, CLASSES))


@sound("group norm's statistics are of one image")
def cnn_with_group_norm():
    return pictures(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), *head(4))


@sound("instance norm without running statistics uses those of one image")
def cnn_with_instance_norm():
    return pictures(
        nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES)
    )


@sound("depthwise and pointwise convolutions of one image")
def depthwise_separable_cnn():
    return pictures(
        nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 8, 1), nn.ReLU(), *head(8)
    )


@sound("strides and dilation move over places, not rows")
def strided_and_dilated_cnn():
    return pictures(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 4, 2, dilation=2), nn.Flatten(), nn.Linear(4, CLASSES)
    )


@sound("transposed convolutions of one image")
def convolutional_autoencoder():
    model = nn.Sequential(nn.Conv2d(1, 4, 2, stride=2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2, stride=2))
    return Case(model, images(), lambda model, batch: (model(batch[0]) - batch[0]).square().flatten(1).mean(1))


@sound("a convolution over time of one row")
def temporal_convolution():
    model = nn.Sequential(nn.Conv1d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * WIDTH, CLASSES))
    return table_case(model, lambda model, batch: cross_entropy(model, (batch[0].unsqueeze(1), batch[1])))


@sound("a convolution in three dimensions of one volume")
def volume_cnn():
    model = nn.Sequential(nn.Conv3d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, CLASSES))
    return Case(model, (torch.randn(48, 1, 3, 3, 3), torch.arange(48) % CLASSES), cross_entropy)


@sound("squeeze and excitation weigh an image's channels by that image's means")
def squeeze_and_excitation():
    class Excite(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.up = nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            return x * torch.sigmoid(self.up(F.relu(self.down(x.mean((2, 3))))))[:, :, None, None]

    return pictures(nn.Conv2d(1, 4, 3), nn.ReLU(), Excite(), *head(4))


@sound("a U-Net joins scales of one image")
def small_u_net():
    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down, self.deep, self.out = (
                nn.Conv2d(1, 4, 3, padding=1),
                nn.Conv2d(4, 4, 3, padding=1),
                nn.Conv2d(8, 1, 1),
            )

        def forward(self, x):
            one = F.relu(self.down(x))
            two = F.interpolate(F.relu(self.deep(F.avg_pool2d(one, 2))), scale_factor=2)
            return self.out(torch.cat([one, two], 1))

    return Case(UNet(), images(), lambda m, batch: (m(batch[0]) - batch[0].abs()).square().mean((1, 2, 3)))


@sound("batch norm in eval mode uses fixed statistics")
def batch_norm_in_eval_mode():
    return table_case(stack(nn.BatchNorm1d(8), nn.ReLU()).eval())


@sound("batch norm in eval mode with statistics from public data, frozen")
def batch_norm_with_public_statistics():
    norm = nn.BatchNorm1d(8).requires_grad_(False)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    norm.eval()
    return table_case(stack(norm, nn.ReLU()))


@sound("weights are standardised, not activations")
def weight_standardisation():
    class Standardised(nn.Conv2d):
        def forward(self, x):
            w = self.weight
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 0.1)
            return F.conv2d(x, w, self.bias)

    return pictures(Standardised(1, 4, 3), nn.ReLU(), *head(4))


@sound("weight norm changes how weights are written down")
def weight_norm():
    return table_case(stack(nn.Tanh(), parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh()))


@sound("spectral norm's vectors depend on weights and on the number of steps, not on rows")
def spectral_norm():
    return table_case(stack(nn.Tanh(), parametrizations.spectral_norm(nn.Linear(8, 8)), nn.Tanh()))


@sound("the parametrisation is of the weight alone")
def symmetric_parametrisation():
    class Symmetric(nn.Module):
        def forward(self, weight):
            return weight.triu() + weight.triu(1).T

    layer = nn.Linear(8, 8)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return table_case(stack(nn.Tanh(), layer, nn.Tanh()))


@sound("an orthogonal weight, by its Cayley map")
def orthogonal_parametrisation():
    return table_case(
        stack(nn.Tanh(), parametrizations.orthogonal(nn.Linear(8, 8), orthogonal_map="cayley"), nn.Tanh())
    )


@sound("forward passes are computed again in the backward pass")
def gradient_checkpointing():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))

        def forward(self, x):
            return x + checkpoint(self.inner, x, use_reentrant=False)

    return classifier(Checkpointed(), Checkpointed())


@sound("rounding to bfloat16 is of one row")
def autocast_to_bfloat16():
    def loss(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(batch[0])
        return F.cross_entropy(out.float(), batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss, double=False)


@sound("the model is called with parameters given as a dictionary")
def functional_call():
    def loss(model, batch):
        out = torch.func.functional_call(model, dict(model.named_parameters()), (batch[0],))
        return F.cross_entropy(out, batch[1], reduction="none")

    return table_case(stack(nn.Tanh()), loss)


@sound("the encoder's weights are the decoder's, transposed")
def autoencoder_with_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(0.3 * torch.randn(3, WIDTH)), nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x):
            return torch.tanh(x @ self.weight.T) @ self.weight + self.bias

    return table_case(Tied(), lambda model, batch: (model(batch[0]) - batch[0]).square().mean(1))


@sound("random features are fixed, sines are of one row")
def fourier_features():
    return table_case(
        nn.Sequential(Lambda(lambda x: torch.cat([x.sin(), x.cos(), (3 * x).sin()], 1)), nn.Linear(15, CLASSES))
    )


@sound("splines of each feature of a row, as in Kolmogorov-Arnold networks")
def kan_like():
    class Splines(nn.Module):
        def __init__(self, width, out):
            super().__init__()
            self.register_buffer("knots", torch.linspace(-2, 2, 5))
            self.weight = nn.Parameter(0.2 * torch.randn(out, width, 5))

        def forward(self, x):
            return torch.einsum("bik,oik->bo", torch.exp(-(x.unsqueeze(2) - self.knots).square()), self.weight)

    return table_case(nn.Sequential(Splines(WIDTH, 8), Splines(8, CLASSES)))


@sound("a network makes each row's own weights from that row")
def hypernetwork():
    class Hyper(nn.Module):
        def __init__(self):
            super().__init__()
            self.make, self.head = nn.Linear(WIDTH, WIDTH * 4), nn.Linear(4, CLASSES)

        def forward(self, x):
            weight = self.make(x).unflatten(1, (WIDTH, 4))
            return self.head(torch.tanh(torch.einsum("bi,bij->bj", x, weight)))

    return table_case(Hyper())


@sound("gates are of one row, and all experts are asked")
def dense_mixture_of_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

        def forward(self, x):
            weights = self.gate(x).softmax(1)
            return torch.stack([e(x) for e in self.experts], 2).matmul(weights.unsqueeze(2)).squeeze(2)

    return table_case(Experts())


@sound("each row goes to its own best expert, and none has a limit")
def top_one_routing_without_capacity():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))

        def forward(self, x):
            scores = self.gate(x).softmax(1)
            best, chosen = scores.max(1)
            out = torch.stack([e(x) for e in self.experts], 1)
            return best.unsqueeze(1) * out[torch.arange(len(x)), chosen]

    return table_case(Experts())


@sound("rows are gathered for their expert and put back; how many it gets changes nothing for each")
def routing_by_index_add():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.experts = nn.Linear(WIDTH, 2), nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(2))

        def forward(self, x):
            best, chosen = self.gate(x).softmax(1).max(1)
            out = x.new_zeros(len(x), CLASSES)
            for k, expert in enumerate(self.experts):
                mine = (chosen == k).nonzero().squeeze(1)
                out = out.index_add(0, mine, best[mine].unsqueeze(1) * expert(x[mine]))
            return out

    return table_case(Experts())


@sound("an adapter whose B starts at zero sees its own row's features")
def lora_done_right():
    class Adapter(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(8, 8).requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)
            nn.init.zeros_(self.up.weight)

        def forward(self, x):
            return self.base(x) + 2 * self.up(self.down(x))

    model = stack(nn.Tanh(), Adapter(), nn.Tanh())
    model[0].requires_grad_(False)
    return table_case(model)


@sound("a head that starts at zero has nothing behind it but the row")
def zero_head():
    model = stack(nn.Tanh())
    nn.init.zeros_(model[-1].weight)
    return table_case(model)


@sound("a branch that starts closed has nothing behind it but the row")
def rezero():
    class ReZero(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.alpha = nn.Linear(8, 8), nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x + self.alpha * torch.tanh(self.inner(x))

    return classifier(ReZero(), ReZero())


@sound("a fixed number of iterations, whoever has converged")
def deep_equilibrium_of_fixed_length():
    class Iterate(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x):
            state = torch.zeros_like(x)
            for _ in range(4):
                state = torch.tanh(self.inner(state) + x)
            return state

    return table_case(stack(Iterate()))


@sound("a differential equation is integrated in fixed steps, each row its own")
def neural_ode():
    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

        def forward(self, x):
            for _ in range(3):
                x = x + 0.3 * self.field(x + 0.15 * self.field(x))
            return x

    return table_case(stack(Flow()))


@sound("a set's elements are pooled within one example")
def deep_sets():
    class Sets(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 8), nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.outer(torch.relu(self.inner(x)).sum(1) / math.sqrt(x.shape[1]))

    return Case(Sets(), (torch.randn(48, 4, 3), torch.arange(48) % CLASSES), cross_entropy)


@sound("messages pass between the nodes of one example's graph")
def graph_network_on_dense_graphs():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, x, edges):
            edges = edges / edges.sum(2, keepdim=True)
            x = torch.relu(edges @ self.one(x))
            return self.head((edges @ self.two(x)).mean(1))

    edges = (torch.rand(48, 5, 5) < 0.4).float() + torch.eye(5)
    data = (torch.randn(48, 5, 3), edges, table()[1])
    return Case(Graph(), data, lambda m, b: F.cross_entropy(m(b[0], b[1]), b[2], reduction="none"))
