"""The server: waits for the users, trains for the plan's rounds, keeps the model, the ledger and the guarantee."""

from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from discreet.federated import Rounds
from discreet.integrations.flower import Federation
from flower_app.task import Settings, held_out, make_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    serve(grid, Settings.of(context.run_config))


def serve(grid: Grid, settings: Settings) -> None:
    model, out = make_model(), Path(settings.out)
    seed = None if settings.seed < 0 else settings.seed
    rounds = Rounds(model, settings.plan, out / "ledger.jsonl", seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    Federation(rounds, optimizer, timeout=3600, patience=3600).start(grid)
    x, y = held_out()
    with torch.no_grad():
        right = float((model(x).argmax(1) == y).float().mean())
    print(f"accuracy on held-out rows: {right:.1%}", flush=True)
    save_file(model.state_dict(), out / "model.safetensors")
    (out / "guarantee.txt").write_text(f"{rounds.guarantee()}\n")
    rounds.detach()
