"""README.md of a run's folder: the model card, in the form that model hubs read, with the guarantee in it."""

import html
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from discreet._check import inert
from discreet.ledger.verification import VerifiedRun
from discreet.runs.config import Config
from discreet.runs.trained.manifest import Manifest

CARD = "README.md"


def card(folder: Path, config: Config, manifest: Manifest, own: VerifiedRun, last: Mapping[str, Any]) -> str:
    """The card of a finished run, of what its ledger proves, its manifest says, and was measured last."""
    proven, accuracy, figures = own.guarantee, last.get("accuracy"), last.get("merit") or {}
    network = manifest.network
    predicts = (
        f"one of {len(manifest.classes)} classes: {', '.join(map(_text, manifest.classes))}"
        if manifest.classes is not None
        else "a number" + ("" if manifest.target is None else f" from {manifest.target[0]:g} to {manifest.target[1]:g}")
    )
    if accuracy is not None:
        said, metric = f"Accuracy {accuracy:.1%}", ("accuracy", accuracy)
    elif "rmse" in figures:
        said, metric = f"Root mean square error {figures['rmse']:.4g}", ("rmse", figures["rmse"])
    else:
        said, metric = "", None
    measured = (
        f"{said} on data that was held out. Held-out data is not protected: this figure was computed on it without "
        "noise."
        if said
        else "Nothing was measured: no data was held out."
    )
    shown = "\n".join(_metrics(manifest, metric))
    own_code = ":" in network["name"]
    code = f" Its network is made by `{_text(network['name'])}`, which is imported, and runs." if own_code else ""
    return f"""---
library_name: discreet
pipeline_tag: {manifest.task}
tags:
- differential-privacy
- pytorch
{shown}
---

# {_text(folder.absolute().name)}

A {_text(network["name"])} network that was trained on '{_text(manifest.data)}' with differential privacy. It predicts \
{predicts}.

## What is proven

{_text(str(proven), lines=True)}

Derived from the run's ledger. Do not believe this page: `discreet verify` derives it again, from the ledger alone, and
compares the model with the hash in the ledger's closing line.

## What was measured

{measured}

## How it is used

```
discreet predict {_text(folder.absolute().name)} FILE --out predictions.csv
```

```python
import discreet

trained = discreet.load({json.dumps(folder.absolute().name)})
trained.predict("FILE")
```

The folder holds all that this needs, and can be moved.{code}

## How it was trained

| | |
| --- | --- |
| data | {_text(manifest.data)} |
| unit of privacy | {_text(proven.unit)} |
| steps | {own.released:,} of {own.planned:,} |
| bound, noise | {_stage(own, "bound")}, {_stage(own, "noise")} |
| optimizer | {config.optimizer.name} |
| run | {own.run} |
| made with | {", ".join(f"{name} {found}" for name, found in manifest.versions.items())} |
"""


def _stage(own: VerifiedRun, name: str) -> str:
    found = own.plan.get(name)
    return _text(str(found.get("type", "?"))) if isinstance(found, dict) else "?"


def _metrics(manifest: Manifest, metric: tuple[str, float] | None) -> list[str]:
    """What was measured, as a hub's index has it."""
    if metric is None:
        return []
    return [
        "model-index:",
        f"- name: {_quoted(manifest.network['name'])}",
        "  results:",
        f"  - task: {{type: {manifest.task}}}",
        f"    dataset: {{name: {_quoted(manifest.data)}, type: private}}",
        f"    metrics: [{{type: {metric[0]}, value: {metric[1]:.4f}}}]",
    ]


def _text(words: str, *, lines: bool = False) -> str:
    """Somebody's words as they are read: no markup or link, no cell of their own, nothing that steers a terminal."""
    plain = inert(words) if lines else " ".join(inert(words).replace("|", "\\|").replace("`", "'").split())
    return html.escape(plain, quote=False).replace("](", "]\\(")


def _quoted(words: str) -> str:
    """Somebody's words as a text in YAML."""
    return json.dumps(inert(words))
