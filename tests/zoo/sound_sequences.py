"""Sequences that are sound: right masks, fixed lengths, state that begins anew with each row."""

import torch
from torch import nn
from torch.nn import functional as F

from zoo.cases import CLASSES, WORDS, Case, cross_entropy, ragged, sentences, sound, to_fixed, to_longest

MASKED = "rows are padded to the batch's longest, and masks leave padding out"
FIXED = "rows are padded to one length, whatever the batch"


class Words(nn.Module):
    """Word vectors, a head, and what is between them in `encode(vectors, mask)`, which gives a vector for each row."""

    def __init__(self, width=8):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, width), nn.Linear(width, CLASSES)

    def encode(self, x, mask):
        return (x * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)

    def forward(self, words):
        return self.head(self.encode(self.words(words), words != 0))


def longest(model, loss=cross_entropy, **rest):
    return Case(model, ragged(), loss, collate_fn=to_longest, **rest)


def fixed(model, loss=cross_entropy, **rest):
    return Case(model, ragged(), loss, collate_fn=to_fixed, **rest)


@sound(MASKED)
def masked_mean_of_words():
    return longest(Words())


@sound(MASKED)
def masked_maximum_of_words():
    class Model(Words):
        def encode(self, x, mask):
            return x.masked_fill(~mask.unsqueeze(2), -1e4).amax(1).clamp(min=-9)

    return longest(Model())


class Recurrent(Words):
    """Takes the state at each row's last word."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def encode(self, x, mask):
        out = self.network(x)[0]
        at = (mask.sum(1) - 1).clamp(min=0)
        return out[torch.arange(len(out)), at]


@sound("an LSTM's state is read at each row's own last word; padding after it changes nothing")
def lstm_read_at_the_last_word():
    return longest(Recurrent(nn.LSTM(8, 8, batch_first=True)))


@sound("a GRU's state is read at each row's own last word")
def gru_read_at_the_last_word():
    return longest(Recurrent(nn.GRU(8, 8, batch_first=True)))


@sound("two layers, read at each row's own last word")
def two_layer_rnn_read_at_the_last_word():
    return longest(Recurrent(nn.RNN(8, 8, num_layers=2, batch_first=True)))


@sound(FIXED)
def lstm_over_fixed_length():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(8, 8, batch_first=True)

        def encode(self, x, mask):
            return self.cell(x)[0][:, -1]

    return fixed(Model())


@sound("rows are all of one length, and the sequence comes first as torch has it")
def lstm_with_the_sequence_first():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.cell = nn.LSTM(8, 8)

        def encode(self, x, mask):
            return self.cell(x.transpose(0, 1))[0][-1]

    return Case(Model(), sentences(), cross_entropy)


@sound("cells written as a loop, with the state kept where a row has ended")
def gru_cell_with_a_masked_loop():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(8, 8)

        def encode(self, x, mask):
            state = x.new_zeros(len(x), 8)
            for t in range(x.shape[1]):
                state = torch.where(mask[:, t : t + 1], self.cell(x[:, t], state), state)
            return state

    return longest(Model())


def encoder(dropout=0.0, **rest):
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True, **rest)


class Transformer(Words):
    def __init__(self, layer, places=None):
        super().__init__()
        self.layer, self.places = layer, places

    def encode(self, x, mask):
        if self.places is not None:
            x = x + self.places(torch.arange(x.shape[1]))
        x = self.layer(x, src_key_padding_mask=~mask)
        return super().encode(x, mask)


@sound(MASKED)
def transformer_with_its_mask():
    return longest(Transformer(encoder()))


@sound("positions are counted from the start, so padding moves none")
def transformer_with_learned_positions():
    return longest(Transformer(encoder(norm_first=True), nn.Embedding(16, 8)))


@sound(FIXED)
def transformer_over_fixed_length():
    return fixed(Transformer(encoder(), nn.Embedding(9, 8)))


@sound("a first word of its own gathers the row, with padding masked")
def transformer_with_a_class_token():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.token, self.layer = nn.Parameter(torch.randn(1, 1, 8)), encoder()

        def encode(self, x, mask):
            x = torch.cat([self.token.expand(len(x), 1, 8), x], 1)
            mask = F.pad(mask, (1, 0), value=True)
            return self.layer(x, src_key_padding_mask=~mask)[:, 0]

    return longest(Model())


@sound("a causal model's word sees none after it, so padding at the end is not seen")
def causal_language_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.layer = nn.Embedding(WORDS, 8), encoder()
            self.head = nn.Linear(8, WORDS, bias=False)
            self.head.weight = self.words.weight

        def forward(self, words):
            mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1], dtype=self.words.weight.dtype)
            return self.head(self.layer(self.words(words), src_mask=mask, is_causal=True))

    def loss(model, batch):
        words = batch[0]
        each = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], ignore_index=0, reduction="none")
        return each.sum(1) / (words[:, 1:] != 0).sum(1).clamp(min=1)

    return longest(Model(), loss)


@sound("losses are summed over a row's own words, and divided by a constant")
def language_model_divided_by_a_constant():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.cell, self.head = (
                nn.Embedding(WORDS, 8),
                nn.GRU(8, 8, batch_first=True),
                nn.Linear(8, WORDS),
            )

        def forward(self, words):
            return self.head(self.cell(self.words(words))[0])

    def loss(model, batch):
        words = batch[0]
        each = F.cross_entropy(model(words[:, :-1]).transpose(1, 2), words[:, 1:], ignore_index=0, reduction="none")
        return each.sum(1) / 9

    return longest(Model(), loss)


@sound("a model called as Hugging Face's are, with the attention mask, returning a dictionary")
def hugging_face_like_with_attention_mask():
    class Encoder(Transformer):
        def forward(self, input_ids, attention_mask):
            hidden = self.layer(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
            return {"logits": self.head(hidden[:, 0])}

    def loss(model, batch):
        out = model(batch["input_ids"], batch["attention_mask"])
        return F.cross_entropy(out["logits"], batch["labels"], reduction="none")

    def collate(rows):
        words, labels = to_longest(rows)
        mask = (words != 0).long()
        mask[:, 0] = 1
        return {"input_ids": words, "attention_mask": mask, "labels": labels}

    return Case(Encoder(encoder()), ragged(), loss, collate_fn=collate)


@sound("scaled dot products with a mask of one's own")
def attention_by_hand():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.all = nn.Linear(8, 24)

        def encode(self, x, mask):
            q, k, v = self.all(x).chunk(3, 2)
            allowed = mask[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool)
            return super().encode(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed), mask)

    return longest(Model())


@sound("attention pools a row's own words, padding left out")
def attention_pooling():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.score = nn.Linear(8, 1)

        def encode(self, x, mask):
            weights = self.score(x).squeeze(2).masked_fill(~mask, -1e9).softmax(1)
            return (weights.unsqueeze(2) * x).sum(1)

    return longest(Model())


@sound("an encoder's words are attended to by a decoder, both masked")
def encoder_and_decoder():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.layer = encoder()
            self.decoder = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def encode(self, x, mask):
            memory = self.layer(x, src_key_padding_mask=~mask)
            return self.decoder(x[:, :2], memory, memory_key_padding_mask=~mask)[:, 0]

    return longest(Model())


@sound("rotary angles are kept by length, and depend on nothing else")
def rotary_cache():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.all, self.cache = nn.Linear(8, 24), {}

        def angles(self, length, dtype):
            if length not in self.cache:
                at = torch.arange(length, dtype=dtype)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.03], dtype=dtype)
                self.cache[length] = (at.cos(), at.sin())
            return self.cache[length]

        def turned(self, x):
            cos, sin = self.angles(x.shape[1], x.dtype)
            a, b = x.chunk(2, 2)
            return torch.cat([a * cos - b * sin, a * sin + b * cos], 2)

        def encode(self, x, mask):
            q, k, v = self.all(x).chunk(3, 2)
            allowed = mask[:, None, :] | torch.eye(x.shape[1], dtype=torch.bool)
            out = F.scaled_dot_product_attention(self.turned(q), self.turned(k), v, attn_mask=allowed)
            return super().encode(out, mask)

    return Case(Model(), sentences(), cross_entropy)


@sound("a causal mask is built when a length is first seen, and kept")
def causal_mask_kept_as_a_buffer():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.layer = encoder()
            self.register_buffer("mask", None, persistent=False)

        def encode(self, x, mask):
            if self.mask is None or len(self.mask) < x.shape[1]:
                self.mask = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
            return self.layer(x, src_mask=self.mask[: x.shape[1], : x.shape[1]])[:, -1]

    return Case(Model(), sentences(), cross_entropy)


@sound("a causal convolution looks back only, and is read at each row's last word")
def causal_convolution():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.filters = nn.Conv1d(8, 8, 3)

        def encode(self, x, mask):
            out = self.filters(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
            return torch.tanh(out)[torch.arange(len(x)), (mask.sum(1) - 1).clamp(min=0)]

    return longest(Model())


@sound("a state space model scans one row")
def diagonal_state_space():
    class Model(Words):
        def __init__(self):
            super().__init__()
            self.decay = nn.Parameter(torch.zeros(8))

        def encode(self, x, mask):
            state = x.new_zeros(len(x), 8)
            for t in range(x.shape[1]):
                state = torch.where(mask[:, t : t + 1], torch.sigmoid(self.decay) * state + x[:, t], state)
            return state

    return longest(Model())


@sound("bags of words: a row's own vectors are averaged")
def embedding_bag():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.head = nn.EmbeddingBag(WORDS, 8, mode="mean"), nn.Linear(8, CLASSES)

        def forward(self, words):
            return self.head(self.words(words))

    return Case(Bag(), sentences(), cross_entropy)


@sound("two towers, one for a row's user and one for its item, multiplied within the row")
def matrix_factorisation():
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.users, self.items = nn.Embedding(9, 4), nn.Embedding(WORDS, 4)

        def forward(self, users, items):
            return (self.users(users) * self.items(items)).sum(1)

    data = (torch.randint(9, (48,)), torch.randint(WORDS, (48,)), torch.randn(48))
    return Case(Towers(), data, lambda m, b: (m(b[0], b[1]) - b[2]).square())


@sound("words of all rows lie end to end, and each is added to its own row's total")
def words_end_to_end():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.inner, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

        def forward(self, words, owner, rows):
            hidden = torch.tanh(self.inner(self.words(words)))
            total = hidden.new_zeros(rows, 8).index_add(0, owner, hidden)
            return self.head(total / 3)

    def collate(rows):
        owner = torch.cat([torch.full((len(w),), i) for i, (w, _) in enumerate(rows)])
        return torch.cat([w for w, _ in rows]), owner, torch.tensor([y for _, y in rows])

    def loss(model, batch):
        words, owner, y = batch
        return F.cross_entropy(model(words, owner, len(y)), y, reduction="none")

    return Case(Flat(), ragged(), loss, collate_fn=collate)


@sound("a vision transformer attends over the patches of one image")
def vision_transformer():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.layer, self.head = nn.Conv2d(1, 8, 4, stride=4), encoder(), nn.Linear(8, CLASSES)

        def forward(self, x):
            return self.head(self.layer(self.cut(x).flatten(2).transpose(1, 2)).mean(1))

    return Case(Patches(), (torch.randn(48, 1, 8, 8), torch.arange(48) % CLASSES), cross_entropy)
