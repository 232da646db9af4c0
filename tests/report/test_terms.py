import re

import pytest

from discreet import methods
from discreet.report.terms import TERMS, THEOREMS, explained, glossary, term

LEADS = re.compile(r'<a class="term" href="#term-([\w-]+)" title="[^"]+">([^<]+)</a>')


def plain(html):
    return re.sub(r"</?a[^>]*>", "", html)


def test_each_term_is_explained_once_where_it_first_stands():
    words = "ε and ε; a Poisson sample (theorems T1 and T6); T1 again, <b>δ</b>, theorem T99"
    said = explained(words)
    assert LEADS.findall(said) == [
        ("epsilon", "ε"),
        ("sampling", "Poisson sample"),
        ("T1", "T1"),
        ("T6", "T6"),
        ("delta", "δ"),
    ]
    assert plain(said) == words.replace("<", "&lt;").replace(">", "&gt;")


@pytest.mark.parametrize("found", TERMS, ids=lambda found: found.key)
def test_each_term_is_found_by_a_word_of_its_own_and_stands_in_the_glossary(found):
    assert term("a word", found.key) in glossary_page(found.key)
    assert f'<dt id="term-{found.key}">{found.name}</dt>' in glossary(glossary_page(found.key))
    assert found.meaning.endswith(".")


def glossary_page(key):
    return f"<p>{term('a word', key)}</p>"


def test_only_what_the_page_leads_to_is_in_the_glossary():
    assert glossary("<p>nothing</p>") == ""
    assert glossary(explained("a ledger")).count("<dt") == 1


@pytest.mark.parametrize(
    "plan",
    [
        methods.dp_sgd(examples=1000, batch_size=100, steps=20, noise=2.0, delta=1e-5),
        methods.band_mf(examples=1000, batch_size=100, steps=20, noise=2.0, delta=1e-5, bands=4),
        methods.dp_ftrl(examples=1000, batch_size=100, epochs=2, noise=4.0, delta=1e-5),
    ],
    ids=["dp_sgd", "band_mf", "dp_ftrl"],
)
def test_every_theorem_that_a_proof_names_is_explained(plan):
    proof = plan.guarantee().proof
    named = set(re.findall(r"\b[TC]\d'?", proof))
    assert named
    assert named <= set(THEOREMS)
    assert {key for key, _ in LEADS.findall(explained(proof))} >= named
