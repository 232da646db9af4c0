"""The papers' presets: functions that return a plan.

Each has the paper's hyper-parameters for defaults. `form="sound"` is the corrected method: give `epsilon` to have its
noise solved, or `noise` (in units of the sensitivity) to have epsilon follow. `form="paper"` is the method as it was
published, with the paper's noise unless `noise` is given, or with the noise at which the paper's own accounting says
`epsilon`: its guarantee says what is really proven, and has that claim beside it.

standard.py    DP-SGD, DP-FedAvg, and matrix factorisation
published.py   the papers that are reproduced here, as published and in a sound form
run.py         how long, and with what noise: what every preset is asked
"""

from discreet.stages.presets.published import adaptive_clipping, belu, encode_denoise, tanh_filter
from discreet.stages.presets.standard import band_mf, dp_fedavg, dp_ftrl, dp_sgd

__all__ = [
    "adaptive_clipping",
    "band_mf",
    "belu",
    "dp_fedavg",
    "dp_ftrl",
    "dp_sgd",
    "encode_denoise",
    "tanh_filter",
]
