"""The page a person reads after a run: one self-contained HTML file, for one run or for several.

record.py    a run folder, read: configuration, plan, ledger, measurements, guarantee, audit
charts.py    charts as data, and as SVG
figures.py   which charts a page has
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
from discreet.report.record import Audit, AuditPoint, Measure, Record, read

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
    "render",
    "save",
    "write",
]
