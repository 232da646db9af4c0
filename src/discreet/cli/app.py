"""The commands, each in its file."""

import sys
from typing import Annotated

import typer

from discreet import __version__
from discreet.cli import exits
from discreet.cli.audit import audit
from discreet.cli.budget import budget
from discreet.cli.check import check
from discreet.cli.demo import demo
from discreet.cli.doctor import doctor
from discreet.cli.export import export
from discreet.cli.federate import federate
from discreet.cli.plan import plan
from discreet.cli.predict import predict
from discreet.cli.report import report
from discreet.cli.reproduce import reproduce
from discreet.cli.resume import resume
from discreet.cli.schema import schema
from discreet.cli.train import train
from discreet.cli.tune import sweep, tune
from discreet.cli.verify import verify

app = typer.Typer(
    help="Train PyTorch models on private data, and know exactly what has been proven about the result.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
for command in (
    *(demo, plan, schema, train, federate, check, resume, predict, export),
    *(budget, tune, sweep, audit, report, reproduce, verify, doctor),
):
    app.command()(command)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"discreet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Options that stand before a command."""


def main() -> None:
    """Run the command line; exits.py has its exit codes."""
    sys.exit(exits.run(app))
