"""Train PyTorch models on private data, and know exactly what has been proven about the result.

The public names are listed in __init__.pyi, once; each is imported when it is first used, so that planning and
accounting start without torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

from discreet import _moved

__version__ = "0.1.0"

_HERE = Path(__file__).parent


def _listed() -> dict[str, tuple[str, str]]:
    """The public names, and where each is: {"Clip": ("discreet.stages.bounds", "Clip"), ...}."""
    homes: dict[str, tuple[str, str]] = {}
    for node in ast.parse((_HERE / "__init__.pyi").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            homes |= {alias.name: (node.module or "", alias.name) for alias in node.names}
        elif isinstance(node, ast.Assign):  # methods = presets: known by this name alone
            homes[ast.unparse(node.targets[0])] = homes.pop(ast.unparse(node.value))
    return homes


_HOMES = _listed()


def _is_module(home: str, name: str) -> bool:
    path = _HERE.joinpath(*home.split(".")[1:], name)
    return path.is_dir() or path.with_suffix(".py").is_file()


# what `from discreet import *` brings: not the modules, some of which need an extra
__all__ = [name for name, home in _HOMES.items() if not _is_module(*home)]

_moved.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'discreet' has no attribute {name!r}")
    home, original = _HOMES[name]
    return import_module(f"{home}.{original}") if _is_module(home, original) else getattr(import_module(home), original)


def __dir__() -> list[str]:
    return sorted({*_HOMES, "__version__"})
