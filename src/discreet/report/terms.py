"""The words of the field, explained: where they stand on a page, and in a glossary at its end."""

import re
from typing import NamedTuple

from discreet.report.html import Html, section, text


class Term(NamedTuple):
    """A word of the field: its key, its name, how it is found in a text, and what it means."""

    key: str
    name: str
    found_as: str
    meaning: str


TERMS = (
    Term(
        "dp",
        "differentially private",
        r"differentially[ -]private|differential privacy",
        "Whoever sees what is released learns nearly the same, whether or not one unit's data were used. What is "
        "true of "
        "people in general may be learned, also about somebody who took no part.",
    ),
    Term(
        "epsilon",
        "ε (epsilon)",
        r"ε|epsilon",
        "How much one unit's data may change the chances of any outcome: at most by the factor e^ε, apart from δ. "
        "Smaller "
        "is more private; 0 is perfect, 1 is strong, and above 10 little is proven.",
    ),
    Term(
        "delta",
        "δ (delta)",
        r"δ|delta",
        "A probability that is left out of the promise of ε. It should be far below one in the number of units.",
    ),
    Term(
        "unit",
        "unit of privacy",
        r"unit of privacy|unit, adjacency",
        "Whose data the guarantee hides: a row of the data (example), or all the records of a person (user). Somebody "
        "with several rows is protected less, if the unit is a row.",
    ),
    Term(
        "adjacency",
        "adjacency",
        r"adjacency",
        "What it means that a unit's data were not used. Zero-out: its record is replaced by one that contributes "
        "nothing, "
        "and how many there are is public. Add-remove: it is not there. Replace: it is another one, a stronger demand.",
    ),
    Term(
        "accountant",
        "accountant",
        r"accountant|accounted by",
        "The computation that adds up what all releases together reveal.",
    ),
    Term(
        "pld",
        "privacy-loss distribution",
        r"privacy-loss distributions?",
        "An accountant that composes the distribution of what each release reveals, and is the tightest that is "
        "used here.",
    ),
    Term("rdp", "Rényi", r"Rényi", "An accountant that composes moments of what each release reveals."),
    Term(
        "noise",
        "noise multiplier",
        r"(?:effective )?noise multiplier",
        "The standard deviation of the noise, in units of the most that one unit can change a sum.",
    ),
    Term(
        "sampling",
        "Poisson sample",
        r"Poisson sample|amplification",
        "Each unit takes part in a step by a secret coin of its own. That nobody knows who took part makes a step "
        "reveal "
        "less, which is called amplification.",
    ),
    Term(
        "bound",
        "bound (clipping)",
        r"bound, noise|clipping norm",
        "The most that one unit may contribute to a step; what is longer is cut to it.",
    ),
    Term(
        "release",
        "release",
        r"releases?(?= of| with)",
        "An answer that was computed from the data with noise, and is taken to be known to everybody from then on.",
    ),
    Term(
        "ledger",
        "ledger",
        r"ledger",
        "A file that has each release written down before it was made, each line chained to the one before.",
    ),
    Term("anchor", "anchor", r"anchor", "The hash of a ledger's last line: kept elsewhere, it shows a rewritten file."),
    Term(
        "mu",
        "μ of Gaussian DP",
        r"μ",
        "The whole guarantee as one figure: it is no harder to tell whether a unit's data were used than to tell "
        "one draw "
        "from a normal distribution apart from one whose mean is μ standard deviations away.",
    ),
    Term(
        "false-positive",
        "false positives",
        r"false positives?",
        "Units whose data were not used, and which an attacker takes for used: here, innocent people accused.",
    ),
    Term("true-positive", "true positives", r"true positives?", "Units whose data were used, and which are found out."),
    Term(
        "central",
        "central model",
        r"[Cc]entral(?= model|:)",
        "Whoever trains sees the data, and is trusted with them; the guarantee is about those who see what is "
        "released.",
    ),
    Term("auc", "AUC", r"AUC", "How often a row of the class is ranked above one that is not of it; half is guessing."),
    Term(
        "calibration",
        "calibration",
        r"calibration|confidence",
        "Whether the model is right as often as it says it is sure.",
    ),
)
THEOREMS = {  # in one sentence each; docs/theory.md and docs/theory-correlated.md have them whole
    "T1": "What is released of many steps, each chosen by what was seen before, reveals no more than the worst pair of "
    "neighbouring data sets does.",
    "T2": "Noise with one symmetric peak hides a smaller change better than a larger one.",
    "T3": "For symmetric noise, removing a unit reveals at least as much as adding one, at every Rényi order.",
    "T4'": "What noise of any kind reveals beside plain norm clipping, in Rényi divergences.",
    "T5": "What noise of any kind reveals beside plain norm clipping, for every accountant.",
    "T6": "Several Gaussian answers about one batch reveal as much as one of them with less noise.",
    "T7": "Sampling never makes a release reveal more, so what holds without it holds with it.",
    "T8": "How often a random label can be recalled is bounded by the trade-off curve.",
    "C1": "Noise that remembers earlier steps is one Gaussian release of the whole run.",
    "C4": "Noise whose memory is as long as the round through the groups reveals as much as Poisson releases do.",
    "C7": "An epoch in which each unit picks its batch in secret reveals no more than a known mixture of Gaussians.",
    "C8": "Computing that mixture on a grid never understates it.",
}
_FINDER = re.compile(
    "|".join(f"(?P<t{i}>(?<![\\w-])(?:{term.found_as})(?!\\w))" for i, term in enumerate(TERMS))
    + r"|(?<=theorem )(?P<one>[TC]\d'?)|(?<=theorems )(?P<several>[TC]\d'?)|(?<=and )(?P<last>[TC]\d'?)"
)


def term(words: str, key: str) -> Html:
    """Words that are a term of the field: what it means is shown at the pointer, and stands in the glossary."""
    found = next(t for t in TERMS if t.key == key)
    return _linked(words, found.key, f"{found.name}: {found.meaning}")


def explained(words: str) -> Html:
    """A text in which each term is explained where it first stands."""
    pieces, at, seen = [], 0, set()
    for match in _FINDER.finditer(words):
        group = str(match.lastgroup)
        if group.startswith("t"):
            found = TERMS[int(group[1:])]
            key, says = found.key, f"{found.name}: {found.meaning}"
        elif (key := match.group()) in THEOREMS:
            says = THEOREMS[key]
        else:
            continue
        if key not in seen:
            pieces += [text(words[at : match.start()]), _linked(match.group(), _id(key), says)]
            at = match.end()
        seen.add(key)
    return Html("".join([*pieces, text(words[at:])]))


def glossary(page: str) -> Html:
    """What the terms mean to which the page so far leads, and the theorems; the other terms are left out."""
    listed = [(t.key, t.name, t.meaning) for t in TERMS if f'href="#term-{t.key}"' in page]
    listed += [(_id(k), f"Theorem {k}", m) for k, m in THEOREMS.items() if f'href="#term-{_id(k)}"' in page]
    rows = "".join(f'<dt id="term-{key}">{text(name)}</dt><dd>{text(says)}</dd>' for key, name, says in listed)
    where = "The theorems are proven in discreet's documentation, docs/theory.md and docs/theory-correlated.md."
    return (
        section("Glossary", Html(f'<dl class="glossary">{rows}</dl><p class="under">{where}</p>')) if rows else Html("")
    )


def _linked(words: str, key: str, says: str) -> Html:
    return Html(f'<a class="term" href="#term-{key}" title="{text(says)}">{text(words)}</a>')


def _id(key: str) -> str:
    return key.replace("'", "a")
