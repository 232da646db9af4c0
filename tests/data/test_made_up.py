import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import Clip, ConfigError, Gaussian, Mechanism, Plan, Poisson, attach
from discreet.data import load
from discreet.data.made_up import JOBS, REGIONS, WORDS, people, sentences


@pytest.mark.parametrize("make", [people, sentences])
def test_a_seed_makes_the_same_data_and_another_seed_other_rows(make):
    first, again, other = make(200, 100), make(200, 100), make(200, 100, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.train + first.test, again.train + again.test, strict=True))
    assert not torch.equal(first.train[0], other.train[0])
    assert (len(first.train[0]), len(first.test[0])) == (200, 100)
    assert f"{first.best:.1%}" in first.note


def test_columns_are_within_the_ranges_that_the_law_states():
    x, y = people(2_000, 10).train
    assert x.shape == (2_000, 4 + len(JOBS) + len(REGIONS))
    assert x.abs().max() <= 1
    assert torch.equal(x[:, 4:10].sum(1), torch.ones(2_000))
    assert torch.equal(x[:, 10:].sum(1), torch.ones(2_000))
    assert 0.2 < y.double().mean() < 0.45


def test_no_answer_beats_the_best_possible_accuracy_and_whoever_knows_the_law_reaches_it():
    data = sentences(60_000, 20_000)
    x, y = (part.long() for part in data.train)
    pairs = x[:, -2] * len(WORDS) + x[:, -1]
    counts = torch.zeros(len(WORDS) ** 2, len(WORDS)).index_put_((pairs, y), torch.ones(()), accumulate=True)
    tested = data.test[0].long()
    guessed = counts[tested[:, -2] * len(WORDS) + tested[:, -1]].argmax(1)
    accuracy = float((guessed == data.test[1]).double().mean())
    assert accuracy == pytest.approx(data.best, abs=0.025)  # counts of pairs are nearly the law


@pytest.mark.parametrize(("name", "classes"), [("people", 2), ("sentences", len(WORDS))])
def test_a_recipe_can_name_them(name, classes):
    data = load(f"discreet.data.made_up:{name}", rows=50, tested=20)
    assert data.classes == classes
    assert len(data.train[0]) == 50


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"tested": -1}, {"seed": -1}, {"seed": 1.5}])
def test_sizes_and_seeds_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError):
        people(**wrong)


def test_a_sentence_has_two_words_at_least():
    with pytest.raises(ConfigError, match="length"):
        sentences(10, 10, length=1)


def test_a_transformer_says_the_next_word_and_its_gradients_are_each_rows_own():
    from discreet.models.text import next_word

    torch.manual_seed(0)
    model = next_word((8,), len(WORDS), words=len(WORDS), width=8)
    x, y = sentences(6, 6).train
    assert model(x).shape == (6, len(WORDS))
    expected = []
    for i in range(6):
        grads = torch.autograd.grad(F.cross_entropy(model(x[i : i + 1]), y[i : i + 1]), tuple(model.parameters()))
        norm = torch.stack([g.norm() for g in grads]).norm()
        expected.append([g * min(1.0, float(0.5 / norm)) for g in grads])
    sampling = Poisson(examples=6, batch_size=6)
    plan = Plan(sampling=sampling, mechanism=Mechanism(Clip(0.5), Gaussian(0.0)), steps=1, delta=1e-5)
    private = attach(model, plan)
    for inputs, labels in private.batches((x, y)):
        assert private.backward(F.cross_entropy(model(inputs), labels, reduction="none"))
    for p, *parts in zip(model.parameters(), *expected, strict=True):
        assert p.grad is not None
        torch.testing.assert_close(p.grad, sum(parts) / 6, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("shape", "settings", "words"), [((2, 8), {"words": 3}, "shape"), ((8,), {"words": 3, "width": 7}, "heads")]
)
def test_texts_and_sizes_that_do_not_fit_are_refused(shape, settings, words):
    from discreet.models.text import next_word

    with pytest.raises(ConfigError, match=words):
        next_word(shape, 3, **settings)


def test_a_next_word_is_a_module_of_the_users_own():
    from discreet.models.networks import build

    assert isinstance(build("discreet.models.text:next_word", (8,), 32, words=32), nn.Module)
