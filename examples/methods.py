"""Every preset on digits or MNIST at one proven epsilon, and the published forms with what is really proven of them.

    python examples/methods.py [--data digits|mnist] [--epochs 15] [--epsilon 3] [--batch-size 256] [--only NAME]

MNIST is read from the folder that DISCREET_DATA names. Prints a table: accuracy on held-out data, what is proven, what
the paper's accounting would say, seconds.
"""

from collections.abc import Callable

import torch
from common import Data, Result, load, machine, network, options, train
from torch import nn

from discreet import Kalman, Plan, Score, methods
from discreet.nn import BELU

Case = tuple[Callable[..., Plan], dict, Callable[[], nn.Module], float]  # preset, settings, activation, learning rate


def tanh() -> nn.Module:
    return nn.Tanh()


def belu() -> nn.Module:
    return BELU(1.0, 5.0)


SOUND: dict[str, Case] = {
    "dp_sgd": (methods.dp_sgd, {}, tanh, 1.0),
    "tanh_filter": (methods.tanh_filter, {}, tanh, 1.0),
    "tanh_filter, clipped": (methods.tanh_filter, {"variant": "clipped"}, tanh, 1.0),
    "tanh_filter, scaled": (methods.tanh_filter, {"variant": "scaled", "k": 0.01}, tanh, 1.0),
    "belu": (methods.belu, {}, belu, 1.0),
    "adaptive_clipping": (methods.adaptive_clipping, {}, tanh, 1.0),
    "adaptive_clipping, per layer": (methods.adaptive_clipping, {"per_layer": True}, tanh, 1.0),
    "encode_denoise": (methods.encode_denoise, {}, tanh, 1.0),
    "encode_denoise, score": (methods.encode_denoise, {"denoise": Score()}, tanh, 1.0),
    "encode_denoise, Kalman": (methods.encode_denoise, {"denoise": Kalman(gain=0.4)}, tanh, 1.0),
}
PAPER: dict[str, Case] = {
    "tanh_filter, as published": (methods.tanh_filter, {"k": 1.0}, tanh, 0.15),
    "adaptive_clipping, as published": (methods.adaptive_clipping, {}, tanh, 1.0),
    "encode_denoise, as published": (methods.encode_denoise, {}, tanh, 5.0),
}


def flat(data: Data) -> nn.Module:
    """Plain layers, which a certificate covers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(data.x[0].numel(), 32), BELU(0.5, 0.5), nn.Linear(32, 10))


def show(name: str, result: Result) -> None:
    claim = result.guarantee.claims[0] if result.guarantee.claims else None
    said = "" if claim is None else f"{claim.epsilon:.3g}, {claim.verdict}"
    proven = f"{result.guarantee.epsilon:.4g}"
    print(f"| {name} | {100 * result.accuracy:.1f} | {proven} | {said} | {result.seconds:.0f} |", flush=True)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--only", default="", help="part of a name")
    arguments = parser.parse_args()
    data = load(arguments.data)
    common = {"examples": len(data.x), "batch_size": arguments.batch_size, "epochs": arguments.epochs, "delta": 1e-5}
    print(f"{arguments.data}, {arguments.epochs:g} epochs, batch {arguments.batch_size}; {machine()}\n")
    print("| method | accuracy, % | proven epsilon | the paper would say | s |\n| --- | --- | --- | --- | --- |")
    for name, (preset, settings, activation, rate) in (SOUND | PAPER).items():
        if arguments.only not in name:
            continue
        model = network(data, activation)
        size = sum(p.numel() for p in model.parameters())
        budget = {"form": "paper"} if name in PAPER else {"epsilon": arguments.epsilon}
        if preset is methods.encode_denoise or preset is methods.tanh_filter:
            settings = settings | {"parameters": size}
        elif preset is methods.adaptive_clipping and name in PAPER:
            settings = settings | {"tensors": len(list(model.parameters()))}
        plan = preset(**common, **budget, **settings)
        show(name, train(model, plan, data, torch.optim.SGD(model.parameters(), lr=rate), name=name))
    for name, budget in (
        ("belu, certified", {"epsilon": arguments.epsilon}),
        ("belu, as published", {"form": "paper"}),
    ):
        if arguments.only in name:
            model = flat(data)
            limits = {"input_norm": 2.0, "weight_norm": 1.0, "certified": True, "alpha": 0.5, "beta": 0.5}
            plan = methods.belu(**common, **budget, **limits).fit_to(model)
            show(name, train(model, plan, data, torch.optim.SGD(model.parameters(), lr=0.5), name=name))


if __name__ == "__main__":
    main()
