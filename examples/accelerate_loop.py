"""A plain loop under accelerate: the device, mixed precision and the optimizer are accelerate's, the batches and the
backward pass are the plan's.

    python examples/accelerate_loop.py [--epochs 15] [--epsilon 3] [--batch-size 256] [--mixed-precision no|bf16]

One process: batches that are spread over several would be drawn and counted by none of them.
"""

import torch
from accelerate import Accelerator
from common import load, network, options
from torch.nn import functional as F

import discreet


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--mixed-precision", choices=["no", "bf16"], default="no")
    arguments = parser.parse_args()
    data = load(arguments.data)
    accelerator = Accelerator(mixed_precision=arguments.mixed_precision)
    if accelerator.num_processes > 1:
        raise SystemExit(f"this loop is for one process, not {accelerator.num_processes}.")

    model = network(data)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)

    plan = discreet.methods.dp_sgd(
        examples=len(data.x),
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        epsilon=arguments.epsilon,
        delta=1e-5,
    )
    private = discreet.attach(model, plan)  # after prepare, which may move the model
    for x, y in private.batches((data.x, data.y)):  # no DataLoader for accelerate to shard
        x, y = x.to(accelerator.device), y.to(accelerator.device)
        private.backward(F.cross_entropy(model(x), y, reduction="none"))  # not accelerator.backward, which raises
        optimizer.step()
    private.detach()

    with torch.no_grad():
        right = model(data.test_x.to(accelerator.device)).argmax(1).cpu() == data.test_y
    print("| accuracy, % | steps | proven epsilon |\n| --- | --- | --- |")
    print(f"| {100 * right.float().mean():.1f} | {private.released} | {private.guarantee().epsilon:.4g} |")


if __name__ == "__main__":
    main()
