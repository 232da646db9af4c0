"""Graphs of unequal size, batched as PyTorch Geometric batches them: nodes side by side, and a `batch` vector.

A private example is a graph. Its nodes, edges and messages are rows of tensors that hold those of the whole batch;
whose each row is, is told from the indices that autograd saved, so the network is written as ever. Data are made up:
does a graph have a triangle? python examples/graphs.py takes some seconds.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

import discreet

Graph = tuple[tuple[Tensor, Tensor], int]  # features [nodes, 2] and edges [2, edges] from node to node; a class


def graphs(count: int) -> list[Graph]:
    """Rings of 4 to 9 nodes; half of them with a chord that closes a triangle."""
    made = []
    for i in range(count):
        size = 4 + i % 6
        ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        chord = torch.tensor([[0], [2]]) if i % 2 else torch.empty(2, 0, dtype=torch.long)
        edges = torch.cat([ring, chord], 1)
        edges = torch.cat([edges, edges.flip(0)], 1)
        degree = torch.zeros(size).index_add(0, edges[0], torch.ones(edges.shape[1]))
        made.append(((torch.stack([torch.ones(size), degree / 3], 1), edges), i % 2))
    return made


class Network(nn.Module):
    """Two rounds of messages, and the sum over each graph's nodes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.start, self.head = nn.Linear(2, width), nn.Linear(width, 2)
        self.send = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, features: Tensor, edges: Tensor, batch: Tensor, count: int) -> Tensor:
        nodes = self.start(features).relu()
        for send in self.send:
            messages = send(nodes)[edges[0]]
            nodes = nodes + torch.zeros_like(nodes).index_add(0, edges[1], messages).tanh()
        return self.head(nodes.new_zeros(count, nodes.shape[1]).index_add(0, batch, nodes) / 8)


def train(steps: int = 150, examples: int = 1200, batch_size: int = 120) -> tuple[float, discreet.Guarantee]:
    """Accuracy on other graphs, and what is proven."""
    torch.manual_seed(0)
    model = Network()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    plan = discreet.methods.dp_sgd(examples=examples, batch_size=batch_size, steps=steps, epsilon=8, delta=1e-5)
    private = discreet.attach(model, plan)

    together = discreet.collate.columns(discreet.collate.graphs, default_collate)

    def losses(batch: tuple[discreet.collate.Graphs, Tensor]) -> Tensor:
        some, classes = batch
        return F.cross_entropy(model(*some), classes, reduction="none")

    for batch in private.batches(graphs(examples), collate_fn=together):
        private.backward(losses, batch)
        optimizer.step()
    proven = private.guarantee()
    private.detach()
    some, classes = together(graphs(300))
    with torch.no_grad():
        found = model(*some).argmax(1)
    return float((found == classes).float().mean()), proven


if __name__ == "__main__":
    accuracy, proven = train()
    print(f"accuracy {accuracy:.1%}, ε = {proven.epsilon:.2f}")
    print(proven)
