"""A module in which a script keeps its settings."""

from typing import Any

means: dict[Any, Any] = {}
factor = 1.0
