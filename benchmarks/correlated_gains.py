"""What correlated noise gains: docs/correlated.md from what the queue has trained so far, and its figures.

    python benchmarks/correlated_gains.py [--update]

The trainings are those of benchmarks/jobs/correlated.py, run by benchmarks/job_queue.py (--group correlated). What is
not there yet is not shown. With --update the page's table is written, and two figures: the error against the bands,
which is computed, and the accuracy against epsilon where more than one epsilon has been trained.
"""

import argparse
import json
import math
import statistics
import sys
from pathlib import Path

from jobs.correlated import SEEDS, SETTINGS
from race import machine, pages
from scipy.stats import t as student

import discreet
from discreet.report.charts import Axis, Chart, Series
from discreet.report.files import draw

ROOT = Path(__file__).parent.parent
MEASURED = ROOT / "benchmarks" / "measured" / "correlated"
NAMES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "sentences": "made-up sentences"}
BANDS = (1, 2, 4, 8, 16, 32, 64, 128)
LENGTH = {"examples": 60_000, "batch_size": 256, "epochs": 10}


def lines(folder):
    """All results."""
    return [json.loads(text) for file in sorted(folder.glob("*.jsonl")) for text in file.read_text().splitlines()]


def of(found, setting, arm):
    """An arm's trainings: of its rates on held-out rows, as (rate, accuracy), and of the rate that was chosen."""
    own = [r for r in found if r["case"].items() >= setting.case.items() and r["case"]["arm"] == arm]
    tried = sorted((r["case"]["learning_rate"], r["measured"]["validation"]) for r in own if r["case"].get("held_out"))
    last = [r["measured"] | {"rate": r["case"]["learning_rate"]} for r in own if not r["case"].get("held_out")]
    return tried, last


def between(ours, theirs):
    """The difference of two means in points, with its 95 % interval (Welch); None where one has a single seed."""
    gain = 100 * (statistics.fmean(ours) - statistics.fmean(theirs))
    if min(len(ours), len(theirs)) < 2:
        return gain, None
    parts = [statistics.variance(values) / len(values) for values in (ours, theirs)]
    if sum(parts) == 0:
        return gain, 0.0
    degrees = sum(parts) ** 2 / sum(p * p / (len(v) - 1) for p, v in zip(parts, (ours, theirs), strict=True))
    return gain, 100 * math.sqrt(sum(parts)) * float(student.ppf(0.975, degrees))


def verdict(gain, interval, seeds):
    """What a gain says: nothing where there are fewer seeds than were planned, or 0 is in the interval."""
    if seeds < len(SEEDS):
        return f"undecided at this size: {seeds} of {len(SEEDS)} seeds"
    if abs(gain) <= interval:
        return "undecided: 0 is in the interval"
    return "better" if gain > 0 else "worse"


def words(setting):
    """A setting in words."""
    case = setting.case
    if "users" in case:
        people = f"{case['users']:,} users of ten rows, at most {case['most']} times, {case['rounds']} rounds"
        return f"{NAMES[case['data']]}, {people}, ε {case['epsilon']:g} a user"
    length = f"{case['epochs']} epoch{'s' * (case['epochs'] > 1)} of {case['batch_size']}"
    return f"{NAMES[case['data']]}, {length}, ε {case['epsilon']:g}"


def rows(found):
    """The table's rows: of every arm that has been trained on all rows, beside the first of its setting."""
    for setting in SETTINGS:
        base = None
        for arm in setting.rates:
            tried, last = of(found, setting, arm)
            if not last:
                continue
            accuracies = [m["accuracy"] for m in last]
            spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(last) > 1 else ""
            gain, error, decided = "", "", ""
            if base is None and arm == next(iter(setting.rates)):
                base = last
            elif base is not None:
                more, interval = between(accuracies, [m["accuracy"] for m in base])
                gain = f"{more:+.2f}" + ("" if interval is None else f" ± {interval:.2f}")
                error = f"{last[0]['rms_error'] / base[0]['rms_error']:.3f}"
                decided = verdict(more, interval, min(len(last), len(base)))
            bands = last[0]["bands"]
            name = f"{bands} bands" if arm == "bands" else arm
            rates = ", ".join(f"**{rate:g}**" if rate == last[0]["rate"] else f"{rate:g}" for rate, _ in tried)
            accuracy = f"{100 * statistics.fmean(accuracies):.2f}{spread}"
            yield words(setting), name, error, rates, str(len(last)), accuracy, gain, decided


def unfinished(found):
    """What has been tried of arms that have not been trained on all rows."""
    for setting in SETTINGS:
        for arm in setting.rates:
            tried, last = of(found, setting, arm)
            if tried and not last:
                values = ", ".join(f"{100 * accuracy:.2f} at {rate:g}" for rate, accuracy in tried)
                yield f"- {words(setting)}, {arm}: {values}"


def as_markdown(found):
    """The table, how it was made, and what is still on its way."""
    head = ["setting", "noise", "error / the first's", "learning rates tried", "seeds"]
    head += ["accuracy, %", "gain, points", "verdict"]
    table = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    table += ["| " + " | ".join(row) + " |" for row in rows(found)]
    restarts = sum(r["measured"]["restarts"] > 0 for r in found)
    seconds = sum(r["seconds"] for r in found)
    done = sum(len(of(found, s, arm)[1]) for s in SETTINGS for arm in s.rates)
    planned = len(SEEDS) * sum(len(s.rates) for s in SETTINGS)
    about = (
        f"{len(found)} trainings, {seconds / 60:.0f} minutes of one core; {done} of {planned} planned trainings on all "
        f"rows are done. Accuracy is on the test set, mean ± standard deviation of the seeds; gains are beside the "
        f"setting's first row, ± half a 95 % interval (Welch), and decide something where there are {len(SEEDS)} seeds "
        f"of both and 0 is outside. The rate in bold was best on held-out training rows, of one seed. "
        f"{restarts} trainings were killed and went on. {machine.sentence(made(found))}"
    )
    parts = ["\n".join(table), about]
    late = list(unfinished(found))
    if late:
        parts.append("Tried on held-out rows only, so far (%, at a learning rate):\n\n" + "\n".join(late))
    return "\n\n".join(parts)


def made(found):
    """Machine and command of the trainings."""
    about = machine.about("job_queue", ["start", "--group", "correlated"])
    return about | {"date": max(r["at"] for r in found)}


def error_chart():
    """The error at equal epsilon against the bands: computed."""
    series = []
    for colour, epsilon in enumerate((1.0, 3.0, 8.0)):
        errors = {}
        for bands in BANDS:
            made = discreet.methods.band_mf(**LENGTH, epsilon=epsilon, bands=bands)
            errors[bands] = made.rms_error
        points = tuple((float(b), e / errors[1]) for b, e in errors.items())
        series.append(Series(f"ε {epsilon:g}", points, colour=colour))
    x, y = Axis("bands, and groups", "number", log=True), Axis("error / DP-SGD's", "number", low=0.0)
    return Chart("correlated-error", "MNIST's size, 10 epochs of 256: error against bands", x, y, tuple(series))


def accuracy_charts(found):
    """Accuracy against epsilon, of settings that differ in epsilon alone, where there are two or more."""
    groups = {}
    for setting in SETTINGS:
        rest = tuple(sorted((k, v) for k, v in setting.case.items() if k != "epsilon"))
        groups.setdefault(rest, []).append(setting)
    for rest, settings in groups.items():
        series = []
        for colour, arm in enumerate(settings[0].rates):
            known = [(s.case["epsilon"], [m["accuracy"] for m in of(found, s, arm)[1]]) for s in settings]
            known = sorted((epsilon, values) for epsilon, values in known if values)
            if len(known) > 1:
                points = tuple((epsilon, statistics.fmean(values)) for epsilon, values in known)
                spread = tuple((epsilon, min(values), max(values)) for epsilon, values in known)
                series.append(Series(arm, points, colour=colour, spread=spread))
        if len(series) > 1:
            case = dict(rest)
            key = f"correlated-{case['data']}-{case.get('epochs', 'rounds')}"
            title = words(settings[0]).rpartition(", ")[0]
            x, y = Axis("epsilon, proven", "epsilon", log=True), Axis("accuracy on the test set", "share")
            yield Chart(key, title, x, y, tuple(series))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    parser.add_argument("--update", action="store_true", help="write docs/correlated.md and its figures")
    chosen = parser.parse_args()
    found = lines(chosen.measured)
    if not found:
        sys.exit(f"{chosen.measured} holds nothing; run: python benchmarks/job_queue.py start --group correlated")
    text = as_markdown(found)
    print(text)
    if chosen.update:
        charts = list(accuracy_charts(found))
        draw([error_chart(), *charts], ROOT / "docs" / "figures")
        figures = "".join(f"\n\n![{c.title}](figures/{c.key}.svg)" for c in charts)
        pages.fill("docs/correlated.md", "gains", text + figures)


if __name__ == "__main__":
    main()
