"""Randomness that is sound: drawn for a row, or for the whole batch by a coin that no row can move."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, Case, Lambda, classifier, cross_entropy, images, sound, stack, table_case, values


@sound("each number is dropped by a coin of its own")
def dropout():
    return classifier(nn.ReLU(), nn.Dropout(0.3))


@sound("each channel of each image is dropped by a coin of its own")
def channel_dropout():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
    return Case(model, images(), cross_entropy)


@sound("dropout that keeps mean and variance, by coins of its own")
def alpha_dropout():
    return classifier(nn.SELU(), nn.AlphaDropout(0.2))


@sound("one mask for the whole batch, drawn whoever is in it")
def dropout_mask_shared_by_the_batch():
    return classifier(nn.ReLU(), Lambda(lambda x: x * (torch.rand(x.shape[1]) < 0.7).to(x.dtype)))


@sound("one mask of the weights for the whole batch (DropConnect)")
def dropped_weights_shared_by_the_batch():
    class Connect(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x):
            keep = (torch.rand(8, 8) < 0.7).to(x.dtype)
            return F.linear(x, self.layer.weight * keep, self.layer.bias)

    return classifier(Connect(), nn.ReLU())


class Depth(nn.Module):
    """A residual branch that is skipped by a coin: one for the batch, or one for each row."""

    def __init__(self, each):
        super().__init__()
        self.inner, self.each = nn.Linear(8, 8), each

    def forward(self, x):
        coin = (torch.rand(len(x) if self.each else 1, 1) < 0.6).to(x.dtype)
        return x + coin * torch.tanh(self.inner(x))


@sound("a branch is skipped by a coin of each row")
def stochastic_depth_of_each_row():
    return classifier(Depth(each=True), Depth(each=True))


@sound("a branch is skipped by one coin for the batch")
def stochastic_depth_of_the_batch():
    return classifier(Depth(each=False), Depth(each=False))


@sound("which layers run is decided by a coin before rows are looked at")
def layer_drop():
    class Drop(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if float(torch.rand(1)) < 0.7:
                    x = torch.tanh(layer(x))
            return x

    return classifier(Drop())


@sound("noise on inputs is drawn for each row")
def noise_on_inputs():
    return table_case(stack(nn.Tanh()), augment=lambda x: x + 0.3 * torch.randn_like(x))


@sound("features are mirrored by a coin of each row, as fit(augment=) does")
def augmentation_of_each_row():
    def flip(x):
        return torch.where((torch.rand(len(x)) < 0.5)[:, None, None, None], x.flip(3), x)

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
    return Case(model, images(), cross_entropy, augment=flip)


@sound("one scale for all inputs of a batch, drawn whoever is in it")
def augmentation_shared_by_the_batch():
    return table_case(stack(nn.Tanh()), augment=lambda x: x * (0.5 + torch.rand(1).to(x.dtype)))


@sound("cutout: one square of zeros, at a random place, in every image")
def cutout():
    def cut(x):
        at = int(torch.randint(5, (1,)))
        mask = torch.ones_like(x[0])
        mask[:, at : at + 3, at : at + 3] = 0
        return x * mask

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
    return Case(model, images(), cross_entropy, augment=cut)


@sound("a variational autoencoder draws noise for each row")
def variational_autoencoder():
    class Vae(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode, self.decode = nn.Linear(WIDTH, 4), nn.Linear(2, WIDTH)

        def forward(self, x):
            mean, log = self.encode(x).chunk(2, 1)
            log = log.clamp(-4, 4)
            out = self.decode(mean + torch.randn_like(mean) * (log / 2).exp())
            return (out - x).square().sum(1) + (mean.square() + log.exp() - log - 1).sum(1) / 2

    return table_case(Vae(), lambda model, batch: model(batch[0]))


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH + 1, 16), nn.ReLU(), nn.Linear(16, WIDTH))

    def forward(self, x, level):
        return self.net(torch.cat([x, level], 1))


@sound("diffusion: noise and its level are drawn for each row")
def diffusion_with_levels_of_each_row():
    def loss(model, batch):
        x = batch[0]
        level, noise = torch.rand(len(x), 1).to(x.dtype), torch.randn_like(x)
        return (model((1 - level) * x + level * noise, level) - noise).square().mean(1)

    return table_case(Denoiser(), loss)


@sound("flow matching with one time for the whole batch, drawn whoever is in it")
def flow_matching_with_one_time():
    def loss(model, batch):
        x = batch[0]
        time, noise = torch.rand(1, 1).to(x.dtype).expand(len(x), 1), torch.randn_like(x)
        return (model((1 - time) * noise + time * x, time) - (x - noise)).square().mean(1)

    return table_case(Denoiser(), loss)


@sound("masked features are chosen for each row and predicted")
def masked_autoencoder():
    def loss(model, batch):
        x = batch[0]
        hidden = (torch.rand(x.shape) < 0.4).to(x.dtype)
        return ((model(x * (1 - hidden)) - x).square() * hidden).sum(1)

    return table_case(stack(nn.Tanh(), out=WIDTH), loss)


@sound("Gumbel noise is drawn for each row, and the choice is of the row")
def gumbel_softmax():
    return classifier(Lambda(lambda x: F.gumbel_softmax(x, tau=0.7)))


@sound("weights are drawn anew for each batch, the same for all rows (Bayes by backprop)")
def bayesian_layer():
    class Bayes(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log = nn.Parameter(0.3 * torch.randn(8, 8)), nn.Parameter(torch.full((8, 8), -2.0))

        def forward(self, x):
            weight = self.mean + self.log.exp() * torch.randn(8, 8).to(x.dtype)
            return x @ weight.T

    return classifier(Bayes(), nn.Tanh())


@sound("the local reparametrisation draws for each row")
def local_reparametrisation():
    class Local(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log = nn.Parameter(0.3 * torch.randn(8, 8)), nn.Parameter(torch.full((8, 8), -2.0))

        def forward(self, x):
            size = (x.square() @ (2 * self.log).exp().T + 1e-6).sqrt()
            return x @ self.mean.T + size * torch.randn_like(size)

    return classifier(Local(), nn.Tanh())


@sound("an action is drawn for each row, and rewarded by that row")
def policy_gradient():
    def loss(model, batch):
        logits = model(batch[0])
        action = torch.multinomial(logits.detach().softmax(1), 1).squeeze(1)
        reward = (action == batch[1]).to(logits.dtype) - 0.3
        return -reward * logits.log_softmax(1)[torch.arange(len(action)), action]

    return table_case(stack(nn.Tanh()), loss)


@sound("an average over random projections, the same for all rows")
def random_projections():
    def loss(model, batch):
        x, y = batch
        directions = torch.randn(3, WIDTH).to(x.dtype)
        return sum((model(x * d).squeeze(1) - y).square() for d in directions) / 3

    return Case(stack(nn.Tanh(), out=1), values(), loss)


@sound("attention's dropout is drawn for each row")
def transformer_with_dropout():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)

        def forward(self, words):
            return self.head(self.layer(self.words(words)).mean(1))

    return Case(Model(), (torch.randint(11, (48, 5)), torch.arange(48) % CLASSES), cross_entropy)
