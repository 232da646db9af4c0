"""What pages are made of: sections, tables, figures, a self-contained document; texts are escaped and inert."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from discreet._check import inert
from discreet.report.charts import Chart, style, svg, swatch


class Html(str):
    """Text that is HTML already; every other text is escaped where it is put into a page."""

    __slots__ = ()


def heading(title: str, under: str) -> Html:
    """The name of a page, and a line beneath it."""
    return Html(f"<h1>{text(title)}</h1>" + (f'<p class="under">{text(under)}</p>' if under else ""))


def text(value: str) -> str:
    """A text, escaped unless it is HTML."""
    return value if isinstance(value, Html) else escape(inert(value))


def classed(name: str) -> str:
    """The attribute that gives an element this class, if any."""
    return f' class="{name}"' if name else ""


def mark(words: str, status: str) -> Html:
    """Words in the colour of a status."""
    return Html(f'<span class="{"broken-mark" if status == "broken" else status}">{text(words)}</span>')


def section(title: str, *parts: Html, level: int = 2) -> Html:
    """Parts under a title."""
    return Html(f"<section><h{level}>{text(title)}</h{level}>{''.join(parts)}</section>")


def table(
    head: Sequence[str | tuple[str]], rows: Iterable[Sequence[str]], broken: Sequence[bool] = (), kind: str = ""
) -> Html:
    """A table with headers; a header in brackets of its own is that of a column of figures.

    On a phone a table of `kind` "cards" has a block a row, and one of "pairs" a line for each half.
    """
    figures = [' class="figure"' if isinstance(h, tuple) else "" for h in head]
    titles = [h[0] if isinstance(h, tuple) else h for h in head]
    tops = "".join(f'<th scope="col"{f}>{text(t)}</th>' for t, f in zip(titles, figures, strict=True))
    body = []
    for number, row in enumerate(rows):
        first, *others = (text(cell) for cell in row)
        named = [f' data-label="{text(t)}"' if "cards" in kind.split() else "" for t in titles[1:]]
        cells = "".join(f"<td{f}{n}>{cell}</td>" for cell, f, n in zip(others, figures[1:], named, strict=True))
        bad = classed("broken-row" if number < len(broken) and broken[number] else "")
        body.append(f'<tr{bad}><th scope="row"{figures[0]}>{first}</th>{cells}</tr>')
    inner = f"<thead><tr>{tops}</tr></thead><tbody>{''.join(body)}</tbody>"
    return Html(f'<div class="wide"><table{classed(kind)}>{inner}</table></div>')


def pairs(what: str, rows: Iterable[tuple[str, str]]) -> Html:
    """A table of names and values."""
    shown = [(name, Html(f"<code>{text(value)}</code>")) for name, value in rows]
    return table((what, "value"), shown, kind="pairs") if shown else Html("<p>None is recorded.</p>")


def grid(drawn: Sequence[Chart], *others: Html) -> Html:
    """Charts and other parts, as many beside each other as fit."""
    beside = "".join(f"<div>{other}</div>" for other in others)
    return Html(f'<div class="charts">{"".join(figure(chart) for chart in drawn)}{beside}</div>')


def figure(chart: Chart) -> str:
    """A chart with its title, legend and note."""
    items = "".join(f"<li>{swatch(s)}{text(s.name)}</li>" for s in chart.series)
    legend = f'<ul class="legend">{items}</ul>' if len(chart.series) > 1 else ""
    note = f"<figcaption>{text(chart.note)}</figcaption>" if chart.note else ""
    return f'<figure id="{chart.key}"><h3>{text(chart.title)}</h3>{legend}{svg(chart)}{note}</figure>'


def document(title: str, parts: Iterable[str], footer: str) -> str:
    """The whole page: no script, style or picture in it comes from elsewhere."""
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
<title>{text(title)}</title><style>{looks}</style></head>
<body><main>
{"".join(parts)}
<footer>Written by discreet. {text(footer)}</footer>
</main><script>{script}</script></body></html>
"""


def _asset(name: str) -> str:
    return files(__name__.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """What a browser must find a style or a script to hash to before it uses it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
