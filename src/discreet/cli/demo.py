"""The main job on bundled data: a small network learns to read digits, privately."""

from pathlib import Path

from discreet.runs.config import Config, from_dict


def config(epsilon: float, delta: float, epochs: float) -> Config:
    """Scikit-learn's digits, two convolutions and a linear layer, a large batch."""
    return from_dict(
        {
            "data": {"name": "digits"},
            "model": {"name": "cnn"},
            "budget": {"epsilon": epsilon, "delta": delta, "epochs": epochs, "batch_size": 512},
            "optimizer": {"learning_rate": 0.5, "momentum": 0.9},
            "schedule": {"name": "cosine"},
            "evaluation": {"every": max(1.0, epochs / 12)},
        }
    )


def free(folder: Path) -> Path:
    """The folder, or with a number behind it the first that does not exist: a run never overwrites another."""
    candidates = (folder if i == 1 else folder.with_name(f"{folder.name}-{i}") for i in range(1, 10**6))
    return next(c for c in candidates if not c.exists())
