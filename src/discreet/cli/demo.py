"""discreet demo: a small network learns to read scikit-learn's digits, privately."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.options import AsJson
from discreet.cli.printing import print_json
from discreet.cli.running import carry_out, print_outcome, values
from discreet.runs.config import EXAMPLES, Config, from_dict
from discreet.runs.terminal import Terminal


def demo(
    epsilon: Annotated[float, typer.Option(help="The budget to train to.")] = 3.0,
    delta: Annotated[float, typer.Option(help="The probability left out of the guarantee.")] = 1e-5,
    epochs: Annotated[float, typer.Option(help="How often each example takes part, on average.")] = 60.0,
    out: Annotated[Path, typer.Option(help="The run's folder; an existing one is left alone.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """The whole story on bundled data: plan, probe, train on scikit-learn's digits, verify, report."""
    import torch
    from torch.nn import functional as F

    from discreet.accounting.guarantee import round_up
    from discreet.ledger.verification import verify
    from discreet.models.networks import build
    from discreet.release.preflight.check import preflight
    from discreet.runs.run import train

    run, folder, console = config(epsilon, delta, epochs), free(out), Terminal(stderr=True)
    say = partial(console.print, markup=True)
    plan = run.plan(EXAMPLES["digits"])
    noise = plan.mechanism.noise.scale or 0.0
    say(f"[bold]Plan[/bold]    {plan.steps:,} steps at noise {noise:.3f} fit ε = {epsilon:g}, δ = {delta:g}.")
    torch.manual_seed(0)
    made_up = torch.rand(8, 1, 8, 8), torch.arange(8)
    model = build("cnn", (1, 8, 8), 10)
    preflight(model, lambda m, batch: F.cross_entropy(m(batch[0]), batch[1], reduction="none"), made_up)
    say("[bold]Probe[/bold]   on made-up digits: no example has influence on another's gradient.")
    say(f"[bold]Train[/bold]   on {EXAMPLES['digits']:,} digits, each step counted before it is released.")
    outcome = carry_out(lambda watch: train(run, folder, watch), quiet=True)
    verified = verify(folder, anchor=outcome.anchor)
    proven = round_up(verified.runs[0].guarantee.epsilon)
    say(f"[bold]Verify[/bold]  {verified.lines:,} lines of the ledger are as they were written: ε = {proven}.")
    if as_json:
        print_json(values(outcome) | {"report": str(folder / "report.html")})
    else:
        print_outcome(outcome)


def config(epsilon: float, delta: float, epochs: float) -> Config:
    """Scikit-learn's digits, two convolutions and a linear layer, a large batch."""
    return from_dict(
        {
            "data": {"name": "digits"},
            "model": {"name": "cnn"},
            "budget": {"epsilon": epsilon, "delta": delta, "epochs": epochs, "batch_size": 512},
            "optimizer": {"learning_rate": 0.5, "momentum": 0.9},
            "schedule": {"name": "cosine"},
            "evaluation": {"every": max(1.0, epochs / 12)},
        }
    )


def free(folder: Path) -> Path:
    """The folder, or with a number behind it the first that does not exist: a run never overwrites another."""
    candidates = (folder if i == 1 else folder.with_name(f"{folder.name}-{i}") for i in range(1, 10**6))
    return next(c for c in candidates if not c.exists())
