"""Lines that follow one another: each is JSON, and carries the hash of the one before it and its own.

A line's hash is the SHA-256 of its text without the hash (and without the signature, if there is a key). So a line
cannot be changed, moved or taken out of the middle unnoticed. Whoever can rewrite the whole file can forge it: a chain
without a secret proves no more.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any

from discreet.errors import PrivacyError

FORMAT = "discreet-ledger/2"
OLD = "discreet-ledger/1"  # before runs had an identity of their own, and before ledgers held what was tested
KINDS = ("dataset", "cap", "declared", "run", "release", "query", "evidence", "end")
_LONGEST = 1 << 24  # bytes a line may have
_CHAIN = ("previous", "hash", "signature")  # what a line says of its place in the file
_TEXT = json.JSONEncoder(sort_keys=True).encode
_HASH = b'"hash": "'
_ONE_STEP = re.compile(  # a release of a run as it is written almost always, so that a million of them are read soon
    rb'\{"at": "[^"\\]*", "count": (\d{1,7}), "hash": "([0-9a-f]{64})", "kind": "release", "multiplier": ([0-9.e+-]+), '
    rb'"participations": (\d{1,7}), "previous": "([0-9a-f]{64})", "rate": ([0-9.e+-]+), "run": "([0-9a-f]+)", '
    rb'"step": (\d{1,18})\}'
)


def chained(content: Mapping[str, Any], previous: str, key: bytes | None) -> tuple[bytes, str]:
    """A line of the file, and its hash.

    Args:
        content: what the line says.
        previous: the hash of the line before it.
        key: signs the line, where there is one.
    """
    body = {k: v for k, v in content.items() if k not in _CHAIN} | {"previous": previous}
    # the text of both, with and without the hash, has its keys in order: what stands before it and what stands after it
    before = _TEXT({k: v for k, v in body.items() if k < "hash"})[1:-1]
    after = _TEXT({k: v for k, v in body.items() if k > "hash"})[1:-1]
    digest = hashlib.sha256(f"{{{before}{', ' if before else ''}{after}}}".encode()).hexdigest()
    signature = content.get("signature")  # if there is no key, there is nothing to check it with
    if key is not None:
        signature = hmac.new(key, digest.encode(), hashlib.sha256).hexdigest()
    if signature is not None or "signature" in content:
        after = _TEXT({**{k: v for k, v in body.items() if k > "hash"}, "signature": signature})[1:-1]
    return f'{{{before}{", " if before else ""}"hash": "{digest}", {after}}}\n'.encode(), digest


def checked(line: bytes, previous: str, key: bytes | None) -> tuple[dict[str, Any], str]:
    """What a line says and its hash, if it follows in the chain; a PrivacyError says what is wrong with it."""
    content = _parse(line)
    expected, digest = chained(content, previous, key)
    if expected != line + b"\n":
        raise PrivacyError("it was changed, moved, or follows a gap")
    return content, digest


def one_step(line: bytes, previous: str) -> tuple[str, tuple[str, tuple[int, int, int, float, float]]] | None:
    """The hash, run and figures (step, count, participations, rate, multiplier) of a plain release without signature.

    None where it is anything else, or does not follow: then `checked` reads it, or says what is wrong.
    """
    found = _ONE_STEP.fullmatch(line)
    if found is None:
        return None
    count, digest, multiplier, participations, before, rate, run, step = found.groups()
    body = line[: found.start(2) - len(_HASH)] + line[found.end(2) + 3 :]  # without the hash, its quotes and comma
    if before != previous.encode() or hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    try:
        figures = int(step), int(count), int(participations), float(rate), float(multiplier)
    except ValueError:
        return None
    return digest.decode(), (run.decode(), figures)


def _parse(line: bytes) -> dict[str, Any]:
    if len(line) > _LONGEST:
        raise PrivacyError("it is too long")
    try:
        content = json.loads(line, parse_constant=_no_constants)
    except (ValueError, RecursionError) as error:
        raise PrivacyError(f"it cannot be read ({error})") from error
    if not isinstance(content, dict):
        raise PrivacyError("it is not a record")
    return content


def _no_constants(name: str) -> None:
    raise ValueError(f"{name} is no figure")


# --- lines that were cut off -----------------------------------------------------------------------------------------

_FORMS = {  # of values, each with one that is as it must be
    "at": (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-01-01T00:00:00Z"),
    "hash": (re.compile(r"[0-9a-f]{64}"), "0" * 64),
}
_STRING = re.compile(r'"(?:[ !#-\[\]-~]|\\(?:["\\/bfnrt]|u[0-9a-f]{4}))*"')
_STRING_BEGUN = re.compile(r'"(?:[ !#-\[\]-~]|\\(?:["\\/bfnrt]|u[0-9a-f]{4}))*(?:\\(?:u[0-9a-f]{0,3})?)?')
_PLAIN = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|true|false|null")
_PLAIN_BEGUN = re.compile(r"-?\d*(?:\.\d*)?(?:e[+-]?\d*)?|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?")


class _End(Exception):
    """The text ends here, in the middle of a line."""


class _Prefix:
    """Reads the beginning of a line's text, as this library writes it; `found` are its values that are complete."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.found: dict[str, str] = {}  # of the outermost table, as JSON
        self.whole = False  # whether only the line's end is missing

    def read(self) -> bool:
        """Whether the text is the beginning of a line, or a whole one."""
        try:
            self._table(outer=True)
        except _End:
            return True
        except (ValueError, RecursionError):
            return False
        self.whole = True
        return self.at == len(self.text)

    def _table(self, *, outer: bool = False) -> None:
        self._word("{")
        last = None
        while self._peek() != "}":
            if last is not None:
                self._word(", ")
            rest = self.text[self.at :]
            if last is not None and rest < last[: len(rest)]:
                raise ValueError("keys out of order")
            key = self._string()
            if last is not None and not last < key:
                raise ValueError("keys out of order")
            last = key
            self._word(": ")
            start = self.at
            self._value()
            if outer:
                self.found[json.loads(key)] = self.text[start : self.at]
        self._word("}")

    def _value(self) -> None:
        first = self._peek()
        if first == "{":
            self._table()
        elif first == "[":
            self._word("[")
            began = True
            while self._peek() != "]":
                if not began:
                    self._word(", ")
                began = False
                self._value()
            self._word("]")
        elif first == '"':
            self._string()
        else:
            self._scan(_PLAIN, _PLAIN_BEGUN)
            self._peek()  # a number may go on

    def _string(self) -> str:
        return self._scan(_STRING, _STRING_BEGUN)

    def _scan(self, whole: re.Pattern[str], origin_step: re.Pattern[str]) -> str:
        self._peek()
        if origin_step.fullmatch(self.text, self.at):
            raise _End
        if found := whole.match(self.text, self.at):
            self.at = found.end()
            return found.group()
        raise ValueError("no value")

    def _peek(self) -> str:
        if self.at == len(self.text):
            raise _End
        return self.text[self.at]

    def _word(self, word: str) -> None:
        rest = self.text[self.at : self.at + len(word)]
        if not word.startswith(rest):
            raise ValueError(f"no {word}")
        self.at += len(rest)
        if rest != word:
            raise _End


def cut_off(torn: bytes, previous: str) -> dict[str, Any]:
    """The values that are complete in a line that a crash has cut off; a PrivacyError if it is no beginning of one.

    A crash leaves the beginning of what was to be written. Anything else was written by somebody else, or is a disk's
    fault, and is not taken for a crash.
    """
    wrong = PrivacyError(
        "what follows the last line is not the beginning of one: somebody wrote there, or the disk lost it. If it was "
        f"a power failure, nothing in these {len(torn):,} bytes was released: take them off the file's end"
    )
    try:
        prefix = _Prefix(torn.decode("ascii"))
    except ValueError as error:
        raise wrong from error
    if len(torn) > _LONGEST or not prefix.read():
        raise wrong
    try:
        found = {key: json.loads(text) for key, text in prefix.found.items()}
    except ValueError as error:  # a number of thousands of digits
        raise wrong from error
    fits = found.get("previous", previous) == previous and found.get("kind", "release") in KINDS
    fits &= all(pattern.fullmatch(str(found.get(key, like))) is not None for key, (pattern, like) in _FORMS.items())
    if not fits:
        raise wrong
    if prefix.whole:
        try:
            checked(torn, previous, None)
        except PrivacyError as error:
            raise wrong from error
    return found
