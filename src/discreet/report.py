"""The page a person reads: one self-contained HTML file with the guarantee in words and in figures."""

from collections.abc import Mapping
from html import escape

from discreet.accounting.guarantee import Guarantee
from discreet.plan import Plan

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 17px/1.6 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
.figures { display: flex; gap: 1rem; flex-wrap: wrap; margin: 1.5rem 0; }
.figure { flex: 1; min-width: 9rem; padding: .8rem 1rem; background: var(--soft); border-radius: .5rem; }
.figure b { display: block; font-size: 1.6rem; line-height: 1.3; }
.statement { border-left: .25rem solid #4a7; padding: .2rem 0 .2rem 1rem; }
.broken { border-color: #c33; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .35rem .6rem .35rem 0;
border-bottom: 1px solid var(--line); vertical-align: top; } th { font-weight: 600; white-space: nowrap; }
code { overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; font-size: .85rem; opacity: .75; }
"""


def page(title: str, plan: Plan, guarantee: Guarantee, figures: Mapping[str, str], anchor: str = "") -> str:
    """A run as HTML: its headline figures, the guarantee as a paragraph, its conditions, and the plan.

    `anchor` is the hash of the ledger's last line, which shows later whether the file is still the same.
    """
    boxes = "".join(f'<div class="figure">{escape(k)}<b>{escape(v)}</b></div>' for k, v in figures.items())
    conditions = "".join(f"<tr><th>{escape(c.status)}</th><td>{escape(c.text)}</td></tr>" for c in guarantee.conditions)
    settings = {
        "sampling": repr(plan.sampling),
        "bound": repr(plan.mechanism.bound),
        "noise": repr(plan.mechanism.noise),
        "steps": f"{guarantee.released if guarantee.released is not None else 0:,} released of {plan.steps:,} planned",
        "unit, adjacency": f"{guarantee.unit}, {guarantee.adjacency}",
        **({"ledger's last hash": anchor} if anchor else {}),
    }
    rows = "".join(f"<tr><th>{escape(k)}</th><td><code>{escape(v)}</code></td></tr>" for k, v in settings.items())
    statement = "statement" if guarantee.sound else "statement broken"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<div class="figures">{boxes}</div>
<h2>What is proven</h2><p class="{statement}">{escape(str(guarantee))}</p>
<h2>On what it rests</h2><table>{conditions}</table>
<h2>The plan</h2><table>{rows}</table>
<footer>Written by discreet. The same in machine-readable form: guarantee.json; what was spent: ledger.jsonl.</footer>
</body></html>
"""
