"""Results on disk: a CSV of all cases, each chart as SVG, CSV and PNG, and a page that sets the paper's beside ours."""

import math
from collections.abc import Sequence
from pathlib import Path

from discreet.accounting.guarantee import round_up
from discreet.papers.experiment import Case, Experiment, Paper, Results, Size, Stated
from discreet.papers.verdicts import our_size
from discreet.report import Chart, csv_table, draw, html, save

HEAD = (
    "stated in the paper",
    "theirs",
    "ours, their form",
    "ours, sound",
    "ε claimed",
    "ε proven",
    "their size",
    "our size",
    "verdict",
)


def write(paper: Paper, measured: Sequence[tuple[Experiment, Results]], folder: Path, size: Size, command: str) -> Path:
    """The page of a paper's experiments, with what lies beside it; the page's path."""
    parts = [html.heading(f"Paper {paper.number}: {paper.name}", f"Run again at size {size!r}: {command}")]
    words = ""
    for experiment, results in measured:
        charts = experiment.charts(results) if results else ()
        beside = folder / experiment.name
        beside.mkdir(parents=True, exist_ok=True)
        (beside / "cases.csv").write_text(cases_csv(results), encoding="utf-8")
        words = draw(charts, beside)
        parts.append(_one(experiment, results, charts))
    page = folder / "report.html"
    footer = f"Every case and chart as CSV, SVG and PNG lies in the experiment's folder beside this page. {words}"
    save(page, html.document(f"Paper {paper.number} again", parts, footer))
    return page


def cases_csv(results: Results) -> str:
    """A line a case and seed, with everything that was measured but the curves."""
    fields = list(dict.fromkeys(k for r in results for k in r.case))
    values = dict.fromkeys(k for r in results for k, v in r.measured.items() if not isinstance(v, (list, dict)))
    values = [name for name in values if name not in fields]
    rows = [
        [*(r.case.get(f, "") for f in fields), r.seed, *(r.measured.get(v, "") for v in values), round(r.seconds, 2)]
        for r in results
    ]
    return csv_table((*fields, "seed", *values, "seconds"), rows)


def stated_rows(experiment: Experiment, results: Results) -> list[tuple[str, ...]]:
    """What the paper states beside what was measured, as texts under HEAD."""
    return [_row(stated, results, experiment.shown(results)) for stated in experiment.stated]


def _row(stated: Stated, results: Results, shown: Results) -> tuple[str, ...]:
    published, sound = (_chosen(shown, case) for case in (stated.published, stated.sound))
    theirs = stated.theirs if isinstance(stated.theirs, str) else f"{stated.theirs:.1%}"
    claimed = "" if stated.claimed is None else f"{stated.claimed:g}"
    proven = "; ".join(
        f"{_epsilon(chosen)}{f' ({name})' if published and sound else ''}"
        for name, chosen in (("their form", published), ("sound", sound))
        if chosen and chosen.all("epsilon")
    )
    ours = [_share(chosen, stated.measure) for chosen in (published, sound)]
    verdict = stated.judged(results)
    size = "the paper trains nothing" if stated.size is None else str(stated.size)
    return stated.what, theirs, *ours, claimed, proven, size, our_size(verdict.arms), str(verdict)


def _chosen(results: Results, case: Case | None) -> Results:
    return Results() if case is None else results.where(**case)


def _share(results: Results, measure: str) -> str:
    mean, deviation = results.mean(measure), results.deviation(measure)
    if math.isnan(mean):
        return ""
    return f"{mean:.1%}" + ("" if math.isnan(deviation) else f" ± {100 * deviation:.1f}")


def _epsilon(results: Results) -> str:
    """The largest that is proven of any of them, never rounded down."""
    worst = max(results.all("epsilon"))
    return "nothing" if math.isinf(worst) else round_up(worst) if worst < 1e4 else f"{worst:.1e}"


def _one(experiment: Experiment, results: Results, charts: Sequence[Chart]) -> html.Html:
    parts = [html.Html(f"<p>{html.text(experiment.about)}</p>")]
    rows = stated_rows(experiment, results)
    if rows:
        shown = [h if h in ("stated in the paper", "their size", "our size", "verdict") else (h,) for h in HEAD]
        parts.append(html.table(shown, rows, kind="cards"))
    if charts:
        parts.append(html.grid(charts))
    words = experiment.found(results) if results else "Not run yet."
    parts.append(html.Html(f"<p>{html.text(words)}</p>" if words else ""))
    seconds, seeds = sum(r.seconds for r in results), len({r.seed for r in results})
    spent = f"{len(results)} trainings, {seeds} seed{'' if seeds == 1 else 's'}, {seconds:,.0f} seconds of CPU time."
    parts.append(html.Html(f'<p class="under">{html.text(spent)}</p>'))
    return html.section(f"{experiment.name}: {experiment.title}", *parts)
