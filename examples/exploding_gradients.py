"""Gradients that explode in a recurrent network, and the tanh filter that stops them; no privacy is involved.

    python examples/exploding_gradients.py [--steps N] [--length N] [--seed N] [--filter | --no-filter]

A tanh network with large recurrent weights is to repeat the sign that it was shown three steps before. Its gradient
grows with every step back in time, so that plain SGD throws the weights far out and the loss follows. The same
network with the same seed, data and learning rate learns once each step's gradient passes through a tanh. An answer
of 0 to everything has loss 1.
"""

import argparse
import math
from collections.abc import Callable
from statistics import fmean

import torch
from rich.console import Console
from rich.progress import Progress, TaskID
from torch import nn
from torch.nn import functional as F

from discreet.nn import FilteredRNN

LAG = 3
BATCH = 32
HIDDEN = 32
SPREAD = 4.0  # of the recurrent weights, times sqrt(HIDDEN): well above 1, where gradients begin to grow
LEARNING_RATE = 0.2
NAMES = {False: "without the filter", True: "with the filter"}


def run(
    *,
    filtered: bool,
    steps: int = 300,
    length: int = 100,
    seed: int = 0,
    on_step: Callable[[int, float], None] = lambda step, loss: None,
) -> list[float]:
    """Train, and return the loss of every step; stop at the first that is no finite number."""
    torch.manual_seed(seed)
    reach = 3 / (BATCH * length)  # the mean over a batch makes the gradient of each output this small, times its error
    recurrent = FilteredRNN(1, HIDDEN, c=reach, k=reach) if filtered else nn.RNN(1, HIDDEN)
    head = nn.Linear(HIDDEN, 1)
    nn.init.normal_(recurrent.get_parameter("weight_ih_l0"))
    nn.init.normal_(recurrent.get_parameter("weight_hh_l0"), std=SPREAD / math.sqrt(HIDDEN))
    optimizer = torch.optim.SGD([*recurrent.parameters(), *head.parameters()], lr=LEARNING_RATE)
    losses: list[float] = []
    for step in range(steps):
        shown = torch.randint(2, (length, BATCH, 1)) * 2.0 - 1.0
        answers = head(recurrent(shown)[0])
        loss = F.mse_loss(answers[LAG:], shown[:-LAG])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        on_step(step + 1, losses[-1])
        if not math.isfinite(losses[-1]):
            break
    return losses


def outcome(losses: list[float]) -> str:
    """One line on how a run went."""
    if not math.isfinite(losses[-1]):
        return f"diverged: at step {len(losses)} the loss is {losses[-1]:g}"
    last = losses[-10:]
    return f"after {len(losses)} steps the loss is {fmean(last):.3g}; at most it was {max(losses):.3g}"


def main() -> None:
    """Run what was asked for, both ways unless one was, and say how it went."""
    parser = argparse.ArgumentParser(description="A recurrent network whose gradients explode, and the tanh filter.")
    parser.add_argument("--steps", type=int, default=300, help="of training (300)")
    parser.add_argument("--length", type=int, default=100, help="of a sequence (100)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and data (0)")
    parser.add_argument("--filter", action=argparse.BooleanOptionalAction, help="only with, or only without; else both")
    asked = parser.parse_args()
    if asked.steps < 1 or asked.length <= LAG:
        parser.error(f"--steps must be at least 1, and --length at least {LAG + 1}")
    ways = [False, True] if asked.filter is None else [asked.filter]
    console = Console()
    found = {}
    with Progress(console=console, transient=True) as progress:
        for filtered in ways:
            task = progress.add_task(NAMES[filtered], total=asked.steps)

            def show(step: int, loss: float, name: str = NAMES[filtered], task: TaskID = task) -> None:
                progress.update(task, completed=step)
                if step == 1 or step % max(1, asked.steps // 10) == 0 or not math.isfinite(loss):
                    console.print(f"{name}, step {step}: loss {loss:.3g}")

            found[filtered] = run(
                filtered=filtered, steps=asked.steps, length=asked.length, seed=asked.seed, on_step=show
            )
    for filtered, losses in found.items():
        console.print(f"{NAMES[filtered]}: {outcome(losses)}")


if __name__ == "__main__":
    main()
