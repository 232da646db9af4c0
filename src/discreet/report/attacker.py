"""What an attacker could do, in plain words and pictures: icons, shares, and the whole curve as one figure."""

import math
from collections.abc import Sequence

from discreet.accounting.guarantee import Guarantee
from discreet.report.charts import Chart
from discreet.report.html import Html, grid, section, table, text
from discreet.report.record import Record
from discreet.report.terms import term

_CROWD, _ROW = 1000, 50  # icons, and how many of them in a row
_ACCUSED = 10  # innocents among a thousand that the attacker may accuse


def attacker_section(guarantee: Guarantee, record: Record | None, drawn: Sequence[Chart]) -> Html:
    """A sentence, its icons, what the guarantee bounds, and what attacks have measured."""
    audit = None if record is None else record.audit
    holds = record.holds if record is not None else guarantee.sound and math.isfinite(guarantee.epsilon)
    words = (
        f"For an attacker who knows the method, the released model and everything about the data, but for whether one "
        f"{guarantee.protected}'s data were used."
    )
    if not holds:
        words = (
            f"The guarantee does not hold as it stands. What it would be worth if it did: {words[0].lower()}{words[1:]}"
        )
    measured = ""
    if audit is not None and audit.epsilon_lower_bound is not None:
        least = math.floor(audit.epsilon_lower_bound * 1000) / 1000
        whose = "this run's code and plan, on made-up data," if audit.pipeline else "this run"
        measured = f"Attacks on {whose} showed that ε is at least {least:g}: a lower bound, as measured."
    shares = guarantee.attacker(classes=None if record is None else classes(record))
    rows = [
        (term(what, "true-positive") if "positives" in what else what, at_most(share)) for what, share in shares.items()
    ]
    return section(
        "What an attacker could do",
        Html(f"<p>{text(words)}</p>"),
        Html(f'<p class="plain">{text(in_plain_words(guarantee))}</p>'),
        icons(found(guarantee)),
        grid([c for c in drawn if c.key == "attacker"], table(("at most", ("share",)), rows)),
        Html(f"<p>{_one_figure(guarantee)}</p>"),
        Html(f"<p>{text(measured)}</p>" if measured else ""),
    )


def classes(record: Record) -> int | None:
    """How many labels there are; None where there are none, or nobody has said."""
    merit = record.merit or {}
    return len(merit["recall"]) if len(merit.get("recall", ())) > 1 else None


def found(guarantee: Guarantee) -> int:
    """Of a thousand that are in the data, how many are found by who may accuse ten of a thousand that are not."""
    if math.isinf(guarantee.epsilon):
        return _CROWD
    return min(_CROWD, math.ceil(guarantee.tradeoff().power(_ACCUSED / _CROWD) * _CROWD - 1e-6))


def in_plain_words(guarantee: Guarantee) -> str:
    """What the guarantee means, for those who read no Greek."""
    many = f"{guarantee.protected}s" if guarantee.group > 1 or guarantee.unit != "user" else "people"
    said = (
        f"Of 1,000 {many} in the data and 1,000 not in them: an attacker who wrongly accuses {_ACCUSED} of the latter "
        "finds, on average, "
    )
    count = found(guarantee)
    if count == _CROWD:
        return f"{said}perhaps all of the former: nothing is proven that would prevent it."
    return f"{said}at most {count} of the former. By guessing alone it would be {_ACCUSED}."


def icons(count: int) -> Html:
    """Two crowds of a thousand: those in the data, of whom `count` are found, and those not, of whom ten are "
    "accused."""
    crowds = ((count, "in the data", "found", "hit"), (_ACCUSED, "not in the data", "accused wrongly", "missed"))
    pictures = "".join(
        f'<div><p class="under">1,000 {where}: {marked} {how}</p>'
        f"{_crowd(marked, kind, f'{marked} of 1,000 {where} are {how}')}</div>"
        for marked, where, how, kind in crowds
    )
    return Html(f'<div class="crowds">{pictures}</div>')


def _crowd(marked: int, kind: str, words: str) -> str:
    """A crowd as two paths, so that two thousand icons are no two thousand elements."""
    rows = _CROWD // _ROW
    dots = [f"M{6 * (i % _ROW) + 3},{6 * (i // _ROW) + 3}h0" for i in range(_CROWD)]
    paths = (f'<path class="{k}" d="{"".join(part)}"/>' for k, part in ((kind, dots[:marked]), ("rest", dots[marked:])))
    size = f"0 0 {6 * _ROW} {6 * rows}"
    return f'<svg class="icons" viewBox="{size}" role="img" aria-label="{text(words)}">{"".join(paths)}</svg>'


def _one_figure(guarantee: Guarantee) -> Html:
    """The trade-off curve as the mu of Gaussian DP, with its fit."""
    if math.isinf(guarantee.epsilon):
        return Html("")
    fit = guarantee.gaussian()
    if math.isinf(fit.mu):
        return Html("")
    return Html(
        f"{term('As one figure', 'mu')}: μ = {_up(fit.mu)} of Gaussian DP. The proven curve lies at most "
        f"{_up(fit.error)} "
        f"below that of μ, and at most {_up(fit.slack)} above it."
    )


def _up(value: float) -> str:
    """Four decimals, never rounded down, and never nothing."""
    return f"{max(1.0, math.ceil(value * 1e4)) / 1e4:.4f}"


def at_most(share: float) -> str:
    """An upper bound in percent, never rounded down."""
    return f"{min(100.0, math.ceil(share * 1e4 - 1e-7) / 100):.2f}%"
