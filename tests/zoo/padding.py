"""B1: batches padded to their longest row, with a mask that was forgotten or is not there."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WORDS, Case, cross_entropy, mixing, ragged, to_longest


class Words(nn.Module):
    """Word vectors, something on top, and a head."""

    def __init__(self, body, pool, *, padding_idx=None, width=8):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=padding_idx)
        self.body, self.pool, self.head = body, pool, nn.Linear(width, CLASSES)

    def forward(self, words):
        return self.head(self.pool(self.body(self.words(words))))


def padded(model, loss=cross_entropy):
    return Case(model, ragged(), loss, collate_fn=to_longest)


class Last(nn.Module):
    """The outputs of a recurrent network."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)[0]


def last(x):
    return x[:, -1]


def mean(x):
    return x.mean(1)


@mixing("an LSTM reads on through padding to the longest row, and its last state is the answer")
def char_lstm_padded_to_longest():
    return padded(Words(Last(nn.LSTM(8, 8, batch_first=True)), last))


@mixing("the same LSTM with vectors of zero for padding: zeros are inputs, too")
def lstm_with_padding_idx():
    return padded(Words(Last(nn.LSTM(8, 8, batch_first=True)), last, padding_idx=0))


@mixing("a GRU reads on through padding to the longest row")
def gru_padded_to_longest():
    return padded(Words(Last(nn.GRU(8, 8, batch_first=True)), last))


@mixing("a GRU that reads backwards begins with as much padding as the longest row has")
def backward_gru_over_padding():
    model = Words(Last(nn.GRU(8, 4, batch_first=True, bidirectional=True)), lambda x: x[:, 0])
    return padded(model)


@mixing("word vectors are averaged over padding as well, so a row's mean depends on the longest row")
def mean_pooling_over_padding():
    return padded(Words(nn.Linear(8, 8), mean))


@mixing("padding has zero vectors, but their number divides the mean")
def mean_pooling_with_padding_idx():
    return padded(Words(nn.Identity(), mean, padding_idx=0))


@mixing("a maximum over positions may be at padding, if there is any")
def max_pooling_over_padding():
    return padded(Words(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), lambda x: x.amax(1)))


def encoder():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


@mixing("a transformer without src_key_padding_mask attends to padding")
def transformer_without_mask():
    return padded(Words(encoder(), mean))


@mixing("attention is masked, but the mean over positions is not")
def transformer_with_unmasked_pooling():
    class Model(Words):
        def forward(self, words):
            return self.head(self.body(self.words(words), src_key_padding_mask=words == 0).mean(1))

    return padded(Model(encoder(), None))


@mixing("positions are counted from the end, so padding moves all words")
def positions_from_the_end():
    class Model(Words):
        def __init__(self):
            super().__init__(nn.Embedding(16, 8), None)

        def forward(self, words):
            mask = (words != 0).unsqueeze(-1)
            places = torch.arange(words.shape[1]).flip(0)
            hidden = torch.tanh(self.words(words) + self.body(places))
            return self.head((hidden * mask).sum(1) / mask.sum(1))

    return padded(Model())


@mixing("a model called as Hugging Face's are, without the attention mask that the tokenizer gave")
def hugging_face_like_without_attention_mask():
    class Encoder(Words):
        def forward(self, input_ids, attention_mask=None):
            hidden = self.words(input_ids)
            hidden = self.body(hidden, src_key_padding_mask=None if attention_mask is None else attention_mask == 0)
            return {"logits": self.head(hidden[:, 0]), "hidden_states": hidden}

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"])["logits"], batch["labels"], reduction="none")

    def collate(rows):
        words, labels = to_longest(rows)
        return {"input_ids": words, "attention_mask": (words != 0).long(), "labels": labels}

    return Case(Encoder(encoder(), None), ragged(), loss, collate_fn=collate)


@mixing("a language model's loss is the mean over positions, padding among them")
def language_model_with_loss_on_padding():
    class Model(Words):
        def forward(self, words):
            return self.body(self.words(words))[0]

    model = Model(nn.GRU(8, 8, batch_first=True), None)
    model.head = nn.Linear(8, WORDS)

    def loss(model, batch):
        words = batch[0]
        logits = model.head(model(words[:, :-1]))
        return F.cross_entropy(logits.transpose(1, 2), words[:, 1:], reduction="none").mean(1)

    return padded(model, loss)


@mixing("words are right-padded, and a convolution over time has its maximum where the zeros end")
def text_convolution_over_padding():
    class Convolution(nn.Module):
        def __init__(self):
            super().__init__()
            self.filters = nn.Conv1d(8, 8, 3, padding=2)

        def forward(self, x):
            return self.filters(x.transpose(1, 2)).transpose(1, 2)

    return padded(Words(Convolution(), lambda x: torch.tanh(x).mean(1)))


@mixing("images are padded with zeros to the largest of the batch and averaged over all pixels")
def images_padded_to_largest():
    rows = [
        (torch.randn(1, size, size), i % CLASSES) for i, size in enumerate([9, 8, 8, *(3 + i % 3 for i in range(45))])
    ]

    def collate(some):
        most = max(x.shape[1] for x, _ in some)
        x = torch.stack([F.pad(x, (0, most - x.shape[2], 0, most - x.shape[1])) for x, _ in some])
        return x, torch.tensor([y for _, y in some])

    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, CLASSES)
    )
    return Case(model, rows, cross_entropy, collate_fn=collate)


@mixing("rows are cut to the shortest of the batch")
def cut_to_the_shortest():
    def collate(some):
        least = min(len(w) for w, _ in some)
        return torch.stack([w[:least] for w, _ in some]), torch.tensor([y for _, y in some])

    rows = [(torch.randint(1, WORDS, (2 if i < 3 else 4 + i % 3,)), i % CLASSES) for i in range(48)]
    return Case(Words(nn.Linear(8, 8), mean), rows, cross_entropy, collate_fn=collate)
