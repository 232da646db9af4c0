"""Files that a fuzzer has made of good ones: each is read, or refused in words, within a gibibyte and in time.

What people have thought of is in hostile_texts.py, hostile_files.py and hostile_runs.py, and tried beside each reader.
"""

import io
import os
import resource
import tomllib
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hostile_texts
import numpy as np
import pytest
import small_runs
import torch
from closed_box import MEMORY
from data_files import idx, image, pixels
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import ConfigError, PrivacyError, verify
from discreet.cli.exits import one_line
from discreet.data import load
from discreet.data.describe import describe
from discreet.data.images import decoded
from discreet.data.inputs import inputs
from discreet.data.mnist import _idx_array
from discreet.data.schema import rules_of
from discreet.data.tables import table
from discreet.runs.config import load as read_config
from discreet.runs.run import train
from discreet.runs.trained.manifest import Manifest
from discreet.training.checkpoint import _read as read_checkpoint

EXAMPLES = 1000 if os.environ.get("DISCREET_SOAK") else 40
SECONDS = 300 if os.environ.get("DISCREET_SOAK") else 60  # of processor time for all of a kind
TOKENS = (
    b"", b"\0", b"\xff", b"\x80\x04", b"-1", b"1e999", b"nan", b"9" * 400, b"9" * 5000, b"[" * 200, b"{" * 200,
    b"'", b'"', b"\n", b"\r", b",", b".a" * 100, b"=", b"null", b"true", b"2020-01-01", b"\\ud800",
    b"\xed\xa0\x80", b"\x1b[31m", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x80", b"(1,)",
    b"__import__('os')", b"inf", b"0", b"1e-320",
)  # fmt: skip
RULES = tomllib.loads(hostile_texts.SCHEMA)


@dataclass(frozen=True)
class Kind:
    """A kind of file: a good one, its ending, and what reads it."""

    good: Callable[[Path], bytes]
    ending: str
    read: Callable[[Path], object]


def _npz(folder):
    out = io.BytesIO()
    np.savez(out, x=np.zeros((4, 2), "f4"), y=np.arange(4) % 2)
    return out.getvalue()


def _parquet(folder):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    good = {"age": [30.0, 40.0, 50.0, 60.0], "job": ["nurse", "judge"] * 2, "ill": ["no", "yes"] * 2}
    parquet.write_table(pyarrow.table(good), out)
    return out.getvalue()


def _image(folder):
    pytest.importorskip("PIL")
    return image(pixels(6, 5, 3))


def _run(folder, file):
    train(small_runs.config(small_runs.table_at(folder)), folder / "run", small_runs.stopping(3))
    return (folder / "run" / file).read_bytes()


def _config(folder):
    return "".join(f"{name} = {value}\n" for name, value in hostile_texts.GOOD.items()).encode()


def _npy(folder):
    out = io.BytesIO()
    np.save(out, np.zeros((4, 5), "f4"))
    return out.getvalue()


def _manifest(folder):
    train(small_runs.config(small_runs.table_at(folder)), folder / "run")
    return (folder / "run" / "model.json").read_bytes()


def _made(path):
    (path.parent / "model.json").write_bytes(path.read_bytes())
    return Manifest.read(path.parent).make()


KINDS = {
    "config": Kind(_config, ".toml", lambda path: read_config(path).check()),
    "schema": Kind(lambda folder: hostile_texts.SCHEMA.encode(), ".toml", lambda path: rules_of("s", _toml(path))),
    "csv": Kind(lambda folder: hostile_texts.TABLE, ".csv", lambda path: table(path, schema=RULES)),
    "npz": Kind(_npz, ".npz", lambda path: load(str(path))),
    "parquet": Kind(_parquet, ".parquet", lambda path: table(path, schema=RULES)),
    "idx": Kind(lambda folder: idx(pixels(3, 28, 28)), "", lambda path: _idx_array(path, (28, 28))),
    "images": Kind(_image, ".png", lambda path: decoded([(str(path), path, 0)], None, channels=None)),
    "ledger": Kind(lambda folder: _run(folder, "ledger.jsonl"), ".jsonl", verify),
    "rows": Kind(_npy, ".npy", lambda path: inputs(path, {"kind": "array", "shape": [5]})),
    "described": Kind(lambda folder: hostile_texts.TABLE, ".csv", lambda path: describe(path, "ill")),
    "model": Kind(_manifest, ".json", _made),
    "checkpoint": Kind(lambda folder: _run(folder, "checkpoint"), "", read_checkpoint),
}


def _toml(path):
    from discreet._documents import read_toml

    return read_toml(path)


@st.composite
def mutated(draw, good):
    """The bytes of a good file with pieces changed, cut out, doubled, moved, or replaced by tokens."""
    content = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.sampled_from((0, 1, 2, 4, 8, 40)))
        kind = draw(st.sampled_from(("token", "token", "cut", "double", "bytes", "end")))
        piece = content[at : at + length]
        if kind == "token":
            content[at : at + length] = draw(st.sampled_from(TOKENS))
        elif kind == "cut":
            del content[at : at + length]
        elif kind == "double":
            content[at:at] = piece * draw(st.sampled_from((1, 3, 200)))
        elif kind == "bytes":
            content[at : at + length] = draw(st.binary(max_size=8))
        else:
            del content[at:]
    return bytes(content)


@pytest.mark.parametrize("name", KINDS)
def test_what_a_fuzzer_makes_is_read_or_refused(name, tmp_path):
    kind = KINDS[name]
    good = kind.good(tmp_path)
    path = tmp_path / f"fuzzed{kind.ending}"
    path.write_bytes(good)
    kind.read(path)
    refused = tmp_path / "refused"

    @settings(max_examples=EXAMPLES)
    @given(mutated(good))
    def read(content):
        path.write_bytes(content)
        try:
            kind.read(path)
        except (ConfigError, PrivacyError) as error:
            line = one_line(str(error))
            assert len(line) <= 300
            assert line.isprintable()
            with refused.open("a") as file:
                file.write("x")

    _in_a_box(read, tmp_path / "trace")
    assert refused.stat().st_size >= EXAMPLES / 4, "a fuzzer whose files are mostly good tries nothing"


def _in_a_box(work, trace):
    """Do something in a child that has so much memory and time."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
            used = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS))
            work()
            code = 0
        except BaseException:
            trace.write_text(traceback.format_exc())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, trace.read_text() if trace.exists() else f"it had no end: {status}"
