"""What is printed, on any terminal: names that cannot steer it, letters that it has, an end when nobody reads on.

Text goes through `inert`, so that control characters in somebody's file name are shown and not obeyed, and through
`legible`, so that a terminal in ASCII or Latin-1 shows epsilon where it has no ε.
"""

import codecs
import errno
import io
import os
import sys
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from discreet._check import inert

_WORDS = {
    "ε": "epsilon", "δ": "delta", "μ": "mu", "σ": "sigma", "α": "alpha", "β": "beta", "λ": "lambda", "–": "-",
    "—": "-", "−": "-", "×": "x", "·": "*", "•": "*", "≤": "<=", "≥": ">=", "≈": "~", "→": "->", "√": "sqrt",
    "∞": "inf", "‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "±": "+-", "°": " degrees",
}  # fmt: skip
_LINES = dict.fromkeys("─━═╌┄╴╶╸╺", "-") | dict.fromkeys("│┃║╎┆", "|") | dict.fromkeys("█▉▊▋▌▍▎▏▇▆▅▄▃▂▁▓▒░", "#")


def legible(text: str, encoding: str) -> str:
    """The text in letters that an encoding has: words for Greek letters, plain lines for drawn ones.

    >>> legible("ε ≤ 3 │ é", "ascii")
    'epsilon <= 3 | e'
    """
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(letter if _has(encoding, letter) else _in_ascii(letter) for letter in text)
    except LookupError:
        return text.encode("ascii", "backslashreplace").decode()
    return text


def _has(encoding: str, letter: str) -> bool:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _in_ascii(letter: str) -> str:
    if letter in _WORDS or letter in _LINES:
        return _WORDS.get(letter) or _LINES[letter]
    if "─" <= letter <= "╿":
        return "+"
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or letter.encode("ascii", "backslashreplace").decode()


class Terminal(Console):
    """A console whose texts are inert and legible, before they are laid out in tables and boxes."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        file: Any = Patient() if stderr else None
        super().__init__(file=file, quiet=quiet, markup=False, emoji=False)  # names may look like markup

    def render_str(self, text: str, **settings: Any) -> Text:
        return super().render_str(self._shown(text), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        if isinstance(renderable, Text):
            renderable = self._plain(renderable)
        for segment in super().render(renderable, options):
            yield segment if segment.control is not None else Segment(self._shown(segment.text), segment.style)

    def _shown(self, text: str) -> str:
        return legible(inert(text), self.encoding)

    def _plain(self, text: Text) -> Text:
        """The same with its styles, where letters keep their places; otherwise in the style that all of it has."""
        shown = self._shown(text.plain)
        if shown == text.plain:
            return text
        plain = text.copy()
        plain.spans = [] if len(shown) != len(text.plain) else plain.spans
        plain.plain = shown
        return plain


class Patient:
    """The error stream; what it cannot take is dropped, as a run does not end because nobody reads how it goes."""

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError, AttributeError):  # full, closed, not there
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError, AttributeError):
            sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr is not None and sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    @property
    def encoding(self) -> str:
        return getattr(sys.stderr, "encoding", None) or "ascii"


class _Closed(io.TextIOBase):
    """A standard output that was closed before the process began."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "the standard output is closed")


def prepare() -> None:
    """Have the standard streams take any text, and no file of a run take the place of one that is closed."""
    codecs.register_error("discreet", _instead)
    for place in range(3):
        try:
            os.fstat(place)
        except OSError:  # or the ledger would get this number, and what C libraries print with it
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = _Closed()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="discreet")


def _instead(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written for letters that an encoding has not."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(map(_in_ascii, wrong)), error.end


def finish() -> None:
    """Have all that was printed written, or raise the OSError that says why not."""
    if sys.stdout is not None:
        sys.stdout.flush()


def finish_complaints() -> None:
    """Have what was complained written, where that can be; the interpreter is not to change its exit code for it."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        give_up(sys.stderr)


def give_up(stream: IO[str] | None) -> None:
    """Let the interpreter end without a second complaint about a stream that cannot be written."""
    try:
        assert stream is not None
        place = stream.fileno()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, place)
        os.close(null)
    except (OSError, ValueError, AssertionError, io.UnsupportedOperation):
        return
