"""What an audit measured, in words and tables for a terminal."""

import math
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

WRONG = "This contradicts what is proven: the proof or the code is wrong. Do not publish the model."
UNCOVERED = (
    "These figures were computed with the data themselves, so the guarantee does not cover them: they are the "
    "operator's."
)


def words(audit: Mapping[str, Any]) -> Text:
    """What canaries showed, beside what is proven and what is claimed; red where they contradict a proof."""
    if "lost" in audit:
        return Text(f"The audit was lost: {audit['lost']}. Nothing was measured; training and guarantee are whole.")
    text = Text(
        f"Of {audit['guesses']:,} guesses about {audit['canaries']:,} canaries, declared before the first release, "
        f"{audit['correct']:,} were right. So ε is at least {floored(audit['epsilon_lower_bound'])} at δ = "
        f"{audit['delta']:g}, with confidence {1 - audit['level']:g}; {_stated(audit['epsilon'])} is proven (p-value "
        f"{audit['p_value']:.3g}). The attacker {audit['attacker']}. "
    )
    if audit["refuted"]:
        why = "" if audit["p_value"] < audit["level"] else "The proven trade-off curve is rejected. "
        text.append(why + WRONG, style="bold red")
    else:
        text.append("This does not contradict what is proven, and proves nothing.")
    for claim in audit.get("claims", ()):
        said = "is refuted" if claim["refuted"] else "is not refuted"
        text.append(f"\n{claim['source']}: the claimed {_stated(claim['epsilon'])} {said} (p {claim['p_value']:.3g}).")
    if not audit["covered"]:
        text.append(f"\n{UNCOVERED}")
    return text


def after(figures: Mapping[str, Any]) -> Group:
    """What the audit of a finished run measured."""
    told: list[Text | Table] = []
    attack = figures["membership"]
    if "refused" in attack:
        told.append(Text(f"No membership attack: {attack['refused']}.\n"))
    else:
        told += [_membership(attack), _membership_words(attack)]
    pipeline = figures.get("pipeline")
    if pipeline is None:
        told.append(Text("\nThe pipeline was not audited (--quick): epsilon was not measured from below."))
    elif "refused" in pipeline:
        told.append(Text(f"\nThe pipeline cannot be audited with gradient canaries: {pipeline['refused']}"))
    else:
        told.append(
            Text(
                f"\nThe same code, config and plan, run anew on {pipeline['rows']:,} rows of made-up data: this audits "
                "the pipeline and the plan, not this model, and spends nothing."
            )
        )
        told.append(words({**pipeline, "covered": True}))
    return Group(*told)


def _membership(attack: Mapping[str, Any]) -> Table:
    table = Table("false positives", box=SIMPLE_HEAD, header_style="bold")
    for name in ("true positives", f"{1 - attack['level']:.3g} interval", "allowed at most"):
        table.add_column(name, justify="right")
    for point in attack["at"]:
        allowed = "" if point["allowed"] is None else f"{point['allowed']:.1%}"
        interval = f"{point['low']:.1%} to {point['high']:.1%}"
        table.add_row(f"{point['false_positives']:.1%}", f"{point['true_positives']:.1%}", interval, allowed)
    return table


def _membership_words(attack: Mapping[str, Any]) -> Text:
    text = Text(
        f"{attack['members']:,} training rows against {attack['others']:,} held-out rows by their loss: area under the "
        f"curve {attack['auc']:.3f} ({attack['auc_low']:.3f} to {attack['auc_high']:.3f}). {UNCOVERED}"
    )
    if any(point["disproves"] for point in attack["at"]):
        more = (
            " More training rows are told apart than the guarantee allows. Rows of one model are not independent, and "
            "held-out rows may be of another kind; it is a reason to look."
        )
        text.append(more, style="bold yellow")
    return text


def floored(epsilon: float) -> str:
    """A lower bound, rounded down."""
    return f"{math.floor(epsilon * 1000) / 1000:.3f}"


def _stated(epsilon: float | str) -> str:
    return "no ε" if epsilon == "inf" else f"ε = {float(epsilon):.4g}"
