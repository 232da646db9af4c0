"""Losses in which rows of one batch meet."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WORDS, Case, cross_entropy, mixing, ragged, stack, table_case, to_longest


def on_logits(function):
    """`function(out, y)` of a small network's outputs."""

    def loss(model, batch):
        return function(model(batch[0]), batch[1])

    return table_case(stack(nn.Tanh()), loss)


def on_losses(function):
    """`function(losses)` of a small network's cross-entropies, one for each row."""
    return table_case(stack(nn.Tanh()), lambda model, batch: function(cross_entropy(model, batch)))


def on_views(function):
    """`function(a, b)` of two views of each row."""

    def loss(model, batch):
        x = batch[0]
        return function(model(x), model(x + 0.1 * torch.randn_like(x)))

    return table_case(stack(nn.Tanh(), out=4), loss)


def indices(x):
    return torch.arange(len(x))


@mixing("CLIP: other rows of the batch are the negatives")
def clip_in_batch_negatives():
    def loss(a, b):
        logits = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.2
        return (
            F.cross_entropy(logits, indices(a), reduction="none")
            + F.cross_entropy(logits.T, indices(a), reduction="none")
        ) / 2

    return on_views(loss)


@mixing("SimCLR: other rows' views are the negatives")
def simclr():
    def loss(a, b):
        both = F.normalize(torch.cat([a, b]), dim=1)
        logits = (both @ both.T / 0.2).masked_fill(torch.eye(2 * len(a), dtype=torch.bool), -1e9)
        target = torch.cat([indices(a) + len(a), indices(a)])
        return F.cross_entropy(logits, target, reduction="none").view(2, -1).mean(0)

    return on_views(loss)


@mixing("CLIP with detached negatives: gradients of others do not flow, their values count")
def clip_with_detached_negatives():
    def loss(a, b):
        return F.cross_entropy(
            F.normalize(a, dim=1) @ F.normalize(b, dim=1).detach().T / 0.2, indices(a), reduction="none"
        )

    return on_views(loss)


@mixing("the hardest negative of the batch is the nearest row of another class")
def hard_negative_mining():
    def loss(out, y):
        gaps = torch.cdist(out, out.detach()) + 1e6 * (y[:, None] == y)
        return F.relu(1 - gaps.min(1).values)

    return on_logits(loss)


@mixing("batch-hard triplets: farthest positive and nearest negative of the batch")
def batch_hard_triplets():
    def loss(out, y):
        gaps = (out[:, None] - out.detach()[None]).square().sum(2)
        same = y[:, None] == y
        return F.softplus((gaps * same).max(1).values - (gaps + 1e6 * same).min(1).values)

    return on_logits(loss)


@mixing("supervised contrastive loss: positives and negatives are rows of the batch")
def supervised_contrastive():
    def loss(out, y):
        z = F.normalize(out, dim=1)
        logits = (z @ z.T / 0.3) - 1e9 * torch.eye(len(z), dtype=z.dtype)
        same = (y[:, None] == y) & ~torch.eye(len(z), dtype=torch.bool)
        return -(logits.log_softmax(1) * same).sum(1) / same.sum(1).clamp(min=1)

    return on_logits(loss)


@mixing("Barlow twins: the correlation matrix is of the batch")
def barlow_twins():
    def loss(a, b):
        a, b = (a - a.mean(0)) / (a.std(0) + 0.1), (b - b.mean(0)) / (b.std(0) + 0.1)
        gap = a.T @ b / len(a) - torch.eye(a.shape[1], dtype=a.dtype)
        return gap.square().sum() / len(a) + 0 * a.sum(1)

    return on_views(loss)


@mixing("VICReg: variance and covariance are of the batch")
def vicreg():
    def loss(a, b):
        variance = F.relu(1 - (a.var(0) + 1e-3).sqrt()).sum()
        centred = a - a.mean(0)
        covariance = (centred.T @ centred / len(a)).square().sum()
        return (a - b).square().sum(1) + variance / len(a) + 0.1 * covariance / len(a)

    return on_views(loss)


@mixing("a spectral penalty: singular values of the batch's features")
def spectral_penalty_of_features():
    return on_logits(
        lambda out, y: (
            F.cross_entropy(out, y, reduction="none")
            + (out - out.detach() + out.detach()).norm(dim=1) * torch.linalg.matrix_norm(out.detach(), 2)
        )
    )


@mixing("the temperature is the spread of the batch's logits")
def batch_dependent_temperature():
    return on_logits(lambda out, y: F.cross_entropy(out / (0.1 + out.detach().std()), y, reduction="none"))


@mixing("OHEM: only the batch's three largest losses count")
def hard_example_top_k():
    return on_losses(lambda losses: losses * (losses >= losses.detach().topk(3).values[-1]))


@mixing("a curriculum: losses far above the batch's median count little")
def curriculum_by_batch_median():
    return on_losses(lambda losses: losses * torch.sigmoid(9 * (losses.detach().median() - losses.detach())))


@mixing("losses are weighted by their rank in the batch")
def weights_by_rank():
    return on_losses(lambda losses: losses * (1 + losses.detach().argsort().argsort()))


@mixing("losses are clipped at a quantile of the batch")
def losses_clipped_at_a_quantile():
    return on_losses(lambda losses: torch.minimum(losses, losses.detach().quantile(0.6)))


@mixing("a softmax over the batch weighs rows, as in tilted losses")
def tilted_weights():
    return on_losses(lambda losses: losses * len(losses) * torch.softmax(3 * losses.detach(), 0))


@mixing("losses are standardised by the batch")
def standardised_losses():
    return on_losses(lambda losses: losses / (losses.detach().std() + 0.05))


@mixing("a running maximum over the rows of the batch")
def running_maximum_over_the_batch():
    return on_losses(lambda losses: losses * losses.detach().cummax(0).values)


@mixing("every loss is the batch's mean plus a little of its own")
def blend_with_the_mean_loss():
    return on_losses(lambda losses: 0.1 * losses + 0.9 * losses.mean())


@mixing("losses are divided by the number of rows, which tells whether one is there")
def divided_by_the_number_of_rows():
    return on_losses(lambda losses: losses / len(losses))


@mixing("two groups of the batch: the worse one's rows count, as in group DRO")
def worst_group_of_the_batch():
    def loss(out, y):
        losses = F.cross_entropy(out, y, reduction="none")
        groups = torch.stack([(losses * (y == c)).sum() / (y == c).sum().clamp(min=1) for c in range(CLASSES)])
        return losses * (y == groups.argmax())

    return on_logits(loss)


@mixing("advantages are standardised by the batch")
def standardised_advantages():
    def loss(model, batch):
        x, y = batch
        returns = x.sum(1)
        advantages = (returns - returns.mean()) / (returns.std() + 0.1)
        return -advantages * model(x).log_softmax(1)[indices(y), y]

    return table_case(stack(nn.Tanh()), loss)


@mixing("a baseline for returns is the mean of the other rows")
def leave_one_out_baseline():
    def loss(model, batch):
        x, y = batch
        returns = x.sum(1)
        baseline = (returns.sum() - returns) / (len(returns) - 1)
        return -(returns - baseline) * model(x).log_softmax(1)[indices(y), y]

    return table_case(stack(nn.Tanh()), loss)


@mixing("focal loss is divided by the number of positives in the batch")
def focal_loss_by_number_of_positives():
    def loss(out, y):
        target = F.one_hot(y, CLASSES).to(out.dtype)
        p = out.sigmoid()
        focal = (p - target).abs().square() * F.binary_cross_entropy_with_logits(out, target, reduction="none")
        return focal.sum(1) / (y == 1).sum().clamp(min=1)

    return on_logits(loss)


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(WORDS, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, WORDS)

    def forward(self, words):
        return self.head(self.cell(self.words(words))[0])


@mixing("a language model's losses are divided by the number of words in the batch")
def divided_by_words_of_the_batch():
    def loss(model, batch):
        words = batch[0]
        each = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], reduction="none")
        mask = words[:, 1:] != 0
        return (each * mask).sum(1) / mask.sum()

    return Case(WordModel(), ragged(), loss, collate_fn=to_longest)


@mixing("labels are smoothed by the batch's class frequencies")
def smoothing_by_batch_frequencies():
    def loss(out, y):
        hot = F.one_hot(y, CLASSES).to(out.dtype)
        return -((0.6 * hot + 0.4 * hot.mean(0)) * out.log_softmax(1)).sum(1)

    return on_logits(loss)


@mixing("a gradient penalty on points between two rows of the batch")
def gradient_penalty_across_pairs():
    def loss(model, batch):
        x, y = batch
        between = (0.5 * x + 0.5 * x.roll(1, 0)).requires_grad_()
        (slope,) = torch.autograd.grad(model(between).square().sum(), between, create_graph=True)
        return F.cross_entropy(model(x), y, reduction="none") + (slope.norm(dim=1) - 1).square()

    return table_case(stack(nn.Tanh()), loss)


@mixing("maximum mean discrepancy between halves of the batch")
def discrepancy_between_halves():
    def loss(out, y):
        half = len(out) // 2
        gap = (out[:half].mean(0) - out[half:].mean(0)).square().sum()
        return F.cross_entropy(out, y, reduction="none") + gap

    return on_logits(loss)


@mixing("targets are sharpened by the batch's class totals (DINO, SwAV by Sinkhorn)")
def sinkhorn_targets():
    def loss(a, b):
        q = torch.exp(b.detach())
        for _ in range(3):
            q = q / q.sum(0, keepdim=True)
            q = q / q.sum(1, keepdim=True)
        return -(q * a.log_softmax(1)).sum(1)

    return on_views(loss)


@mixing("pseudo-labels are taken where confidence is above the batch's mean")
def pseudo_labels_above_mean_confidence():
    def loss(out, y):
        sure, guess = out.detach().softmax(1).max(1)
        return F.cross_entropy(out, guess, reduction="none") * (sure > sure.mean())

    return on_logits(loss)


@mixing("an AUC surrogate: each row is compared with all rows of other classes")
def pairwise_ranking():
    def loss(out, y):
        score = out[:, 0]
        gaps = F.softplus(score.detach()[None] - score[:, None])
        return (gaps * (y[:, None] != y)).mean(1)

    return on_logits(loss)
