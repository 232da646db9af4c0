"""Pictures, with matplotlib where it is installed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discreet.errors import ConfigError

if TYPE_CHECKING:
    from discreet.audit.sanity.generalisation import Generalisation
    from discreet.audit.sanity.memorisation import Memorisation
    from discreet.audit.sanity.patterns import Patterns
    from discreet.stages.planning import Size

_INK, _ACCENT, _PLAIN, _PALE = "#1c2430", "#0b6e77", "#c2571a", "#d9dee4"


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


def memorisation(path: Path, found: "Memorisation", gap: "Generalisation | None") -> None:
    """Accuracy on random labels over epochs (paper 003, figure 1a), and on a stand-in with its gap (1b, 1c)."""
    verdict = found.verdict
    title = f"noise {found.noise:.3g}, {found.examples:,} examples: ε = {found.epsilon:.3g}, δ = {found.delta:.1g}"
    figure, axes = _figure(1 if gap is None else 3, title)
    left = axes[0]
    _pair(left, found.private, found.plain)
    left.axhline(verdict.chance, color=_PALE, linewidth=1.2, label="chance")
    left.axhline(verdict.ceiling, color=_INK, linewidth=0.9, linestyle=":", label="allowed by the guarantee")
    left.set_title("random labels on noise, training accuracy", fontsize=10, loc="left")
    left.set_ylim(0, 1.02)
    left.legend(fontsize=8, frameon=False)
    if gap is not None:
        _pair(axes[1], gap.private, gap.plain)
        axes[1].set_title(f"{gap.data}, accuracy on held-out data", fontsize=10, loc="left")
        axes[1].set_ylim(0, 1.02)
        axes[2].bar(["private", "without privacy"], [gap.gap, gap.plain_gap], color=[_ACCENT, _PLAIN], width=0.5)
        axes[2].set_title("training less held-out accuracy", fontsize=10, loc="left")
    save(figure, path)


def patterns(path: Path, found: "Patterns") -> None:
    """How likely the pattern's label is, against how many records have it (paper 003, figure 2)."""
    title = (
        f"noise {found.noise:.3g}, {found.users:,} users: ε = {found.epsilon:.3g}, δ = {found.delta:.1g} for each user"
    )
    figure, axes = _figure(2, title)
    for ax, where in zip(axes, ("centralised", "distributed"), strict=True):
        for private, colour in ((True, _ACCENT), (False, _PLAIN)):
            points = found.of(where, private=private)
            name = "private" if private else "without privacy"
            ax.plot([p.patterns for p in points], [p.mean for p in points], "o-", color=colour, label=name)
            for p in points:
                ax.scatter([p.patterns] * len(p.answers), p.answers, s=9, color=colour, alpha=0.5)
        ax.axhline(found.verdict.chance, color=_PALE, linewidth=1.2, label="chance")
        if where == "centralised":
            ax.axhline(
                found.verdict.ceiling, color=_INK, linewidth=0.9, linestyle=":", label="allowed by the guarantee"
            )
        ax.set_xscale("log")
        ax.set_ylim(0, 1.02)
        ax.set_xlabel("records with the pattern")
        ax.set_ylabel("probability of its label")
        ax.set_title("one user's records" if where == "centralised" else "anybody's records", fontsize=10, loc="left")
        ax.legend(fontsize=8, frameon=False)
    save(figure, path)


def membership(path: Path, curve: Sequence[Sequence[float]], allowed: "Callable[[float], float] | None") -> None:
    """Who was trained on, told by the loss: true against false positives on logarithmic axes, and what is allowed."""
    figure, (ax,) = _figure(1, "membership by the loss")
    grid = [10 ** (-4 + 4 * i / 100) for i in range(101)]
    ax.plot(grid, grid, color=_PALE, linewidth=1.2, label="guessing")
    if allowed is not None:
        ax.plot(grid, [allowed(x) for x in grid], color=_INK, linewidth=0.9, linestyle=":", label="allowed")
    points = [(x, y) for x, y in curve if x > 0 and y > 0]
    ax.plot([x for x, _ in points], [y for _, y in points], color=_ACCENT, label="attack")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(1e-4, 1)
    ax.set_ylim(1e-4, 1.05)
    ax.set_xlabel("false positives")
    ax.set_ylabel("true positives")
    ax.legend(fontsize=8, frameon=False)
    save(figure, path)


def _pair(ax: Any, private: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]]) -> None:
    for points, colour, name in ((private, _ACCENT, "private"), (plain, _PLAIN, "without privacy")):
        ax.plot([x for x, _ in points], [y for _, y in points], "o-", markersize=3, color=colour, label=name)
    ax.set_xlabel("epochs")
    ax.set_ylabel("accuracy")


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
    axes = figure.subplots(1, columns, squeeze=False)[0]
    figure.suptitle(title, fontsize=11, color=_INK)
    for ax in axes:
        ax.grid(color=_PALE, linewidth=0.6)
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes
