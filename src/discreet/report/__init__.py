"""The page a person reads after a run: one self-contained HTML file, for one run or for several.

record.py    a run, read from its folder or a ledger: configuration, plan, measurements, guarantee, audit
statement.py what a person signs, field by field, and what is not covered
attacker.py  what an attacker could do, in plain words and icons
terms.py     the words of the field, explained
registry.py  the statement as an entry of a public registry
charts.py    charts as data, and as SVG
figures.py   which charts a page has
merit.py     how good a model is
html.py      what pages are made of
page.py      the page; page.css, chart.css and page.js are its looks
files.py     the page on disk, and the figures beside it
pictures.py  charts as PNG, SVG or PDF, by matplotlib
plots.py     the charts that commands write: of a plan, of checks, of an attack
"""

from discreet.report import html
from discreet.report.charts import Axis, Chart, Series
from discreet.report.files import csv_table, draw, save, write
from discreet.report.page import page, render
from discreet.report.record import Audit, AuditPoint, Measure, Record, read, read_all
from discreet.report.registry import registry

__all__ = [
    "Audit",
    "AuditPoint",
    "Axis",
    "Chart",
    "Measure",
    "Record",
    "Series",
    "csv_table",
    "draw",
    "html",
    "page",
    "read",
    "read_all",
    "registry",
    "render",
    "save",
    "write",
]
