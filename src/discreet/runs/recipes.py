"""Recipes: configs that come with the package, the best that was found for well-known data."""

from pathlib import Path

from discreet.errors import ConfigError

_HERE = Path(__file__).parent
_PLACES = (_HERE / "recipe-files", _HERE.parents[2] / "recipes")  # in a wheel, and in a clone


def folder() -> Path:
    """Where the files are."""
    return next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def names() -> tuple[str, ...]:
    """What there is."""
    return tuple(sorted(path.stem for path in folder().glob("*.toml")))


def path(name: str) -> Path:
    """The file of this recipe."""
    if name not in names():
        raise ConfigError(f"there is no recipe {name!r}; there are {', '.join(names()) or 'none'}.")
    return folder() / f"{name}.toml"


def usual(data: str, epsilon: float | None) -> str | None:
    """The recipe for a data set that a budget alone is said of; None where there is none."""
    if epsilon is None or data not in names():
        return None
    small = f"{data}-epsilon-1"
    return small if epsilon <= 1 and small in names() else data
