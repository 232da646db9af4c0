"""B4: what is done to inputs, labels or weights before or beside the model."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WIDTH, Case, cross_entropy, images, mixing, stack, table, table_case


def weigh(shape=0.4):
    return float(torch.distributions.Beta(shape, shape).sample())


@mixing("mixup in the loop: a row's input is blended with another's")
def mixup_of_inputs():
    def loss(model, batch):
        x, y = batch
        order = torch.randperm(len(x))
        share = 0.7
        out = model(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y, reduction="none") + (1 - share) * F.cross_entropy(
            out, y[order], reduction="none"
        )

    return table_case(stack(nn.Tanh()), loss)


@mixing("mixup with a coefficient by Beta's law, from torch's generator")
def mixup_with_beta_coefficient():
    def loss(model, batch):
        x, y = batch
        share = weigh()
        targets = F.one_hot(y, CLASSES).to(x.dtype)
        out = model(share * x + (1 - share) * x.flip(0))
        return -((share * targets + (1 - share) * targets.flip(0)) * out.log_softmax(1)).sum(1)

    return table_case(stack(nn.Tanh()), loss)


@mixing("only labels are blended with those of other rows")
def mixup_of_labels():
    def loss(model, batch):
        x, y = batch
        targets = F.one_hot(y, CLASSES).to(x.dtype)
        return -((0.5 * targets + 0.5 * targets.roll(1, 0)) * model(x).log_softmax(1)).sum(1)

    return table_case(stack(nn.Tanh()), loss)


@mixing("manifold mixup: hidden features are blended with those of other rows")
def manifold_mixup():
    def loss(model, batch):
        x, y = batch
        hidden = model[0](x)
        hidden = 0.6 * hidden + 0.4 * hidden.detach().roll(1, 0)
        return F.cross_entropy(model[1:](hidden), y, reduction="none")

    return table_case(stack(nn.Tanh()), loss)


@mixing("cutmix: a patch of each image is another image's")
def cutmix():
    def loss(model, batch):
        x, y = batch
        patched = x.clone()
        patched[:, :, 2:5, 2:5] = x.roll(1, 0)[:, :, 2:5, 2:5]
        return F.cross_entropy(model(patched), y, reduction="none")

    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, CLASSES))
    return Case(model, images(), loss)


@mixing("fit(augment=) blends each input with another of the batch")
def augment_that_blends():
    return table_case(stack(nn.Tanh()), augment=lambda x: 0.6 * x + 0.4 * x[torch.randperm(len(x))])


@mixing("fit(augment=) subtracts the batch's mean")
def augment_that_centres():
    return table_case(stack(nn.Tanh()), augment=lambda x: x - x.mean(0))


@mixing("fit(augment=) adds noise as large as the batch's deviation")
def augment_with_noise_of_the_batchs_size():
    return table_case(stack(nn.Tanh()), augment=lambda x: x + torch.randn_like(x) * x.std(0))


@mixing("negatives are the inputs of the next row")
def rolled_inputs_as_negatives():
    def loss(model, batch):
        x = batch[0]
        near, far = model(x + 0.1), model(x.roll(1, 0))
        mine = model(x)
        return F.softplus((mine * far).sum(1) - (mine * near).sum(1))

    return table_case(stack(nn.Tanh()), loss)


@mixing("negatives are a permutation of the batch")
def permuted_inputs_as_negatives():
    def loss(model, batch):
        x = batch[0]
        order = torch.randperm(len(x))
        return F.relu(1 + (model(x) - model(x + 0.1)).square().sum(1) - (model(x) - model(x[order])).square().sum(1))

    return table_case(stack(nn.Tanh()), loss)


@mixing("pairs are made of neighbouring rows of the batch")
def pairs_of_neighbouring_rows():
    def loss(model, batch):
        x, y = batch
        out = model(x)
        same = (y == y.roll(1, 0)).to(x.dtype)
        gap = (out - out.detach().roll(1, 0)).square().sum(1)
        return same * gap + (1 - same) * F.relu(2 - gap)

    return table_case(stack(nn.Tanh()), loss)


class Weighing(nn.Module):
    """Computes its own loss, as models with forward(x, labels) do."""

    def __init__(self, weights):
        super().__init__()
        self.net, self.weights = stack(nn.Tanh()), weights

    def forward(self, x, labels):
        return F.cross_entropy(self.net(x), labels, reduction="none") * self.weights(labels, x)


def own_loss(model, batch):
    return model(*batch)


@mixing("forward(x, labels) weighs classes by how rare they are in the batch")
def class_weights_of_the_batch_in_forward():
    def weights(labels, x):
        counts = torch.bincount(labels, minlength=CLASSES).to(x.dtype)
        return (len(labels) / counts.clamp(min=1))[labels]

    return table_case(Weighing(weights), own_loss)


@mixing("forward(x, labels) divides by the number of rows that have the first class")
def number_of_positives_in_forward():
    return table_case(Weighing(lambda labels, x: 1 / (1 + (labels == 0).sum())), own_loss)


@mixing("forward(x, labels) shifts logits by the logarithm of the batch's class frequencies")
def logit_adjustment_by_batch_frequencies():
    class Adjusted(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = stack(nn.Tanh())

        def forward(self, x, labels):
            frequency = F.one_hot(labels, CLASSES).to(x.dtype).mean(0)
            return F.cross_entropy(self.net(x) + (frequency + 0.01).log(), labels, reduction="none")

    return table_case(Adjusted(), own_loss)


@mixing("class weights of the batch are computed in the loop and given to cross_entropy")
def class_weights_of_the_batch_in_the_loop():
    def loss(model, batch):
        x, y = batch
        counts = torch.bincount(y, minlength=CLASSES).to(x.dtype)
        return F.cross_entropy(model(x), y, weight=1 / (1 + counts), reduction="none")

    return table_case(stack(nn.Tanh()), loss)


@mixing("the collate function standardises inputs by the batch")
def collate_that_standardises():
    def collate(rows):
        x = torch.stack([r for r, _ in rows])
        return (x - x.mean(0)) / (x.std(0) + 0.1), torch.stack([y for _, y in rows])

    return Case(stack(nn.Tanh()), table(), cross_entropy, collate_fn=collate)


@mixing("the collate function sorts rows by size and tells each its place")
def collate_that_ranks():
    def collate(rows):
        rows = sorted(rows, key=lambda r: float(r[0].norm()))
        x = torch.stack([r for r, _ in rows])
        x = torch.cat([x[:, : WIDTH - 1], torch.arange(len(rows)).to(x.dtype).unsqueeze(1)], 1)
        return x, torch.stack([y for _, y in rows])

    return Case(stack(nn.Tanh()), table(), cross_entropy, collate_fn=collate)


@mixing("every other row of the batch gets the adversarial direction of the row before it")
def adversarial_direction_of_another_row():
    def loss(model, batch):
        x, y = batch
        probe = x.detach().clone().requires_grad_()
        (direction,) = torch.autograd.grad(F.cross_entropy(model(probe), y, reduction="sum"), probe)
        return F.cross_entropy(model(x + 0.3 * direction.sign().roll(1, 0)), y, reduction="none")

    return table_case(stack(nn.Tanh()), loss)
