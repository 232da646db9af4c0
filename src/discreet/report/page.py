"""The page as HTML: self-contained, every text in it escaped."""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from typing import Any

from discreet.accounting.guarantee import Guarantee, round_up
from discreet.plan import Plan
from discreet.report.charts import Chart, style, svg, swatch
from discreet.report.figures import Attacked, charts, names, tradeoff
from discreet.report.record import Measure, Record


class Html(str):
    """Text that is HTML already; every other text is escaped where it is put into a page."""

    __slots__ = ()


def page(title: str, plan: Plan, guarantee: Guarantee, figures: Mapping[str, str], anchor: str = "") -> str:
    """A run that has no folder to read, as HTML: its headline figures, what is proven, and the plan.

    `anchor` is the hash of the ledger's last line, which shows later whether the file is still the same.
    """
    heads = [(name, value, "", False) for name, value in figures.items()]
    parts = [
        _title(title, ""),
        _alarm([], guarantee),
        _heads(heads),
        _proven(guarantee),
        _claims(guarantee),
        _attacker(guarantee, None, [tradeoff([Attacked(title, guarantee, None, _private(guarantee))])]),
        _plan(plan, guarantee),
        Html("") if not anchor else _section("How to verify", _check("RUN", anchor)),
    ]
    return _document(title, parts)


def render(records: Sequence[Record], drawn: Sequence[Chart] = (), beside: str = "") -> str:
    """One page: everything about a run, or several runs beside each other.

    `drawn` are the figures, if they have been made already; `beside` says what lies next to the page.
    """
    drawn = list(drawn) or charts(records)
    if len(records) == 1:
        return _document(records[0].name, _one(records[0], drawn), beside)
    return _document(f"{len(records)} private runs", _several(records, drawn), beside)


def _one(record: Record, drawn: Sequence[Chart]) -> list[Html]:
    return [
        _title(record.name, f"{record.method}: what came out, what is proven about it, and how to check it."),
        _alarm(record.doubts, record.guarantee),
        _heads(_headline(record)),
        _proven(record.guarantee),
        _claims(record.guarantee),
        _course(drawn, record),
        _attacker(record.guarantee, record, drawn),
        _verification(record),
        _plan(record.plan, record.guarantee),
        _section("Configuration", _pairs("setting", _flat(record.config))),
        _section("Versions", _pairs("package", record.versions.items())),
        _measurements(record.measures),
    ]


def _several(records: Sequence[Record], drawn: Sequence[Chart]) -> list[Html]:
    labels = names(records)
    head = ("run", "method", ("accuracy",), ("proven ε",), ("δ",), ("steps",), "verified")
    rows = []
    for name, record in zip(labels, records, strict=True):
        proven = record.guarantee
        steps = f"{0 if proven.released is None else proven.released:,} of {record.plan.steps:,}"
        rows.append(
            (
                name,
                record.method,
                _accuracy(record),
                round_up(proven.epsilon),
                f"{proven.delta:g}",
                steps,
                _mark("yes", "proven") if record.holds else _mark(_why_not(record), "broken"),
            )
        )
    parts = [
        _title(f"{len(records)} private runs", "What came out, what is proven about each, and how they compare."),
        _section("The runs", _table(head, rows, broken=[not r.holds for r in records], kind="cards")),
        _section("How they compare", _grid(drawn)),
    ]
    each = []
    for name, record in zip(labels, records, strict=True):
        inner = [
            _alarm(record.doubts, record.guarantee),
            _statement(record.guarantee),
            _conditions(record.guarantee),
            _claims(record.guarantee, level=3),
            _verification(record, level=3),
        ]
        each.append(Html(f"<details><summary>{_text(name)}</summary>{''.join(inner)}</details>"))
    return [*parts, _section("Run by run", Html("".join(each)))]


# --- sections --------------------------------------------------------------------------------------------------------


def _title(title: str, under: str) -> Html:
    return Html(f"<h1>{_text(title)}</h1>" + (f'<p class="under">{_text(under)}</p>' if under else ""))


def _alarm(doubts: Iterable[str], guarantee: Guarantee) -> Html:
    """What breaks the guarantee, on top and in red."""
    reasons = [*(f"{c.text}." for c in guarantee.conditions if c.status == "broken"), *doubts]
    if math.isinf(guarantee.epsilon):
        reasons.insert(0, f"Nothing is proven: {guarantee.proof}.")
    if not reasons:
        return Html("")
    items = "".join(f"<li>{_text(reason[0].upper() + reason[1:])}</li>" for reason in reasons)
    words = "The figures below are in doubt" if _private(guarantee) else "Not private as it stands"
    return Html(f'<div class="alarm" role="alert"><strong>{words}</strong><ul>{items}</ul></div>')


def _headline(record: Record) -> list[tuple[str, str, str, bool]]:
    """Name, value, a few words beneath, and whether it is not to be relied on."""
    proven, steps = record.guarantee, record.plan.steps
    last = next((m.step for m in reversed(record.measures) if m.accuracy is not None), None)
    released = proven.released or 0
    when = "" if last is None or last == released else f"after step {last:,}"
    budget = "" if record.plan.epsilon is None else f"of a budget of {record.plan.epsilon:g}"
    label = "proven ε" if record.holds else "ε, which does not hold" if not record.doubts else "ε as stated, in doubt"
    return [
        ("accuracy on held-out data", _accuracy(record), when, False),
        (label, round_up(proven.epsilon), budget, not record.holds),
        ("δ", f"{proven.delta:g}", f"for each {proven.protected}", False),
        ("steps", f"{released:,}", f"of {steps:,} planned", False),
    ]


def _private(guarantee: Guarantee) -> bool:
    return guarantee.sound and math.isfinite(guarantee.epsilon)


def _heads(heads: Iterable[tuple[str, str, str, bool]]) -> Html:
    boxes = "".join(
        f"<div{_class('broken' if broken else '')}><dt>{_text(name)}</dt><dd>{_text(value)}"
        f"{f'<small>{_text(under)}</small>' if under else ''}</dd></div>"
        for name, value, under, broken in heads
    )
    return Html(f'<dl class="heads">{boxes}</dl>')


def _proven(guarantee: Guarantee) -> Html:
    return _section("What is proven", _statement(guarantee), _conditions(guarantee))


def _statement(guarantee: Guarantee) -> Html:
    """The guarantee as a paragraph; its conditions and claims have tables of their own."""
    broken = tuple(c for c in guarantee.conditions if c.status == "broken")
    words = str(replace(guarantee, conditions=broken, claims=()))
    return Html(f'<p class="statement{"" if guarantee.sound else " broken"}">{_text(words)}</p>')


def _conditions(guarantee: Guarantee) -> Html:
    """What the guarantee rests on: what is broken first."""
    order = ("broken", "proven", "checked", "assumed")
    listed = sorted(guarantee.conditions, key=lambda c: order.index(c.status) if c.status in order else 0)
    if not listed:
        return Html("")
    rows = [(_mark(c.status, c.status), c.text) for c in listed]
    return _table(("status", "what it rests on"), rows, broken=[c.status == "broken" for c in listed])


def _claims(guarantee: Guarantee, level: int = 2) -> Html:
    """What others state for this method, beside what is proven."""
    if not guarantee.claims:
        return Html("")
    marks = {"holds": "proven", "holds if": "assumed", "unproven": "assumed", "false": "broken"}
    rows = [
        (c.source, f"{c.epsilon:.4g}", round_up(guarantee.epsilon), _mark(c.verdict, marks[c.verdict]), c.reason)
        for c in guarantee.claims
    ]
    head = ("who", ("claimed ε",), ("proven ε",), "the claim", "why")
    return _section("Claimed and proven", _table(head, rows, kind="cards"), level=level)


def _course(drawn: Sequence[Chart], record: Record) -> Html:
    shown = [c for c in drawn if c.key != "attacker"]
    if not shown:
        return _section("How it went", Html("<p>Nothing was measured while the run went on.</p>"))
    last = record.measures[-1]
    spent = [] if last.seconds is None else [f"{last.seconds:,.0f} seconds"]
    spent += [] if last.examples_per_second is None else [f"{last.examples_per_second:,.0f} examples a second"]
    words = f"At the last measurement: {', '.join(spent)}." if spent else ""
    return _section("How it went", _grid(shown), Html(f"<p>{_text(words)}</p>" if words else ""))


def _attacker(guarantee: Guarantee, record: Record | None, drawn: Sequence[Chart]) -> Html:
    audit = None if record is None else record.audit
    words = (
        f"For an attacker who knows the method, the released model and everything about the data, but for whether one "
        f"{guarantee.protected}'s data were used."
    )
    if not (_private(guarantee) if record is None else record.holds):
        words = (
            f"The guarantee does not hold as it stands. What it would be worth if it did: {words[0].lower()}{words[1:]}"
        )
    measured = ""
    if audit is not None and audit.epsilon_lower_bound is not None:
        least = math.floor(audit.epsilon_lower_bound * 1000) / 1000
        whose = "this run's code and plan, on made-up data," if audit.pipeline else "this run"
        measured = f"Attacks on {whose} showed that ε is at least {least:g}: a lower bound, as measured."
    rows = [(what, _at_most(share)) for what, share in guarantee.attacker().items()]
    return _section(
        "What an attacker could do",
        Html(f"<p>{_text(words)}</p>"),
        _grid([c for c in drawn if c.key == "attacker"], _table(("at most", ("share",)), rows)),
        Html(f"<p>{_text(measured)}</p>" if measured else ""),
    )


def _verification(record: Record, level: int = 2) -> Html:
    run = record.name if record.ledger.parent == record.folder else record.ledger.name
    if record.verified is None:
        told = Html(f'<p class="statement broken">{_text(record.doubts[0])}</p>')
        return _section(
            "How to verify", told, Html(f"<pre><code>discreet verify {_text(run)}</code></pre>"), level=level
        )
    found, own = record.verified, record.own
    words = [
        f"When this page was made the ledger was as it was written: {found.lines:,} lines, each chained to the last."
    ]
    if found.torn:
        words.append("The last line was cut off by a crash, and is counted as spent.")
    if not record.doubts:
        words.append("What is proven was derived again from the ledger alone, and agrees.")
    if own is not None and own.released > (record.guarantee.released or 0):
        words.append(f"It has {own.released:,} steps released: it counts ahead, or the run has gone on since.")
    if found.total is not None:
        whole = f"ε = {round_up(found.total.epsilon)}, δ = {found.total.delta:g}"
        words.append(f"All that was asked of data set {found.dataset!r}, together: {whole}.")
    told = Html(f'<p class="statement{" broken" if record.doubts else ""}">{_text(" ".join(words))}</p>')
    return _section("How to verify", told, _check(run, found.head), level=level)


def _check(run: str, anchor: str) -> Html:
    words = (
        "The same again, at any time; the anchor is the hash of the ledger's last line. Keep it elsewhere, and a file "
        "that was rewritten or cut short will show."
    )
    return Html(f"<pre><code>discreet verify {_text(run)} --anchor {_text(anchor)}</code></pre><p>{_text(words)}</p>")


def _plan(plan: Plan, guarantee: Guarantee) -> Html:
    released = 0 if guarantee.released is None else guarantee.released
    mechanism = plan.mechanism
    settings = {
        "sampling": repr(plan.sampling),
        "bound": repr(mechanism.bound),
        "noise": repr(mechanism.noise),
        **({} if mechanism.denoise is None else {"denoise": repr(mechanism.denoise)}),
        **({"noise schedule": str(plan.noise_schedule)} if plan.noise_schedule else {}),
        "steps": f"{released:,} released of {plan.steps:,} planned",
        "unit, adjacency": f"{guarantee.unit}, {guarantee.adjacency}",
    }
    return _section("The plan", _pairs("stage", settings.items()))


def _measurements(measures: Sequence[Measure]) -> Html:
    """The figures behind the charts, a few dozen of them."""
    if not measures:
        return Html("")
    every = -(-len(measures) // 40)
    chosen = [m for i, m in enumerate(reversed(measures)) if i % every == 0][::-1]
    head = (("step",), ("epoch",), ("ε so far",), ("accuracy",), ("loss",))
    rows = [
        (
            f"{m.step:,}",
            _or_not(m.epoch, lambda v: f"{v:.2f}"),
            _or_not(m.epsilon, round_up),
            _or_not(m.accuracy, lambda v: f"{v:.1%}"),
            _or_not(m.loss, lambda v: f"{v:.4g}"),
        )
        for m in chosen
    ]
    words = "All are in metrics.jsonl." if every == 1 else f"One in {every}, from the last back; all: metrics.jsonl."
    table = _table(head, rows)
    return Html(f"<h2>Measurements</h2><details><summary>As a table</summary>{table}<p>{words}</p></details>")


# --- pieces ----------------------------------------------------------------------------------------------------------


def _text(value: str) -> str:
    return value if isinstance(value, Html) else escape(value)


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _mark(words: str, status: str) -> Html:
    return Html(f'<span class="{"broken-mark" if status == "broken" else status}">{_text(words)}</span>')


def _section(title: str, *parts: Html, level: int = 2) -> Html:
    return Html(f"<section><h{level}>{_text(title)}</h{level}>{''.join(parts)}</section>")


def _table(
    head: Sequence[str | tuple[str]], rows: Iterable[Sequence[str]], broken: Sequence[bool] = (), kind: str = ""
) -> Html:
    """A table with headers; a header in brackets of its own is that of a column of figures.

    On a phone a table of `kind` "cards" has a block a row, and one of "pairs" a line for each half.
    """
    figure = [' class="figure"' if isinstance(h, tuple) else "" for h in head]
    titles = [h[0] if isinstance(h, tuple) else h for h in head]
    tops = "".join(f'<th scope="col"{f}>{_text(t)}</th>' for t, f in zip(titles, figure, strict=True))
    body = []
    for number, row in enumerate(rows):
        first, *others = (_text(cell) for cell in row)
        named = [f' data-label="{_text(t)}"' if kind == "cards" else "" for t in titles[1:]]
        cells = "".join(f"<td{f}{n}>{cell}</td>" for cell, f, n in zip(others, figure[1:], named, strict=True))
        bad = _class("broken-row" if number < len(broken) and broken[number] else "")
        body.append(f'<tr{bad}><th scope="row"{figure[0]}>{first}</th>{cells}</tr>')
    inner = f"<thead><tr>{tops}</tr></thead><tbody>{''.join(body)}</tbody>"
    return Html(f'<div class="wide"><table{_class(kind)}>{inner}</table></div>')


def _pairs(what: str, rows: Iterable[tuple[str, str]]) -> Html:
    shown = [(name, Html(f"<code>{_text(value)}</code>")) for name, value in rows]
    return _table((what, "value"), shown, kind="pairs") if shown else Html("<p>None is recorded.</p>")


def _grid(drawn: Sequence[Chart], *others: Html) -> Html:
    beside = "".join(f"<div>{other}</div>" for other in others)
    return Html(f'<div class="charts">{"".join(_figure(chart) for chart in drawn)}{beside}</div>')


def _figure(chart: Chart) -> str:
    items = "".join(f"<li>{swatch(s)}{_text(s.name)}</li>" for s in chart.series)
    legend = f'<ul class="legend">{items}</ul>' if len(chart.series) > 1 else ""
    note = f"<figcaption>{_text(chart.note)}</figcaption>" if chart.note else ""
    return f'<figure id="{chart.key}"><h3>{_text(chart.title)}</h3>{legend}{svg(chart)}{note}</figure>'


def _accuracy(record: Record) -> str:
    return "not measured" if record.accuracy is None else f"{record.accuracy:.1%}"


def _why_not(record: Record) -> str:
    if record.verified is None:
        return "no: the ledger is damaged"
    return "no: the files disagree" if record.doubts else "yes, but not private"


def _or_not(value: float | None, words: Any) -> str:
    return "" if value is None else words(value)


def _at_most(share: float) -> str:
    """An upper bound in percent, never rounded down."""
    return f"{min(100.0, math.ceil(share * 1e4 - 1e-7) / 100):.2f}%"


def _flat(table: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Settings of tables in tables, one below the other."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{above}{key}.")
        else:
            rows.append((f"{above}{key}", json.dumps(value, ensure_ascii=False, default=str)))
    return rows


def _document(title: str, parts: Iterable[str], beside: str = "") -> str:
    looks = style() + _asset("page.css")
    script = _asset("page.js")
    allowed = (
        f"default-src 'none'; img-src data:; style-src '{_digest(looks)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta HTTP-EQUIV="Content-Security-Policy" content="{allowed}">
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<title>{_text(title)}</title><style>{looks}</style></head>
<body><main>
{"".join(parts)}
<footer>Written by discreet. The guarantee in machine-readable form: guarantee.json; what was spent: ledger.jsonl.
{_text(beside)}</footer>
</main><script>{script}</script></body></html>
"""


def _asset(name: str) -> str:
    return files(__name__.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a browser must find a style or a script to hash to before it uses it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
