"""Pictures, with matplotlib where it is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.planning import Size

_INK, _ACCENT, _PALE = "#1c2430", "#0b6e77", "#d9dee4"


def budget(path: Path, sizes: "Sequence[Size]", epochs: Sequence[tuple[float, float]], title: str) -> None:
    """Noise an example against batch size (paper 003, figure 5), and epsilon over epochs, side by side."""
    figure, axes = _figure(2, title)
    left, right = axes
    left.loglog([s.batch_size for s in sizes], [s.noise_per_example for s in sizes], "o-", color=_ACCENT)
    left.set_xlabel("batch size")
    left.set_ylabel("noise multiplier / batch size")
    left.set_title("noise an example, at equal ε", fontsize=10, loc="left")
    right.plot([e for e, _ in epochs], [e for _, e in epochs], color=_ACCENT)
    right.set_xlabel("epochs")
    right.set_ylabel("proven ε")
    right.set_ylim(bottom=0)
    right.set_title("ε over the run", fontsize=10, loc="left")
    save(figure, path)


def check(path: Path) -> None:
    """Raise, before anything is computed, if a plot could not be written there."""
    _figure_class()
    if path.is_dir() or not path.parent.is_dir() or path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"the plot cannot be written to {path}: name a .png, .svg or .pdf in a folder that exists.")


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format its name asks for."""
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the plot cannot be written to {path}: {error}") from error


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib; install it with: pip install 'discreet[plots]'") from error
    return Figure


def _figure(columns: int, title: str) -> tuple[Any, Any]:
    figure = _figure_class()(figsize=(4.4 * columns, 3.4), layout="constrained")
    axes = figure.subplots(1, columns)
    figure.suptitle(title, fontsize=11, color=_INK)
    for ax in axes:
        ax.grid(color=_PALE, linewidth=0.6)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
