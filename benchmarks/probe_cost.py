"""What testing isolation costs: whole trainings of the MNIST CNN at batch size 256, with probes and without.

Counted work is the multiplications of all products and convolutions (torch's FlopCounterMode), which no other program
on the machine disturbs. On the clock, trainings with and without probes take turns, a stretch of steps each, and the
medians of their times over several rounds are compared. The first step is timed on its own, in ordinary steps.

    python benchmarks/probe_cost.py [--steps 500] [--rounds 5] [--clock]
"""

import argparse
import math
import statistics
import time

import torch
from models import mnist_cnn
from race.machine import processor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import discreet

EXAMPLES, BATCH = 60_000, 256


class Training:
    """One private training by a loss that the library can call."""

    def __init__(self, data, steps, probes):
        torch.manual_seed(0)
        self.model = mnist_cnn()
        plan = discreet.methods.dp_sgd(examples=EXAMPLES, batch_size=BATCH, steps=steps, noise=1.0, delta=1e-5)
        self.private = discreet.attach(self.model, plan, preflight=probes, seed=1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.batches = self.private.batches(data)

    def loss(self, batch):
        return F.cross_entropy(self.model(batch[0]), batch[1], reduction="none")

    def run(self, steps):
        """So many steps; the seconds that they took."""
        started = time.perf_counter()
        for _ in range(steps):
            self.private.backward(self.loss, next(self.batches))
            self.optimizer.step()
        return time.perf_counter() - started


def backward_of_convolution(grad_output, _rows, weight, *others, **_):
    """Multiplications by the shapes. Torch's own formula takes grouped convolutions for dense ones."""
    wanted = others[7]  # whether the gradient of the input, of the weight, of the bias
    return 2 * math.prod(grad_output) * math.prod(weight[1:]) * sum(wanted[:2])


COUNTS = {torch.ops.aten.convolution_backward: backward_of_convolution}


def counted(data, steps):
    """The multiplications of a whole training, with probes and without; and those of the first step, in later ones."""
    work = {}
    for probes in (False, True):
        training = Training(data, steps, probes)
        with FlopCounterMode(display=False, custom_mapping=COUNTS) as counter:
            training.run(1)
            first = counter.get_total_flops()
            training.run(steps - 1)
        work[probes] = first, counter.get_total_flops()
    ordinary = (work[False][1] - work[False][0]) / (steps - 1)
    return work[True][1] / work[False][1], work[True][0] / ordinary


def clocked(data, steps, rounds, stretch=50):
    ratios, firsts = [], []
    for _ in range(rounds):
        runs = {probes: Training(data, steps, probes) for probes in (False, True)}
        first = {probes: training.run(1) for probes, training in runs.items()}
        times = dict(first)
        done = 1
        while done < steps:
            some = min(stretch, steps - done)
            for probes in (False, True) if (done // stretch) % 2 else (True, False):
                times[probes] += runs[probes].run(some)
            done += some
        ratios.append(times[True] / times[False])
        firsts.append(first[True] / ((times[False] - first[False]) / (steps - 1)))
    return statistics.median(ratios), statistics.median(firsts), ratios


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", action="store_true", help="time it as well (an idle machine, some minutes)")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = torch.randn(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))
    print(f"{time.strftime('%Y-%m-%d')}, {processor()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    whole, first = counted(data, arguments.steps)
    print(f"counted work of {arguments.steps} steps: {whole:.4f}x; first step: {first:.2f} ordinary ones")
    if arguments.clock:
        ratio, first, all_ratios = clocked(data, arguments.steps, arguments.rounds)
        print(
            f"on the clock: {ratio:.4f}x (rounds: {', '.join(f'{r:.4f}' for r in all_ratios)}); first step: {first:.2f}"
        )


if __name__ == "__main__":
    main()
