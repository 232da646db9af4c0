"""The commands, each in its file; and what becomes of a user's mistakes."""

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from discreet import __version__
from discreet.cli.audit import audit
from discreet.cli.check import check
from discreet.cli.demo import demo
from discreet.cli.federate import federate
from discreet.cli.plan import plan
from discreet.cli.report import report
from discreet.cli.reproduce import reproduce
from discreet.cli.resume import resume
from discreet.cli.train import train
from discreet.cli.verify import verify
from discreet.errors import ConfigError, PrivacyError

app = typer.Typer(
    help="Train PyTorch models on private data, and know exactly what has been proven about the result.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (demo, plan, train, federate, check, resume, audit, report, reproduce, verify):
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
    """Run the command line; what the user got wrong is one clear line and exit code 2."""
    try:
        app(standalone_mode=True)
    except (ConfigError, PrivacyError) as error:
        words = Text.assemble(("discreet: ", "bold red"), str(error))
        Console(stderr=True).print(words, soft_wrap=True)
        sys.exit(2)
