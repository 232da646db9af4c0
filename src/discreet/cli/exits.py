"""How a command ends: an exit code, and one line of what is wrong, for all that can be expected to go wrong."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import typer
from rich.text import Text

from discreet._check import inert
from discreet.errors import BudgetExhausted, ConfigError, PrivacyError
from discreet.runs import terminal

BAD_INPUT, REFUSED, EXHAUSTED = (kind.exit_code for kind in (ConfigError, PrivacyError, BudgetExhausted))
HOLDS_NOT, BROKEN, NO_OUTPUT = 1, 70, 74
INTERRUPTED, NO_READER = 128 + signal.SIGINT, 128 + signal.SIGPIPE
CODES = {
    0: "done; also a finished run that is resumed",
    HOLDS_NOT: "does not hold: a ledger was changed (verify), what is proven is contradicted (audit, train --audit), "
    "a plan is too weak (check), or a device computes something else (doctor)",
    BAD_INPUT: "bad input: a flag, a file or a value; one line says which, its bound and the remedy",
    REFUSED: "refused: going on would break the guarantee, or what a run left was changed",
    EXHAUSTED: "the budget is exhausted: a plan's, or the cap over a data set",
    BROKEN: "an error of discreet itself; please report it, with what DISCREET_TRACEBACK=1 shows",
    NO_OUTPUT: "the output cannot be written: a full disk, a closed stream; what a run has on disk is whole",
    INTERRUPTED: "interrupted by Ctrl-C (143: by SIGTERM); a run is saved, and `discreet resume` goes on",
    NO_READER: "nobody reads the output any more, as in `discreet ... | head`",
}

LONGEST = 300  # letters of an error's line
TRACEBACK = "DISCREET_TRACEBACK"  # set in the environment, it shows where an error comes from
_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)
_click: Any = sys.modules[typer.BadParameter.__module__]  # the click that typer uses, its own or the package


def run(app: typer.Typer) -> int:
    """Run the command that the arguments name, and return its exit code."""
    try:
        terminal.prepare()
        code = _invoke(app)
        terminal.finish()
    except BaseException as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        if bool(os.environ.get(TRACEBACK)):
            traceback.print_exc()
        code = ended_by(error)
    terminal.finish_complaints()
    return code


def _invoke(app: typer.Typer) -> int:
    if any("\0" in argument for argument in sys.argv):
        raise ConfigError("an argument has the character NUL, which no name can have.")
    returned = typer.main.get_command(app).main(prog_name="discreet", standalone_mode=False)
    return returned if isinstance(returned, int) else 0


def ended_by(error: BaseException) -> int:
    """Say in one line what went wrong; the exit code."""
    for kind, answer in _ANSWERS:
        if isinstance(error, kind):
            return answer(error)
    if _is_memory(error):
        return _memory(error)
    if _is_worker(error):
        return _said(error, BAD_INPUT)
    return _broken(error)


def complain(words: str, head: str = "discreet: ") -> None:
    """One line on the error stream, of at most 300 letters; the middle of a longer one is left out."""
    console = terminal.Terminal(stderr=True)
    line = one_line(words, LONGEST - len(head), console.encoding)
    console.print(Text.assemble((head, "bold red"), line), soft_wrap=True)


def one_line(words: str, most: int = LONGEST, encoding: str = "utf-8") -> str:
    """Words in one line of at most so many letters: with their beginning, and their end, where the remedy is.

    >>> one_line("a name of many letters: " + "n" * 500 + "; take a shorter one.", 60)
    'a name of many letters: nnnnnnnnnnnn ... take a shorter one.'
    """
    text = " ".join(terminal.legible(inert(words[:100_000]), encoding).split())
    if len(text) <= most:
        return text
    end = min(most // 3, 110)
    last = text[-end:]
    cut = last.find(" ") + 1
    last = last[cut:] if 0 < cut < end // 2 or cut > 1 else last
    return f"{text[: most - len(last) - 5].rstrip()} ... {last}"


# --- what each kind of error means -----------------------------------------------------------------------------------


def _said(error: BaseException, code: int) -> int:
    complain(str(error))
    return code


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return BAD_INPUT
    path = getattr(getattr(error, "ctx", None), "command_path", "discreet")
    words = str(error.format_message()).rstrip(".")
    complain(f"{one_line(words, 200)}. What there is: {path} --help")
    return BAD_INPUT


def _interrupted(error: BaseException) -> int:
    complain("interrupted.")
    return INTERRUPTED


def _memory(error: BaseException) -> int:
    complain(f"the memory of this machine, or what this process may have of it, is not enough: {error}")
    return BAD_INPUT


def _unreadable(error: Any) -> int:
    """A file, or the output itself."""
    if error.errno == errno.EPIPE:
        terminal.give_up(sys.stdout)
        return NO_READER
    if error.filename is None and error.errno in _OUTPUT:
        terminal.give_up(sys.stdout)
        complain(f"the output cannot be written: {error.strerror}. What a run has on disk is whole.")
        return NO_OUTPUT
    return _said(error, BAD_INPUT)


def _unread(error: BaseException) -> int:
    """What rich makes of a pipe that nobody reads."""
    terminal.give_up(sys.stdout)
    return NO_READER


def _broken(error: BaseException) -> int:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else ""
    words = one_line(f"{type(error).__name__}: {error}", LONGEST - 120)
    complain(f"an error of discreet itself{where}: {words}. Please report it; {TRACEBACK}=1 shows more.")
    return BROKEN


def _is_worker(error: BaseException) -> bool:
    """Whether a process that loads data has died."""
    return isinstance(error, RuntimeError) and "DataLoader worker" in str(error)


def _is_memory(error: BaseException) -> bool:
    """Whether torch, or the system, had no memory to give."""
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("can't allocate memory", "out of memory", "not enough memory")
    )


_ANSWERS: tuple[tuple[type[BaseException], Callable[[Any], int]], ...] = (
    (ConfigError, lambda error: _said(error, error.exit_code)),
    (PrivacyError, lambda error: _said(error, error.exit_code)),
    (_click.ClickException, _usage),
    (typer.Abort, _interrupted),
    (KeyboardInterrupt, _interrupted),
    (MemoryError, _memory),
    (OSError, _unreadable),
    (SystemExit, _unread),
)
