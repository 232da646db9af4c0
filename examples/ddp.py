"""The ordinary loop, by one process or by several that train together: nothing in it knows how many there are.

    python examples/ddp.py
    torchrun --standalone --nproc-per-node 2 examples/ddp.py [--data digits|mnist] [--epochs 15] [--noise-shares]

Every rank gets its share of each draw; rank 0 writes the ledger and says how it went.
"""

import tempfile
from pathlib import Path

import torch
from common import load, network, options
from torch.nn import functional as F

import discreet


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--noise-shares", action="store_true", help="have no rank know all of the noise")
    arguments = parser.parse_args()
    data = load(arguments.data)
    plan = discreet.methods.dp_sgd(
        examples=len(data.x),
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        epsilon=arguments.epsilon,
        delta=1e-5,
    )
    model = network(data)  # from the same seed on every rank
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.jsonl"
        private = discreet.attach(model, plan, ledger, noise_shares=arguments.noise_shares)
        for x, y in private.batches((data.x, data.y)):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
            optimizer.step()
        private.detach()
        if private.writes:
            with torch.no_grad():
                accuracy = (model(data.test_x).argmax(1) == data.test_y).float().mean()
            print(f"{private.ranks.size} processes, accuracy {accuracy:.1%}\n{private.guarantee()}")
            print(discreet.verify(ledger))


if __name__ == "__main__":
    main()
