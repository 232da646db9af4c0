"""The page as HTML: self-contained, every text in it escaped."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from discreet.accounting.guarantee import Guarantee, round_up
from discreet.report.attacker import attacker_section
from discreet.report.charts import Chart
from discreet.report.figures import Attacked, charts, names, tradeoff
from discreet.report.html import Html, classed, document, grid, heading, mark, pairs, section, table, text
from discreet.report.merit import merit_section
from discreet.report.record import Measure, Record
from discreet.report.statement import statement_section, uncovered_section
from discreet.report.terms import explained, glossary, term
from discreet.stages.plan import Plan

_FOOTER = "The guarantee in machine-readable form: guarantee.json; what was spent: ledger.jsonl."
_OF_A_LEDGER = "Made from the ledger alone, without the run's folder: discreet verify derives the same."
_EVERY_STEP = (
    "Every step's model is covered, not only the last: whoever sees all of them, and every noisy gradient, learns "
    "no more "
    "than is stated."
)


def page(title: str, plan: Plan, guarantee: Guarantee, figures: Mapping[str, str], anchor: str = "") -> str:
    """A run that has no folder to read, as HTML: its headline figures, what is proven, and the plan.

    Args:
        title: of the page.
        plan: of the run.
        guarantee: what is proven.
        figures: names, and what is shown for them.
        anchor: the hash of the ledger's last line, which shows later whether the file is still the same.
    """
    heads = [(name, value, "", False) for name, value in figures.items()]
    parts = [
        heading(title, ""),
        _alarm([], guarantee),
        _heads(heads),
        _proven(guarantee),
        _claims(guarantee),
        attacker_section(guarantee, None, [tradeoff([Attacked(title, guarantee, None, _private(guarantee))])]),
        _plan(plan, guarantee),
        Html("") if not anchor else section("How to verify", _check("RUN", anchor)),
    ]
    return document(title, _with_glossary(parts), _FOOTER)


def render(records: Sequence[Record], drawn: Sequence[Chart] = (), beside: str = "") -> str:
    """One page: everything about a run, or several runs beside each other.

    Args:
        records: of the runs.
        drawn: the figures, if they have been made already.
        beside: what lies next to the page.
    """
    drawn = list(drawn) or charts(records)
    if len(records) == 1:
        footer = _FOOTER if records[0].config else _OF_A_LEDGER
        return document(records[0].name, _with_glossary(_one(records[0], drawn)), f"{footer} {beside}")
    parts = _with_glossary(_several(records, drawn))
    return document(f"{len(records)} private runs", parts, f"{_FOOTER} {beside}")


def _with_glossary(parts: list[Html]) -> list[Html]:
    return [*parts, glossary("".join(parts))]


def _one(record: Record, drawn: Sequence[Chart]) -> list[Html]:
    return [
        heading(record.name, f"{record.method}: what came out, what is proven about it, and how to check it."),
        _alarm(record.doubts, record.guarantee),
        _heads(_headline(record)),
        _proven(record.guarantee),
        attacker_section(record.guarantee, record, drawn),
        statement_section(record),
        uncovered_section(record),
        _claims(record.guarantee),
        merit_section(record.accuracy, record.merit),
        _course(drawn, record) if record.measures or record.config else Html(""),
        _verification(record),
        _plan(record.plan, record.guarantee),
        section("Configuration", pairs("setting", _flat(record.config))) if record.config else Html(""),
        section("Versions", pairs("package", record.versions.items())),
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
                mark("yes", "proven") if record.holds else mark(_why_not(record), "broken"),
            )
        )
    parts = [
        heading(f"{len(records)} private runs", "What came out, what is proven about each, and how they compare."),
        section("The runs", table(head, rows, broken=[not r.holds for r in records], kind="cards")),
        section("How they compare", grid(drawn)),
    ]
    if together := _together(records):
        parts.insert(2, section("The data they have in common", together))
    each = []
    for name, record in zip(labels, records, strict=True):
        inner = [
            _alarm(record.doubts, record.guarantee),
            _statement(record.guarantee),
            _conditions(record.guarantee),
            _claims(record.guarantee, level=3),
            _verification(record, level=3),
        ]
        each.append(Html(f"<details><summary>{text(name)}</summary>{''.join(inner)}</details>"))
    return [*parts, section("Run by run", Html("".join(each)))]


def _together(records: Sequence[Record]) -> Html:
    """What is proven of everything on a data set that counts several of these runs; one line a data set."""
    rows = []
    for ledger in dict.fromkeys(record.ledger for record in records):
        own = [r for r in records if r.ledger == ledger and r.verified is not None and r.verified.total is not None]
        if own and own[0].verified is not None and own[0].verified.total is not None:
            total = own[0].verified.total
            rows.append(
                (
                    str(own[0].verified.dataset),
                    f"{len(own)}",
                    round_up(total.epsilon),
                    f"{total.delta:g}",
                    total.protected,
                )
            )
    if not rows:
        return Html("")
    words = (
        "What all that the data set counts proves together, these runs and others: the figure that counts for whoever "
        "is in it."
    )
    head = ("data set", ("runs shown here",), ("proven ε of all",), ("δ",), "for each")
    return Html(f"<p>{text(words)}</p>{table(head, rows, broken=[False] * len(rows), kind='cards')}")


# --- sections --------------------------------------------------------------------------------------------------------


def _alarm(doubts: Iterable[str], guarantee: Guarantee) -> Html:
    """What breaks the guarantee, on top and in red."""
    reasons = [*(f"{c.text}." for c in guarantee.conditions if c.status == "broken"), *doubts]
    if math.isinf(guarantee.epsilon):
        reasons.insert(0, f"Nothing is proven: {guarantee.proof}.")
    if not reasons:
        return Html("")
    items = "".join(f"<li>{text(reason[0].upper() + reason[1:])}</li>" for reason in reasons)
    words = "The figures below are in doubt" if _private(guarantee) else "Not private as it stands"
    return Html(f'<div class="alarm" role="alert"><strong>{words}</strong><ul>{items}</ul></div>')


def _headline(record: Record) -> list[tuple[str, str, str, bool]]:
    """Name, value, a few words beneath, and whether it is not to be relied on."""
    proven, steps = record.guarantee, record.plan.steps
    released = proven.released or 0
    budget = "" if record.plan.epsilon is None else f"of a budget of {record.plan.epsilon:g}"
    label = "proven ε" if record.holds else "ε, which does not hold" if not record.doubts else "ε as stated, in doubt"
    return [
        *_worth(record),
        (term(label, "epsilon"), round_up(proven.epsilon), budget, not record.holds),
        (term("δ", "delta"), f"{proven.delta:g}", f"for each {proven.protected}", False),
        ("steps", f"{released:,}", f"of {steps:,} planned", False),
    ]


def _worth(record: Record) -> list[tuple[str, str, str, bool]]:
    """The figure of merit that the task has; none where there was no task to measure."""
    if not record.config:
        return []
    merit, released = record.merit, record.guarantee.released or 0
    if merit is not None and "rmse" in merit:
        return [("error on held-out data", f"{merit['rmse']:.3g}", f"always the mean: {merit['mean_rmse']:.3g}", False)]
    last = next((m.step for m in reversed(record.measures) if m.accuracy is not None), None)
    when = "" if last is None or last == released else f"after step {last:,}"
    if merit is not None and "majority" in merit:
        when = f"the commonest class: {merit['majority']:.1%}"
    return [("accuracy on held-out data", _accuracy(record), when, False)]


def _private(guarantee: Guarantee) -> bool:
    return guarantee.sound and math.isfinite(guarantee.epsilon)


def _heads(heads: Iterable[tuple[str, str, str, bool]]) -> Html:
    boxes = "".join(
        f"<div{classed('broken' if broken else '')}><dt>{text(name)}</dt><dd>{text(value)}"
        f"{f'<small>{text(under)}</small>' if under else ''}</dd></div>"
        for name, value, under, broken in heads
    )
    return Html(f'<dl class="heads">{boxes}</dl>')


def _proven(guarantee: Guarantee) -> Html:
    covered = Html(f"<p>{text(_EVERY_STEP)}</p>") if _private(guarantee) else Html("")
    return section("What is proven", _statement(guarantee), covered, _conditions(guarantee))


def _statement(guarantee: Guarantee) -> Html:
    """The guarantee as a paragraph; its conditions and claims have tables of their own."""
    broken = tuple(c for c in guarantee.conditions if c.status == "broken")
    words = str(replace(guarantee, conditions=broken, claims=()))
    return Html(f'<p class="statement{"" if guarantee.sound else " broken"}">{explained(words)}</p>')


def _conditions(guarantee: Guarantee) -> Html:
    """What the guarantee rests on: what is broken first."""
    order = ("broken", "proven", "checked", "assumed")
    listed = sorted(guarantee.conditions, key=lambda c: order.index(c.status) if c.status in order else 0)
    if not listed:
        return Html("")
    rows = [(mark(c.status, c.status), c.text) for c in listed]
    return table(("status", "what it rests on"), rows, broken=[c.status == "broken" for c in listed])


def _claims(guarantee: Guarantee, level: int = 2) -> Html:
    """What others state for this method, beside what is proven."""
    if not guarantee.claims:
        return Html("")
    marks = {"holds": "proven", "holds if": "assumed", "unproven": "assumed", "false": "broken"}
    rows = [
        (c.source, f"{c.epsilon:.4g}", round_up(guarantee.epsilon), mark(c.verdict, marks[c.verdict]), c.reason)
        for c in guarantee.claims
    ]
    head = ("who", ("claimed ε",), ("proven ε",), "the claim", "why")
    return section("Claimed and proven", table(head, rows, kind="cards"), level=level)


def _course(drawn: Sequence[Chart], record: Record) -> Html:
    shown = [c for c in drawn if c.key != "attacker"]
    if not shown:
        return section("How it went", Html("<p>Nothing was measured while the run went on.</p>"))
    last = record.measures[-1]
    spent = [] if last.seconds is None else [f"{last.seconds:,.0f} seconds"]
    spent += [] if last.examples_per_second is None else [f"{last.examples_per_second:,.0f} examples a second"]
    words = f"At the last measurement: {', '.join(spent)}." if spent else ""
    return section("How it went", grid(shown), Html(f"<p>{text(words)}</p>" if words else ""))


def _verification(record: Record, level: int = 2) -> Html:
    run = record.name if record.ledger.parent == record.folder else record.ledger.name
    if record.verified is None:
        told = Html(f'<p class="statement broken">{text(record.doubts[0])}</p>')
        return section("How to verify", told, Html(f"<pre><code>discreet verify {text(run)}</code></pre>"), level=level)
    verified, own = record.verified, record.own
    words = [
        f"When this page was made the ledger was as it was written: {verified.lines:,} lines, each chained to the last."
    ]
    if verified.torn:
        words.append("The last line was cut off by a crash, and is counted as spent.")
    if not record.doubts:
        words.append("What is proven was derived again from the ledger alone, and agrees.")
    if own is not None and own.released > (record.guarantee.released or 0):
        words.append(f"It has {own.released:,} steps released: it counts ahead, or the run has gone on since.")
    if verified.total is not None:
        whole = f"ε = {round_up(verified.total.epsilon)}, δ = {verified.total.delta:g}"
        words.append(f"All that was asked of data set {verified.dataset!r}, together: {whole}.")
    told = Html(f'<p class="statement{" broken" if record.doubts else ""}">{text(" ".join(words))}</p>')
    return section("How to verify", told, _check(run, verified.head), level=level)


def _check(run: str, anchor: str) -> Html:
    words = (
        "The same again, at any time; the anchor is the hash of the ledger's last line. Keep it elsewhere, and a file "
        "that was rewritten or cut short will show."
    )
    return Html(f"<pre><code>discreet verify {text(run)} --anchor {text(anchor)}</code></pre><p>{text(words)}</p>")


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
    return section("The plan", pairs("stage", settings.items()))


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
    shown = table(head, rows)
    return Html(f"<h2>Measurements</h2><details><summary>As a table</summary>{shown}<p>{words}</p></details>")


# --- pieces ----------------------------------------------------------------------------------------------------------


def _accuracy(record: Record) -> str:
    return "not measured" if record.accuracy is None else f"{record.accuracy:.1%}"


def _why_not(record: Record) -> str:
    if record.verified is None:
        return "no: the ledger is damaged"
    return "no: the files disagree" if record.doubts else "yes, but not private"


def _or_not(value: float | None, words: Any) -> str:
    return "" if value is None else words(value)


def _flat(table: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Settings of tables in tables, one below the other."""
    rows: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{above}{key}.")
        else:
            rows.append((f"{above}{key}", json.dumps(value, ensure_ascii=False, default=str)))
    return rows
