"""Places in README and docs that a script fills: between `<!-- KIND: NAME ... -->` and `<!-- /KIND -->`."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent


def fill(page: str, name: str, text: str, root: Path = ROOT, kind: str = "speed") -> None:
    """Replace what stands in the place of this name; a page without it is an error."""
    file = root / page
    pattern = rf"(<!-- {kind}: {re.escape(name)}\b[^>]*-->\n).*?(<!-- /{kind} -->)"
    filled, count = re.subn(pattern, lambda m: f"{m[1]}{text}\n{m[2]}", file.read_text(), flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"{page} has {count} places for {name!r}; one is needed.")
    file.write_text(filled)
