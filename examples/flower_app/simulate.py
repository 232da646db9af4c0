"""The app in Flower's simulation: all users on this machine, in processes of Ray.

python examples/flower_app/simulate.py [--users 100] [--cohort 20] [--rounds 30] [--noise 1.0] [--out run]
"""

import argparse
import os
from dataclasses import fields

os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read when they are imported

from flower_app import client_app
from flower_app.server_app import serve
from flower_app.task import Settings
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Settings):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    settings = Settings(**vars(parser.parse_args()))
    app = ServerApp()

    @app.main()
    def start(grid: Grid, context: Context) -> None:
        serve(grid, settings)

    run_simulation(
        server_app=app,
        client_app=client_app.app,
        num_supernodes=settings.users,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": 1}},
    )


if __name__ == "__main__":
    main()
