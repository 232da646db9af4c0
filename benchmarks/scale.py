"""What a step of discreet costs as batch, model and depth grow, and the largest that fits on this machine.

    python benchmarks/scale.py [--threads 1] [--rounds 5] [--memory-cap GIB] [--json FILE] [--figure FILE] [--quick]
    python benchmarks/scale.py --from FILE ... [--markdown] [--update] [--figure FILE]

Each point is a process of its own, beside one of non-private SGD, in turns. Straight lines are fitted by least squares
to the medians; a line is a fixed cost and a cost for each example, parameter or layer.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from race import machine, pages, tables
from race.growing import parameters
from race.track import Job, Rules, race
from rich.console import Console

COMPETITORS = ("SGD", "discreet")


@dataclass(frozen=True)
class Point:
    """One size: where it stands on its axis, the network and the batch."""

    at: float
    network: str
    size: dict[str, Any]
    batch: int
    at_most: int | None = None

    def job(self, competitor: str) -> Job:
        arguments = {"competitor": competitor, "network": self.network, "size": self.size, "batch": self.batch}
        small = {"competitor": competitor, "network": "mlp", "size": {"width": 8}, "batch": 2}
        return Job("race.growing", "step_of", arguments | {"at_most": self.at_most}, small)


@dataclass(frozen=True)
class Curve:
    name: str
    axis: str
    unit: str  # of one unit on the axis
    points: tuple[Point, ...]


def curves(quick: bool) -> list[Curve]:
    take = slice(0, 3) if quick else slice(None)
    batches = (64, 128, 256, 512, 1024, 2048)[take]
    widths = (256, 512, 1024, 1536, 2048)[take]
    depths = (1, 2, 4, 8, 12)[take]
    models = [Point(parameters("mlp", {"width": w}) / 1e6, "mlp", {"width": w}, 128) for w in widths]
    return [
        Curve("MNIST CNN", "batch size", "example", tuple(Point(n, "cnn", {}, n) for n in batches)),
        Curve("MLP 784-w-w-10 at 128", "million parameters", "million", tuple(models)),
        Curve(
            "transformer d = 128, 64 tokens, at 16",
            "layers",
            "layer",
            tuple(Point(d, "transformer", {"depth": d}, 16) for d in depths),
        ),
    ]


def chunked(quick: bool) -> list[Point]:
    """Batches far larger than what is computed at once."""
    return [Point(n, "cnn", {}, n, 256) for n in ((512, 1024) if quick else (1024, 4096, 16_384, 65_536))]


def large(quick: bool) -> list[tuple[str, list[Point]]]:
    """Transformers of 128 tokens at batch size 8: as one, and one example at a time while they fit."""
    rows = 20_000
    shapes = [(2, 256, 4)] if quick else [(12, 768, 12), (24, 768, 12), (24, 1024, 16), (36, 1280, 20), (48, 1600, 25)]
    found = []
    for depth, width, heads in shapes:
        size = {"depth": depth, "width": width, "words": rows, "length": 128, "heads": heads}
        count = parameters("transformer", size) / 1e6
        chunks = (None, 1) if len(found) == 0 else (1,)
        points = [Point(count, "transformer", size, 8, at_most) for at_most in chunks]
        found.append((f"{depth} layers of {width}", points))
    return found


def measured(point: Point, competitors: tuple[str, ...], rules: Rules, tell) -> Iterator[dict[str, Any]]:
    for name, result in race({name: point.job(name) for name in competitors}, rules, tell).items():
        row = {"competitor": name, "at": point.at, "batch": point.batch, "at_most": point.at_most}
        yield row | {"threads": rules.threads, **result}


def line(xs: list[float], ys: list[float]) -> tuple[float, float, float]:
    """Where it starts, how it rises, and the share of the variance that the line explains."""
    slope, start = np.polyfit(xs, ys, 1)
    left = np.square(np.array(ys) - start - slope * np.array(xs)).sum()
    return float(start), float(slope), float(1 - left / np.square(np.array(ys) - np.mean(ys)).sum())


def series(rows: list[dict[str, Any]], name: str, competitor: str) -> tuple[list[float], list[float], list[float]]:
    """Sizes, milliseconds and MiB of what ran."""
    mine = [r for r in rows if r["curve"] == name and r["competitor"] == competitor and r["status"] == "ran"]
    return [r["at"] for r in mine], [1e3 * statistics.median(r["wall"]) for r in mine], [r["peak"] for r in mine]


def fits(found: dict[str, Any]) -> list[list[str]]:
    body = []
    for name, about in found["curves"].items():
        for competitor in COMPETITORS:
            xs, times, peaks = series(found["results"], name, competitor)
            if len(xs) < 3:
                continue
            (start, slope, share), (least, rise, explained) = line(xs, times), line(xs, peaks)
            ranged = f"{xs[0]:.3g} to {xs[-1]:.4g} {about['axis']}"
            time = f"{start:.3g} ms + {slope:.3g} ms per {about['unit']}"
            memory = f"{least:.3g} MiB + {rise:.3g} MiB per {about['unit']}"
            body.append([name, competitor, ranged, time, f"{share:.4f}", memory, f"{explained:.4f}"])
    return body


def sizes(found: dict[str, Any], kind: str) -> list[list[str]]:
    body = []
    for row in (r for r in found["results"] if r["curve"] == kind):
        cells = [row["what"], row["competitor"], str(row["batch"]), str(row["at_most"] or "all")]
        if row["status"] == "ran":
            took = statistics.median(row["wall"])
            body.append([*cells, f"{took:.3g} s", f"{1e3 * took / row['batch']:.3g} ms", f"{row['peak']:.0f}", ""])
        else:
            body.append([*cells, "", "", "", f"{row['status']}: {row['why']}"])
    return body


FITTED = ["network", "step of", "range", "time", "R²", "peak memory", "R²"]
SIZED = ["what", "step of", "batch", "at once", "a step", "an example", "peak MiB", ""]


def shown(found: dict[str, Any], form) -> str:
    bodies = [(FITTED, fits(found)), (SIZED, sizes(found, "chunks")), (SIZED, sizes(found, "large"))]
    return "\n\n".join([machine.sentence(found["about"]), *(form(head, body) for head, body in bodies if body)])


def figure(found: dict[str, Any], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(found["curves"]), figsize=(4 * len(found["curves"]), 6), layout="constrained")
    for column, (name, about) in zip(axes.T, found["curves"].items(), strict=True):
        for competitor in COMPETITORS:
            xs, times, peaks = series(found["results"], name, competitor)
            if len(xs) < 2:
                continue
            for axis, ys, words in zip(column, (times, peaks), ("ms a step", "peak MiB"), strict=True):
                start, slope, _ = line(xs, ys)
                (dots,) = axis.plot(xs, ys, "o", label=competitor)
                ends = np.array([0, xs[-1]])
                axis.plot(ends, start + slope * ends, color=dots.get_color(), linewidth=1)
                axis.set(xlabel=about["axis"], ylabel=words)
        column[0].set_title(name, fontsize="medium")
        column[0].legend()
        for axis in column:
            axis.set(xlim=(0, None), ylim=(0, None))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    free = int(0.8 * machine.memory()["available"] / machine.GIB)
    parser.add_argument("--memory-cap", type=float, default=free, metavar="GIB", help="for each process")
    parser.add_argument("--allocator", choices=list(machine.ALLOCATORS), default="tuned")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="for example docs/figures/scale.png")
    parser.add_argument("--quick", action="store_true", help="few and small sizes, to see that it works")
    parser.add_argument("--skip", nargs="+", choices=["curves", "chunks", "large"], default=[])
    parser.add_argument("--from", dest="source", type=Path, nargs="+", help="print what was measured before")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--update", action="store_true", help="write the tables into docs/speed.md")
    chosen = parser.parse_args(arguments)
    words = sys.argv[1:] if arguments is None else arguments
    several = [json.loads(file.read_text()) for file in chosen.source or []] or [run(chosen, words)]
    for found in several:
        print(shown(found, tables.markdown if chosen.markdown else tables.plain))
    if chosen.figure:
        figure(several[0], chosen.figure)
    if chosen.update:
        picture = [f"![Time and memory against size](figures/{chosen.figure.name})"] if chosen.figure else []
        pages.fill("docs/speed.md", "scale", "\n\n".join([*picture, *(shown(f, tables.markdown) for f in several)]))


def run(chosen: argparse.Namespace, words: list[str]) -> dict[str, Any]:
    rules = Rules(chosen.threads, chosen.rounds, chosen.seconds, chosen.allocator, chosen.memory_cap)
    drawn = curves(chosen.quick) if "curves" not in chosen.skip else []
    settings = {"threads": chosen.threads, "rounds": chosen.rounds, "memory cap GiB": chosen.memory_cap}
    about = machine.about("scale", words, allocator=machine.ALLOCATORS[chosen.allocator], **settings)
    found: dict[str, Any] = {"about": about, "results": []}
    found["curves"] = {curve.name: {"axis": curve.axis, "unit": curve.unit} for curve in drawn}

    with Console(stderr=True).status("") as status:

        def add(point: Point, competitors: tuple[str, ...], rules: Rules, **words: str) -> bool:
            title = f"{words.get('what', words['curve'])} {point.at:g}"
            rows = [
                words | row for row in measured(point, competitors, rules, lambda w: status.update(f"{title}: {w}"))
            ]
            found["results"] += rows
            if chosen.json:
                chosen.json.write_text(json.dumps(found, indent=1))
            return rows[-1]["status"] == "ran"

        for curve in drawn:
            for point in curve.points:
                add(point, COMPETITORS, rules, curve=curve.name)
        once = Rules(chosen.threads, 1, 0.0, chosen.allocator, chosen.memory_cap, patience=1800.0)
        for point in chunked(chosen.quick) if "chunks" not in chosen.skip else []:
            add(point, ("discreet",), once, curve="chunks", what="MNIST CNN")
        for what, points in large(chosen.quick) if "large" not in chosen.skip else []:
            words = f"transformer, {what}, {points[0].at:.0f} M parameters, 128 tokens"
            fits_in = True
            for point in points:
                names = COMPETITORS if point.at_most is None else ("discreet",)
                fits_in = add(point, names, once, curve="large", what=words)
            if not fits_in:
                break
    return found


if __name__ == "__main__":
    main()
