"""discreet doctor."""

from typing import Annotated

import typer
from rich.text import Text

from discreet._check import check_positive
from discreet.cli.exits import HOLDS_NOT
from discreet.cli.options import AsJson
from discreet.cli.printing import print_json
from discreet.runs.terminal import Terminal

WORDS = {True: "holds", False: "DOES NOT HOLD", None: ""}


def doctor(
    device: Annotated[
        list[str] | None, typer.Option(help="A device, as cuda:0; may be given again. The CPU and all that torch sees.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long each of four kinds of step is timed; 0: none is.")] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Look at the devices of this machine: versions, exactness, noise, and speed beside SGD.

    Each example's gradient is compared with autograd's, one example at a time; the random bits of noise with the
    reference, bit for bit. No data is touched, and what is printed names no host, file or user: please send it in,
    above all from a machine with an accelerator. Exits with 1 if something is not as it must be.
    """
    from discreet.audit import doctor as examiner

    check_positive("--seconds", seconds, zero=True)
    chosen = [examiner.device_of(name) for name in device or []] or examiner.devices()
    report = examiner.Report(examiner.about(), [examiner.examine(one, seconds) for one in chosen])
    if as_json:
        print_json(report.to_dict())
    else:
        terminal = Terminal()
        terminal.print(Text(", ".join(f"{name} {what}" for name, what in report.about.items())))
        for found in report.devices:
            terminal.print(Text(f"\n{found.device} ({found.name})"))
            for check in found.checks:
                line = f"  {check.name:<10} {WORDS[check.holds]:<14} {check.words}"
                terminal.print(Text(line.rstrip()), soft_wrap=True)
    if not report.holds:
        raise typer.Exit(HOLDS_NOT)
