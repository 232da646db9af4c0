"""Experiments with DP-SGD at one proven epsilon: optimizers, clipping norms, schedules, and private PCA.

    python examples/dp_sgd.py [--data digits|mnist] [--epochs 15] [--epsilon 3] [--batch-size 256] [--only PART]

MNIST is read from the folder that DISCREET_DATA names. Each part prints a table. Choosing the best row by looking at
private data would be tuning, which costs budget: see discreet.Tuning.
"""

import tempfile
from pathlib import Path

import torch
from common import Data, load, machine, network, options, train
from torch import nn

from discreet import Clip, Gaussian, Mechanism, Plan, Poisson, calibrate
from discreet.features import PrivatePCA

OPTIMIZERS = {
    "SGD, 1.0": lambda p: torch.optim.SGD(p, lr=1.0),
    "SGD with momentum 0.9, 0.1": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "RMSprop, 0.003": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "Adam, 0.005": lambda p: torch.optim.Adam(p, lr=0.005),
}


def plan_for(data: Data, arguments, norm=1.0, schedule=(), beside=()) -> Plan:
    plan = Plan(
        sampling=Poisson(examples=len(data.x), batch_size=arguments.batch_size),
        mechanism=Mechanism(Clip(norm), Gaussian()),
        epochs=arguments.epochs,
        delta=1e-5,
        noise_schedule=schedule,
    )
    return calibrate(plan, arguments.epsilon, beside=beside)


def table(title: str) -> None:
    print(f"\n| {title} | accuracy, % | proven epsilon | s |\n| --- | --- | --- | --- |", flush=True)


def show(name: str, result) -> None:
    proven = f"{result.guarantee.epsilon:.4g}"
    print(f"| {name} | {100 * result.accuracy:.1f} | {proven} | {result.seconds:.0f} |", flush=True)


def optimizers(data: Data, arguments) -> None:
    table("optimizer, learning rate")
    for name, make in OPTIMIZERS.items():
        model = network(data)
        show(name, train(model, plan_for(data, arguments), data, make(model.parameters()), name=name))


def clipping(data: Data, arguments) -> None:
    """The noise is in units of the norm, so a larger norm means more noise; the learning rate is scaled to match."""
    table("clipping norm")
    for norm in (0.01, 0.1, 0.5, 1.0, 3.0, 10.0):
        model = network(data)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0 / norm)
        show(f"{norm:g}", train(model, plan_for(data, arguments, norm), data, optimizer, name=f"norm {norm:g}"))


def schedules(data: Data, arguments) -> None:
    table("schedule")
    falling = (1.4, 1.2, 1.0, 0.85, 0.7)
    shapes = {"constant noise": (), "noise falling by half": falling, "noise doubling": falling[::-1]}
    for name, shape in shapes.items():
        model = network(data)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        show(name, train(model, plan_for(data, arguments, schedule=shape), data, optimizer, name=name))
    model = network(data)
    plan = plan_for(data, arguments)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, plan.steps)
    show("learning rate by a cosine", train(model, plan, data, optimizer, schedule=cosine, name="cosine"))


def pca(data: Data, arguments) -> None:
    """Abadi et al.: project onto private principal directions, then one hidden layer; both releases in one budget."""
    table("input")
    width = data.x[0].numel()
    for name, components in (("all pixels", None), (f"private PCA to {min(60, width // 2)}", min(60, width // 2))):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger.jsonl"
            layers: list[nn.Module] = [nn.Flatten()]
            plan = plan_for(data, arguments)
            if components is not None:
                private_pca = PrivatePCA(components, noise=4.0)
                layers.append(private_pca.fit(data.x, ledger))
                plan = plan_for(data, arguments, beside=[private_pca.cost()])
            hidden = 1000 if width > 100 else 100
            model = nn.Sequential(*layers, nn.Linear(components or width, hidden), nn.ReLU(), nn.Linear(hidden, 10))
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            show(name, train(model, plan, data, optimizer, ledger=ledger, name=name))


PARTS = {"optimizers": optimizers, "clipping": clipping, "schedules": schedules, "pca": pca}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", choices=PARTS)
    arguments = parser.parse_args()
    data = load(arguments.data)
    print(f"{arguments.data}, {arguments.epochs:g} epochs, batch {arguments.batch_size}; {machine()}")
    for name, part in PARTS.items():
        if arguments.only in (None, name):
            part(data, arguments)


if __name__ == "__main__":
    main()
