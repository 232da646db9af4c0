"""The page after a run: what it says is what the files say, whoever wrote them, and it opens anywhere."""

import base64
import csv
import hashlib
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import discreet
from discreet import Clip, ConfigError, Gaussian, Guarantee, Ledger, Mechanism, Plan, Poisson, methods
from discreet.accounting.guarantee import round_up
from discreet.accounting.serialization import to_toml
from discreet.report import page, read, render, write
from discreet.report.charts import Axis, Chart, Series, _range, _thinned, svg, words
from discreet.report.figures import charts, names
from discreet.report.files import draw

N, D, K = 60, 5, 3
SCRIPT = "</script><script>alert('x')</script>"
NEEDED = ["config.toml", "plan.toml", "ledger.jsonl", "metrics.jsonl", "guarantee.json"]


def train(folder, plan, *, seed=None, steps=None, ledger=None, config=None):
    """A run folder, by really training; evaluated on other rows after every step."""
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    x, y = torch.randn(2 * N, D), torch.randint(K, (2 * N,))
    model = nn.Sequential(nn.Linear(D, 4), nn.Tanh(), nn.Linear(4, K))
    plan.save(folder / "plan.toml")
    private = discreet.attach(model, plan, ledger=ledger or folder / "ledger.jsonl", seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    lines, most = [], plan.guarantee().epsilon
    for a, b in private.batches((x[:N], y[:N]), steps=steps):
        private.backward(F.cross_entropy(model(a), b, reduction="none"))
        optimizer.step()
        with torch.no_grad():
            out = model(x[N:])
        line = {
            "step": private.released,
            "epoch": plan.sampling.epochs_in(private.released),
            "epsilon": most if math.isinf(most) else most * math.sqrt(private.released / plan.steps),
            "seconds": 0.01 * private.released,
            "examples_per_second": 2000.0,
            "accuracy": (out.argmax(1) == y[N:]).double().mean().item(),
            "loss": F.cross_entropy(out, y[N:]).item(),
            "something else": [1],
        }
        state = private.state_dict().get("bound")
        if state is not None:
            line["clipping_norms"] = {p[0]: n for p, n in zip(state["parts"], state["norms"], strict=True)}
        lines.append(json.dumps(line).replace("Infinity", '"inf"'))
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "guarantee.json").write_text(private.guarantee().to_json())
    (folder / "config.toml").write_text(to_toml(config or {"method": {"name": "dp_sgd"}, "model": {"name": SCRIPT}}))
    private.detach()
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One that is as it should be, one whose noise has a known seed, and one that adapts, as published."""
    folder = tmp_path_factory.mktemp("runs")
    fair = methods.dp_sgd(examples=N, batch_size=N, steps=12, epsilon=3, delta=1e-4)
    paper = methods.adaptive_clipping(examples=N, batch_size=N, steps=6, delta=1e-4, noise=4, form="paper", tensors=4)
    return {
        "fair": train(folder / "fair", fair),
        "seeded": train(folder / "seeded", replace(fair, steps=6, epsilon=None), seed=1),
        "adaptive": train(folder / "adaptive", paper, config={"method": {"name": "adaptive_clipping"}}),
    }


@pytest.fixture
def fair(runs, tmp_path):
    """A copy to spoil."""
    return Path(shutil.copytree(runs["fair"], tmp_path / "fair"))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def stated(folder):
    return Guarantee.from_json((folder / "guarantee.json").read_text())


def restate(folder, **changes):
    (folder / "guarantee.json").write_text(replace(stated(folder), **changes).to_json())


class Parsed(HTMLParser):
    """The elements of a page in order, and the texts between them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.pieces, self.inside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data):
        if not self.inside and data.strip():
            self.pieces.append(" ".join(data.split()))

    def all(self, tag, kind=None):
        return [a for t, a in self.elements if t == tag and (kind is None or kind in a.get("class", "").split())]

    def after(self, words):
        """The text that follows these words."""
        return self.pieces[self.pieces.index(words) + 1]


def shown(*folders):
    return Parsed(render([read(f) for f in folders]))


# --- reading ---------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_is(runs):
    record, told = read(runs["fair"]), lines(runs["fair"])
    assert [m.step for m in record.measures] == list(range(1, 13))
    assert record.accuracy == told[-1]["accuracy"]
    assert [m.epsilon for m in record.measures] == [line["epsilon"] for line in told]
    assert record.guarantee == stated(runs["fair"])
    assert record.plan == Plan.load(runs["fair"] / "plan.toml")
    assert record.verified == discreet.verify(runs["fair"])
    assert record.versions["torch"] == torch.__version__
    assert (record.name, record.method, record.doubts, record.holds) == ("fair", "dp_sgd", (), True)


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_file_is_named_in_one_line(fair, name):
    (fair / name).unlink()
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} is missing") as found:
        read(fair)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["config.toml", "plan.toml", "metrics.jsonl", "guarantee.json", "audit.json"])
@pytest.mark.parametrize("content", [b"{\nnot that\n", b"\xff\xfe\n", b"[1, 2]\n"])
def test_a_broken_file_is_named_in_one_line(fair, name, content):
    if (name, content[:1]) == ("config.toml", b"["):
        content = b"[1 2]\n"
    (fair / name).write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{re.escape(name)} is broken: .") as found:
        read(fair)
    assert "\n" not in str(found.value)


def test_there_must_be_a_folder(tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        read(tmp_path / "nothing")


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_one_is_named(fair):
    file = fair / "metrics.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-30])
    assert [m.step for m in read(fair).measures] == list(range(1, 12))
    file.write_text(whole[:-1])  # whole, but for its end
    assert [m.step for m in read(fair).measures] == list(range(1, 13))
    file.write_text(whole.replace('{"step": 2,', '{"step": 2'))
    with pytest.raises(ConfigError, match=r"metrics\.jsonl is broken: line 2: "):
        read(fair)


@pytest.mark.parametrize(
    "line", [{"epoch": 1}, {"step": "1"}, {"step": 1, "loss": "low"}, {"step": 1, "clipping_norms": [1.0]}]
)
def test_a_measurement_that_is_none_is_named(fair, line):
    (fair / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match="line 1"):
        read(fair)


def test_of_two_measurements_of_a_step_the_later_one_counts_and_what_is_no_number_is_left_out(fair):
    (fair / "metrics.jsonl").write_text(
        '{"step": 2, "loss": 3, "accuracy": 0.25, "epsilon": "inf"}\n{"step": 1, "loss": 1}\n{"step": 2, "loss": NaN}\n'
    )
    record = read(fair)
    assert [(m.step, m.loss, m.accuracy) for m in record.measures] == [(1, 1.0, None), (2, None, None)]
    assert record.accuracy is None
    assert "not measured" in shown(fair).pieces


def test_a_run_without_measurements_has_a_page(fair):
    (fair / "metrics.jsonl").write_text("")
    found = shown(fair)
    assert "Nothing was measured while the run went on." in found.pieces
    assert [a["id"] for a in found.all("figure")] == ["attacker"]


# --- what the files say of each other --------------------------------------------------------------------------------


def doubt(folder):
    """The one reason for which a page is in doubt, which it puts on top."""
    (reason,) = read(folder).doubts
    found = shown(folder)
    assert found.after("The figures below are in doubt") == reason[0].upper() + reason[1:]
    assert "ε as stated, in doubt" in found.pieces
    assert "proven ε" not in found.pieces
    return reason


def test_a_damaged_ledger_is_said_on_top(fair):
    ledger = fair / "ledger.jsonl"
    changed = ledger.read_text().splitlines()
    changed[4] = changed[4].replace('"step": 3', '"step": 2')
    ledger.write_text("".join(f"{line}\n" for line in changed))
    restate(fair, epsilon=0.01)
    (reason,) = read(fair).doubts
    assert reason.startswith("The ledger could not be verified: it is damaged at line 5")
    found = shown(fair)
    assert reason in found.pieces
    assert found.after("How to verify") == reason
    assert found.after("Not private as it stands") == "Nothing is proven: its ledger could not be verified."
    assert not [piece for piece in found.pieces if "0.01" in piece or "(ε = " in piece]  # what guarantee.json states
    assert read(fair).guarantee.conditions == ()


def test_a_guarantee_that_states_less_than_the_ledger_proves_is_in_doubt(fair):
    cheaper = methods.dp_sgd(examples=N, batch_size=N, steps=12, noise=50, delta=1e-4).guarantee()
    restate(fair, epsilon=cheaper.epsilon, events=cheaper.events)
    assert doubt(fair).startswith(f"guarantee.json states ε = {round_up(cheaper.epsilon)}, and the ledger proves no")


def test_a_guarantee_that_does_not_follow_from_its_releases_is_in_doubt(fair):
    cheaper = methods.dp_sgd(examples=N, batch_size=N, steps=12, noise=50, delta=1e-4).guarantee()
    restate(fair, events=cheaper.events)
    assert "does not follow from its own releases" in doubt(fair)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "hospital"}, "about each hospital"),
        ({"released": 13}, "12 of 12 steps released, guarantee.json 13"),
        ({"delta": 1e-2}, "The ledger's δ is 0.0001"),
    ],
)
def test_a_guarantee_of_something_else_is_in_doubt(fair, changes, words):
    restate(fair, **changes)
    assert any(words in reason for reason in read(fair).doubts)
    assert not read(fair).holds


def test_measurements_beyond_what_was_released_are_in_doubt(fair):
    with (fair / "metrics.jsonl").open("a") as file:
        file.write('{"step": 13}\n')
    assert doubt(fair) == "metrics.jsonl goes to step 13; the ledger has 12 released."


def test_a_ledger_that_was_torn_counts_and_is_said(fair):
    ledger = fair / "ledger.jsonl"
    ledger.write_text(ledger.read_text() + '{"kind": "rel')
    assert any("cut off by a crash" in piece for piece in shown(fair).pieces)


def test_a_run_whose_data_set_has_the_ledger(tmp_path):
    ledger = Ledger(tmp_path / "data.jsonl", dataset="people", epsilon=20.0, delta=1e-4)
    plan = methods.dp_sgd(examples=N, batch_size=N, steps=1, noise=2.0, delta=1e-4)
    config = {"run": {"ledger": str(tmp_path / "data.jsonl")}}
    first = train(tmp_path / "first", plan, ledger=ledger, config=config)
    train(tmp_path / "second", replace(plan, steps=2), ledger=ledger, config=config)
    record = read(first)
    assert record.doubts == ()
    assert record.own.planned == 1
    text = " ".join(shown(first).pieces)
    assert f"data set 'people', together: ε = {round_up(record.verified.total.epsilon)}" in text
    assert "discreet verify data.jsonl --anchor" in text
    (tmp_path / "data.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"data\.jsonl is missing"):
        read(first)


# --- the page of one run ---------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_files(runs):
    found, proven = shown(runs["fair"]), stated(runs["fair"])
    assert found.after("accuracy on held-out data") == f"{lines(runs['fair'])[-1]['accuracy']:.1%}"
    assert found.after("proven ε") == round_up(proven.epsilon)
    assert found.after("δ") == f"{proven.delta:g}"
    assert found.after("steps") == "12"
    text = " ".join(found.pieces)
    assert f"discreet verify fair --anchor {discreet.verify(runs['fair']).head}" in text
    assert "derived again from the ledger alone, and agrees" in text
    for condition in proven.conditions:
        assert found.pieces[found.pieces.index(condition.text) - 1] == condition.status
    for what, share in proven.attacker(classes=None).items():  # nobody has said how many labels there are
        told = float(found.after(what).rstrip("%"))
        assert share * 100 - 1e-6 <= told < share * 100 + 0.01
    for name, value in read(runs["fair"]).versions.items():
        assert found.after(name) == value


def test_the_guarantee_is_quoted_word_for_word(runs):
    proven = stated(runs["fair"])
    quoted = next(a for a in re.findall(r'<p class="statement">(.*?)</p>', render([read(runs["fair"])])))
    assert unescape(re.sub(r"</?a[^>]*>", "", quoted)) == str(replace(proven, conditions=()))


def test_what_is_broken_is_red_and_on_top(runs):
    found = shown(runs["seeded"])
    broken = next(c.text for c in stated(runs["seeded"]).conditions if c.status == "broken")
    assert found.after("Not private as it stands") == f"{broken[0].upper()}{broken[1:]}."
    order = [found.pieces.index(words) for words in ("Not private as it stands", "ε, which does not hold", broken)]
    assert order == sorted(order)
    assert found.pieces.index("broken") < found.pieces.index("proven")
    assert len(found.all("tr", "broken-row")) == 1
    assert "proven ε" not in found.pieces
    assert any("attacks may lie above the line" in piece for piece in found.pieces)
    assert not shown(runs["fair"]).all("div", "alarm")


def test_claims_stand_beside_what_is_proven(runs):
    (claim,) = stated(runs["adaptive"]).claims
    found = shown(runs["adaptive"])
    at = found.pieces.index(claim.source)
    proven = round_up(stated(runs["adaptive"]).epsilon)
    assert found.pieces[at : at + 5] == [claim.source, f"{claim.epsilon:.4g}", proven, claim.verdict, claim.reason]
    assert "Claimed and proven" not in shown(runs["fair"]).pieces


def test_an_unfinished_run_says_what_is_proven_and_what_is_spent(tmp_path):
    plan = methods.dp_sgd(examples=N, batch_size=N, steps=8, noise=2.0, delta=1e-4)
    folder = train(tmp_path / "half", plan, steps=3)
    found, proven = shown(folder), stated(folder)
    assert read(folder).holds
    assert found.after("proven ε") == round_up(proven.epsilon)
    assert found.after("steps") == "3"
    assert "of 8 planned" in found.pieces
    assert f"For those alone ε is {round_up(proven.so_far)}" in " ".join(found.pieces)


def test_a_run_without_noise_proves_nothing(tmp_path):
    mechanism = Mechanism(Clip(1.0), Gaussian(0.0))
    plan = Plan(sampling=Poisson(examples=N, batch_size=N), mechanism=mechanism, steps=2, delta=1e-4)
    folder = train(tmp_path / "bare", plan)
    found = shown(folder)
    assert found.after("Not private as it stands").startswith("Nothing is proven")
    assert found.after("ε, which does not hold") == "∞"
    assert not read(folder).holds


# --- the figures -----------------------------------------------------------------------------------------------------


def drawn(*folders):
    return {chart.key: chart for chart in charts([read(f) for f in folders])}


def test_a_run_has_these_figures_and_their_points_are_the_measurements(runs):
    found, told = drawn(runs["fair"]), lines(runs["fair"])
    assert list(found) == [
        "accuracy-over-epsilon", "epsilon-over-steps", "accuracy-over-steps", "loss-over-steps", "attacker",
    ]  # fmt: skip
    assert found["accuracy-over-epsilon"].series[0].points == tuple((t["epsilon"], t["accuracy"]) for t in told)
    assert found["accuracy-over-steps"].series[0].points == tuple((t["step"], t["accuracy"]) for t in told)
    spent, budget = found["epsilon-over-steps"].series
    assert spent.points == tuple((t["step"], t["epsilon"]) for t in told)
    assert (budget.name, budget.points) == ("budget, ε = 3", ((0.0, 3.0), (12.0, 3.0)))


def test_clipping_norms_are_drawn_only_where_they_were_released(runs):
    assert "clipping-norms" not in drawn(runs["fair"])
    told = lines(runs["adaptive"])
    for series in drawn(runs["adaptive"])["clipping-norms"].series:
        assert series.points == tuple((t["step"], t["clipping_norms"][series.name]) for t in told)


def test_the_attackers_curve_is_the_guarantees_and_attacks_lie_beside_it(fair):
    points = [
        {"false_positives": 0.1, "true_positives": 0.15, "label": "by <loss>"},
        {"epsilon_lower_bound": 0.2159},
    ]
    (fair / "audit.json").write_text(json.dumps(points))
    curve = stated(fair).tradeoff()
    proven, measured, chance = drawn(fair)["attacker"].series
    assert proven.points[1:] == tuple((x, curve.power(x)) for x, _ in proven.points[1:])
    assert proven.points[-1][0] == 1.0
    assert (measured.points, measured.labels) == (((0.1, 0.15),), ("by <loss>",))
    assert chance.points == ((0.0, 0.0), (1.0, 1.0))
    found = shown(fair)
    assert "Attacks on this run showed that ε is at least 0.215: a lower bound, as measured." in found.pieces
    assert "by <loss>: 15.0% at 10.0%" in found.pieces
    (fair / "audit.json").write_text(json.dumps({"points": points[:1], "epsilon_lower_bound": 9.0}))
    assert doubt(fair).startswith("An attack measured an ε of at least 9, more than the")


def test_every_figure_and_table_can_be_read_aloud(runs):
    found = shown(*runs.values())
    figures = found.all("svg", "chart")
    assert len(figures) == 6
    for attributes in figures:
        assert attributes["role"] == "img"
        assert " at " in attributes["aria-label"]
    assert all(a.get("scope") in ("row", "col") for a in found.all("th"))
    assert len(found.all("thead")) == len(found.all("table")) > 3


def test_every_point_has_its_value(runs):
    found = shown(runs["fair"])
    last = lines(runs["fair"])[-1]
    assert f"accuracy: {last['accuracy']:.1%} at ε = {round_up(last['epsilon'])}" in found.pieces
    assert f"accuracy: {last['accuracy']:.1%} at step 12" in found.pieces


@given(st.integers(1, 3000), st.integers(0, 10**6))
def test_thinning_keeps_the_ends_and_the_extremes(count, seed):
    draw = random.Random(seed)
    points = [(float(step), draw.gauss(0, 1)) for step in range(count)]
    kept = _thinned(points)
    assert len(kept) <= 240
    assert count > 240 or kept == points
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    heights = [y for _, y in points]
    assert {min(heights), max(heights)} <= {y for _, y in kept}
    rest = iter(points)
    assert all(point in rest for point in kept)  # in their order


@given(
    st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=5),
    st.sampled_from(["count", "epsilon", "number"]),
    st.booleans(),
)
def test_an_axis_reaches_its_values_and_has_few_ticks(values, kind, log):
    low, high, ticks = _range(values, Axis("", kind, log=log))
    assert low < high
    assert low <= min(values) * (1 + 1e-6)
    assert max(values) <= high * (1 + 1e-6)
    assert all(low <= tick <= high for tick in ticks)
    assert len(set(ticks)) == len(ticks) <= 18
    assert log or kind == "count" or len(ticks) >= 2


def test_points_without_names_are_drawn_as_points():
    points = Series("published", ((1.0, 0.5), (2.0, 0.7)), "points", 1)
    text = svg(Chart("key", "title", Axis("x", "number"), Axis("y", "share"), (points,)))
    assert text.count("<circle") == 2
    assert 'class="line"' not in text


@pytest.mark.parametrize("points", [(), ((1.0, 0.5),), ((1.0, 0.0), (1.0, 0.0)), ((math.inf, 1.0), (2.0, math.nan))])
def test_few_or_odd_points_are_drawn_or_left_out(points):
    chart = Chart("c", "t", Axis("x", "epsilon"), Axis("y", "share"), (Series("s", points),))
    text = svg(chart)
    assert "nan" not in text
    assert "inf" not in text
    assert text.count("<circle") == sum(math.isfinite(x) and math.isfinite(y) for x, y in points)


def test_an_epsilon_is_never_rounded_down():
    assert words(2.0001, "epsilon") == "2.001"
    assert words(0.93149, "share") == "93.1%"


# --- several runs ----------------------------------------------------------------------------------------------------


def test_several_runs_stand_in_a_table_and_in_one_figure(runs):
    found = shown(*runs.values())
    for name, folder in runs.items():
        proven = stated(folder)
        at = found.pieces.index(name)
        method = "adaptive_clipping" if name == "adaptive" else "dp_sgd"
        verified = "yes, but not private" if name == "seeded" else "yes"
        accuracy, steps = f"{lines(folder)[-1]['accuracy']:.1%}", proven.steps
        row = [name, method, accuracy, round_up(proven.epsilon), "0.0001", f"{steps} of {steps}", verified]
        assert found.pieces[at : at + 7] == row
    figures = drawn(*runs.values())
    assert [s.name for s in figures["accuracy-over-epsilon"].series] == list(runs)
    assert [s.name for s in figures["attacker"].series] == ["fair", "adaptive", "chance"]
    assert "clipping-norms" not in figures


def test_the_frontier_joins_the_runs_that_none_beats(runs, tmp_path):
    base = read(runs["fair"])

    def run(name, epsilon, accuracy):
        measured = (replace(base.measures[-1], accuracy=accuracy),)
        proven = replace(base.guarantee, epsilon=epsilon)
        return replace(base, folder=tmp_path / name, guarantee=proven, measures=measured)

    records = [run("a", 1.0, 0.5), run("b", 2.0, 0.4), run("c", 3.0, 0.9), run("d", 3.0, 0.8), read(runs["seeded"])]
    chart = charts(records)[0]
    best, held, not_held = chart.series
    assert best.points == ((1.0, 0.5), (3.0, 0.9))
    assert held.labels == ("a", "b", "c", "d")
    assert not_held.labels == ("seeded",)
    assert "not of one kind" not in chart.note
    other = replace(records[1], guarantee=replace(base.guarantee, delta=1e-3))
    assert "not of one kind" in charts([records[0], other])[0].note
    unmeasured = charts([records[0], records[2], replace(records[1], measures=())])[0]
    assert "left out: 1 of 3 runs" in unmeasured.note


def test_runs_of_one_name_are_told_apart_by_the_folders_above(runs, tmp_path):
    base = read(runs["fair"])
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run"]
    assert names([replace(base, folder=f) for f in folders]) == ["a/run", "b/run"]
    assert names([base]) == ["fair"]


# --- what others wrote -----------------------------------------------------------------------------------------------


def test_whatever_a_file_says_stays_text(fair, tmp_path):
    odd = fair.rename(tmp_path / "<img src=x onerror=alert(1)>")
    (odd / "audit.json").write_text(
        json.dumps([{"false_positives": 0.1, "true_positives": 0.1, "label": "\"'><svg onload=alert(1)>"}])
    )
    told = lines(odd)
    norms = {SCRIPT: 1.0, '"><b>': 2.0}
    (odd / "metrics.jsonl").write_text("".join(json.dumps(t | {"clipping_norms": norms}) + "\n" for t in told))
    unsafe = "<iframe src=//example.org>"
    conditions = (*stated(odd).conditions, discreet.Condition(unsafe, "assumed"))
    restate(odd, conditions=conditions, claims=(discreet.Claim(unsafe, 1.0, "false", unsafe),))
    plain = shown(odd)
    several = Parsed(render([read(odd), replace(read(odd), folder=tmp_path / "<b>")]))
    for found in (plain, several):
        assert len(found.all("script")) == 1
        assert not {"img", "iframe", "b"} & {tag for tag, _ in found.elements}
        assert not any(name.startswith("on") for _, attributes in found.elements for name in attributes)
    assert json.dumps(SCRIPT) in plain.pieces
    assert odd.name in plain.pieces
    alone = svg(drawn(odd)["clipping-norms"], alone=True)
    assert "<script" not in alone
    assert "&lt;script&gt;" in alone


def test_a_page_needs_nothing_from_elsewhere_and_lets_nothing_else_run(runs):
    text = render([read(runs["fair"])])
    found = Parsed(text)
    leads = {a["href"] for _, a in found.elements if "href" in a} - {"data:,"}
    assert leads <= {f"#{a['id']}" for _, a in found.elements if "id" in a}  # to places on the page alone
    assert not any("src" in a or "style" in a for _, a in found.elements)
    assert not re.search(r"https?:|url\(|@import", text)
    policy = next(a["content"] for a in found.all("meta") if "http-equiv" in a)
    for tag in ("style", "script"):
        (inner,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inner.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


# --- on disk ---------------------------------------------------------------------------------------------------------


def test_a_page_is_written_into_its_folder_and_the_figures_beside_it(fair):
    path = write(fair)
    assert path == fair / "report.html"
    assert Parsed(path.read_text()).after("proven ε") == round_up(stated(fair).epsilon)
    beside = fair / "report-files"
    for key in drawn(fair):
        assert (beside / f"{key}.png").read_bytes().startswith(b"\x89PNG")
        assert (beside / f"{key}.svg").read_text().startswith('<svg xmlns="http://www.w3.org/2000/svg"')
        assert "<path" in (beside / f"{key}.svg").read_text()
    with (beside / "accuracy-over-epsilon.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["series", "ε of the steps so far", "accuracy"]
    assert [(float(x), float(y)) for _, x, y in rows] == [(t["epsilon"], t["accuracy"]) for t in lines(fair)]
    assert write([fair]) == path  # again, over itself


def test_a_page_of_several_runs_goes_where_it_is_told(runs, tmp_path):
    path = write(list(runs.values()), out=tmp_path / "new" / "all")
    assert path == tmp_path / "new" / "all" / "report.html"
    with (path.parent / "report-files" / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["run"], float(r["epsilon"])) for r in rows] == [(n, stated(f).epsilon) for n, f in runs.items()]
    assert [r["holds"] for r in rows] == ["True", "False", "True"]
    assert (path.parent / "report-files" / "frontier.svg").is_file()


def test_where_a_page_goes_must_be_said_and_possible(runs, tmp_path):
    with pytest.raises(ConfigError, match="out="):
        write(list(runs.values()))
    with pytest.raises(ConfigError, match="no run"):
        write([])
    with pytest.raises(ConfigError, match="named twice"):
        write([runs["fair"], runs["fair"] / ".." / "fair"], out=tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written to"):
        write(runs["fair"], out=tmp_path / "file")


def test_without_matplotlib_there_is_no_png_and_the_page_says_so(fair, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text = write(fair).read_text()
    assert "matplotlib is not installed: pip install &#x27;discreet[plots]&#x27;" in text
    assert not list((fair / "report-files").glob("*.png"))
    assert len(list((fair / "report-files").glob("*.svg"))) == 5


def test_a_page_without_a_folder(runs):
    record = read(runs["fair"])
    text = page("A <title>", record.plan, record.guarantee, {"test accuracy": "93.1%"}, "abc")
    found = Parsed(text)
    assert found.pieces[1] == "A <title>"
    assert found.after("test accuracy") == "93.1%"
    assert "discreet verify RUN --anchor abc" in found.pieces
    assert [a["id"] for a in found.all("figure")] == ["attacker"]
    broken = page("b", record.plan, read(runs["seeded"]).guarantee, {})
    assert Parsed(broken).all("div", "alarm")


# --- in a browser ----------------------------------------------------------------------------------------------------

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
NO_BROWSER = CHROMIUM is None and not os.environ.get("CI")
in_a_browser = pytest.mark.skipif(NO_BROWSER, reason="there is no Chromium to open the page in")


def browse(path, profile):
    """What a browser makes of a page: its elements, what it complained of, and what the page asked for elsewhere."""
    assert CHROMIUM is not None, "CI must have a Chromium"
    net = profile / "net.json"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += [f"--user-data-dir={profile}", f"--log-net-log={net}", "--window-size=1280,900"]
    flags += ["--enable-logging=stderr", "--virtual-time-budget=2000", "--dump-dom"]
    done = subprocess.run(
        [CHROMIUM, *flags, path.as_uri()], capture_output=True, text=True, encoding="utf-8", timeout=120, check=True
    )
    ours = re.compile(
        r'"initiator":"(?!not an origin)[^"]*".*?"url":"([^"]*)"'
    )  # an event a line; the rest is Chromium's
    asked = {url for line in net.read_text().splitlines() for url in ours.findall(line)}
    return Parsed(done.stdout), re.findall(r"CONSOLE.*", done.stderr), asked


@pytest.mark.slow
@in_a_browser
def test_the_browser_would_tell_of_errors_and_requests(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<script>console.error('so')</script><img src='http://127.0.0.1:9/x.png'>")
    _, complaints, asked = browse(bad, tmp_path / "profile")
    assert any("so" in complaint for complaint in complaints)
    assert asked == {"http://127.0.0.1:9/x.png"}


@pytest.mark.slow
@in_a_browser
@pytest.mark.parametrize("which", [["adaptive"], ["fair", "seeded", "adaptive"]])
def test_a_page_opens_without_errors_and_requests_and_its_figures_have_marks(runs, tmp_path, which):
    path = tmp_path / "report.html"
    path.write_text(render([read(runs[name]) for name in which]))
    found, complaints, asked = browse(path, tmp_path / "profile")
    assert (complaints, asked) == ([], set())
    assert len(found.all("svg", "chart")) == 6
    assert len(found.all("path", "line")) >= 8
    assert len(found.all("circle", "dot")) >= 6 * len(which) * 3
    assert "title" not in [tag for tag, _ in found.elements[found.elements.index(("body", {})) :]]  # the script ran


HOVER = """
const chart = document.querySelector("#accuracy-over-epsilon svg.chart");
const dots = [...chart.querySelectorAll("circle.dot")];
const told = () => (document.querySelector(".tip") || { textContent: "nothing" }).textContent;
const results = [];
for (const dot of [dots[0], dots.at(-1)]) {
  const place = dot.getBoundingClientRect();
  const at = { clientX: place.left + place.width / 2 + 1, clientY: place.top + place.height / 2 + 1, bubbles: true };
  chart.dispatchEvent(new PointerEvent("pointermove", at));
  results.push(told());
}
chart.dispatchEvent(new PointerEvent("pointerleave"));
results.push(told());
chart.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
results.push(told());
results.push(document.documentElement.scrollWidth <= innerWidth ? "fits" : "too wide");
results.push(String(innerWidth));
const list = parent.document.createElement("pre");
list.id = "results";
list.textContent = JSON.stringify(results);
parent.document.body.append(list);
"""


@pytest.mark.slow
@in_a_browser
def test_pointing_shows_the_value_that_is_in_the_folder_also_on_a_phone(runs, tmp_path):
    text = render([read(runs["fair"])])
    text = re.sub(r"<meta HTTP-EQUIV.*?>", "", text).replace("</body>", f"<script>{HOVER}</script></body>")
    path = tmp_path / "hover.html"
    path.write_text(f'<body><iframe width=360 height=5000 frameborder=0 srcdoc="{escape(text)}"></iframe></body>')
    found, complaints, _ = browse(path, tmp_path / "profile")
    assert complaints == []
    first, last, left, by_key, width, inner = json.loads(found.pieces[-1])
    told = sorted(lines(runs["fair"]), key=lambda line: line["epsilon"])
    expected = [f"accuracy: {t['accuracy']:.1%} at ε = {round_up(t['epsilon'])}" for t in told]
    assert [first, last] == [expected[0], expected[-1]]
    assert left == "nothing"
    assert by_key == expected[0]
    assert (width, inner) == ("fits", "360")


def test_a_page_of_fifty_runs_has_pictures_without_fifty_names(tmp_path, recwarn):
    points = tuple((float(x), float(x)) for x in range(3))
    series = tuple(Series(f"run {number}", points, colour=number) for number in range(50))
    draw([Chart("many", "Many", Axis("x", "number"), Axis("y", "number"), series)], tmp_path)
    assert (tmp_path / "many.png").is_file()
    assert not recwarn.list
