import hashlib
import hmac
import json
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from discreet import Clip, Gaussian, Mechanism, PerLayerClip, Plan, Poisson, PrivacyError, attach
from discreet.accounting.events import Event
from discreet.ledger import Ledger, RunLedger, chained, read
from discreet.stages.sensitivity import Layout

LAYOUT = Layout(("w",), ((2, 3),))


def plan(steps=5, bound=None):
    sampling = Poisson(examples=20, batch_size=5)
    return Plan(sampling=sampling, mechanism=Mechanism(bound or Clip(1.0), Gaussian(1.0)), steps=steps, delta=1e-5)


def account(path, made=None, layout=LAYOUT, **settings):
    return RunLedger(None if path is None else Ledger(path, **settings), made or plan(), layout)


def spent(path, count=3):
    ledger = account(path)
    for _ in range(count):
        ledger.spend()
    return ledger


def test_releases_are_counted_and_run_length_encoded():
    ledger = spent(None)
    assert ledger.released == 3
    assert ledger.events == (Event(0.25, 1.0, 3, adjacency="zero-out"),)


def test_a_file_continues_where_it_ended(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    first = spent(path)
    first.close()
    again = account(path)
    assert (again.released, again.head, again.events) == (3, first.head, first.events)
    assert len(path.read_text().splitlines()) == 4


def test_another_plan_or_model_is_refused(tmp_path):
    spent(tmp_path / "ledger.jsonl").close()
    with pytest.raises(PrivacyError, match="belongs to another plan"):
        account(tmp_path / "ledger.jsonl", plan(steps=6))
    with pytest.raises(PrivacyError, match="belongs to another model"):
        account(tmp_path / "ledger.jsonl", layout=Layout(("w",), ((2, 4),)))


@pytest.mark.parametrize("line", [0, 1, 2])
@pytest.mark.parametrize("damage", ["edit", "remove", "swap", "garbage", "number"])
def test_damage_is_found_and_its_line_named(tmp_path, line, damage):
    path = tmp_path / "ledger.jsonl"
    spent(path).close()
    lines = path.read_text().splitlines()
    if damage == "edit":
        lines[line] = lines[line].replace("1.0", "9.0")
    elif damage == "remove":
        del lines[line]
    elif damage == "swap":
        lines[line], lines[line + 1] = lines[line + 1], lines[line]
    else:
        lines[line] = "{]" if damage == "garbage" else "17"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(PrivacyError, match=f"damaged at line {line + 1}"):
        account(path)


@pytest.mark.parametrize("bound", [Clip(1.0), PerLayerClip(1.0)])
@pytest.mark.parametrize("keep", [1, 40, -1])
@pytest.mark.parametrize("releases", [0, 3])
def test_a_torn_last_line_counts_as_spent(tmp_path, keep, releases, bound):
    path = tmp_path / "ledger.jsonl"
    ledger = account(path, plan(bound=bound))
    for _ in range(releases + 1):
        ledger.spend()
    ledger.close()
    whole = path.read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    path.write_bytes(whole[: start + keep] if keep > 0 else whole[:keep])
    again = account(path, plan(bound=bound))
    assert again.released == releases + 1
    assert again.events == (Event(0.25, 1.0, releases + 1, adjacency="zero-out"),)
    again.close()
    assert json.loads(path.read_text().splitlines()[-1])["recovered"] is True
    assert account(path, plan(bound=bound)).released == releases + 1


def test_the_line_is_on_disk_before_the_noise_is_drawn(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    model = nn.Linear(3, 2)
    private = attach(model, plan(), ledger=path)
    seen = []
    original = Gaussian.sample

    def spy(self, out, scale, source):
        seen.append(len(path.read_text().splitlines()))
        original(self, out, scale, source)

    monkeypatch.setattr(Gaussian, "sample", spy)
    for x, y in private.batches((torch.randn(20, 3), torch.randint(2, (20,))), steps=2):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert seen == [2, 3]


def test_a_ledger_that_cannot_be_written_releases_nothing(tmp_path, monkeypatch):
    model = nn.Linear(3, 2)
    private = attach(model, plan(), ledger=tmp_path / "ledger.jsonl")
    x, y = next(private.batches((torch.randn(20, 3), torch.randint(2, (20,)))))

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PrivacyError, match="no space"):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    assert all(p.grad is None for p in model.parameters())


def test_attaching_again_continues_with_the_remaining_steps(tmp_path):
    model, path = nn.Linear(3, 2), tmp_path / "ledger.jsonl"
    data = (torch.randn(20, 3), torch.randint(2, (20,)))
    private = attach(model, plan(), ledger=path)
    for x, y in private.batches(data, steps=2):
        private.backward(F.cross_entropy(model(x), y, reduction="none"))
    private.detach()
    again = attach(model, plan(), ledger=path)
    assert (again.released, again.remaining) == (2, 3)
    assert sum(again.backward(F.cross_entropy(model(x), y, reduction="none")) for x, y in again.batches(data)) == 3


def test_two_runs_cannot_count_in_one_file(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first = attach(nn.Linear(3, 2), plan(), ledger=path)
    with pytest.raises(PrivacyError, match="in use by another run"):
        attach(nn.Linear(3, 2), plan(), ledger=path)
    first.detach()
    attach(nn.Linear(3, 2), plan(), ledger=path).detach()


@pytest.mark.parametrize("key", [None, b"sixteen bytes or more"])
@pytest.mark.parametrize(
    "content",
    [
        {"kind": "release", "at": "now", "step": 3, "rate": 0.1, "multiplier": 1e-300, "unprobed": True},
        {"kind": "query", "zeta": {"hash": 1, "a": ["é", None, {"kind": 'say "hash": {}'}]}, "hash": "old"},
        {
            "kind": "run",
            "audit": {"kind": 1, "z": -0.0},
            "has": [],
            "hash ": 1,
            "previous": "other",
            "signature": "old",
        },
    ],
)
def test_a_line_is_the_json_of_its_content_with_keys_in_order(content, key):
    """As plain JSON makes it, whatever stands before and after the hash."""
    line, digest = chained(content, "before", key)
    kept = {k: v for k, v in content.items() if k not in ("previous", "hash", "signature")} | {"previous": "before"}
    assert digest == hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    kept["hash"] = digest
    if key is not None:
        kept["signature"] = hmac.new(key, digest.encode(), "sha256").hexdigest()
    elif "signature" in content:
        kept["signature"] = content["signature"]
    assert line == json.dumps(kept, sort_keys=True).encode() + b"\n"


@pytest.mark.parametrize("key", [None, b"sixteen bytes or more"])
def test_what_a_run_knows_of_itself_is_what_its_file_says(tmp_path, key):
    """Lines that were just written are added up without being read again: to the same as by reading them."""
    made = replace(plan(steps=9), noise_schedule=(1.2, 1.0, 0.8))
    ledger = account(tmp_path / "ledger.jsonl", made, reserve=2, key=key)
    for step in range(7):
        ledger.spend(**({"unprobed": True} if step < 2 else {"seeded": True}))
        found, torn = read(tmp_path / "ledger.jsonl", key, (Gaussian,))
        assert not torn
        assert found == ledger._book.content
    assert [p.multiplier for p in ledger.events if p.steps] == [1.2, 1.0, 0.8]
    assert sum(p.steps for p in ledger.events) == 7


def test_what_is_kept_of_a_file_does_not_grow_with_its_lines(tmp_path):
    sizes = []
    ledger = account(tmp_path / "ledger.jsonl", plan(steps=2000))
    for count in (10, 990):
        for _ in range(count):
            ledger.spend()
        sizes.append([len(pickle.dumps(found)) for found in (ledger._book.content, read(tmp_path / "ledger.jsonl")[0])])
    assert max(abs(a - b) for a, b in zip(*sizes, strict=True)) < 20  # a number that has more digits


def test_plain_releases_are_read_faster_and_to_the_same_end(tmp_path, monkeypatch):
    ledger = account(tmp_path / "ledger.jsonl", replace(plan(steps=9), noise_schedule=(1.2, 1.0, 0.8)))
    for step in range(9):
        ledger.spend(**({"seeded": True} if step == 4 else {}))
    soon = read(tmp_path / "ledger.jsonl")
    calls = []
    monkeypatch.setattr("discreet.ledger.state.one_step", lambda line, previous: calls.append(line))
    assert read(tmp_path / "ledger.jsonl") == soon
    assert len(calls) == 10


@pytest.mark.parametrize(
    "change",
    [
        (b'"count": 1', b'"count": 2'),
        (b'"participations": 1', b'"participations": 0'),
        (b'"step": 1', b'"step": 2'),
        (b'"rate": 0.25', b'"rate": 0.35'),
        (b'"previous": "', b'"previous": "0'),
        (b'"kind": "release"', b'"kind": "relaxed"'),
    ],
)
def test_a_plain_release_that_was_changed_is_seen(tmp_path, change):
    path = tmp_path / "ledger.jsonl"
    spent(path).close()
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(*change)
    path.write_bytes(b"".join(lines))
    with pytest.raises(PrivacyError, match="damaged at line 3"):
        read(path)
