"""What a forger without a key can do to a ledger."""

import json

from discreet.ledger import chained


def rewritten(path, change):
    """The whole file written anew, chain and all, after a change to each line's content."""
    head, lines = "", []
    for line in path.read_text().splitlines():
        content = json.loads(line)
        change(content)
        made, head = chained(content, head, None)
        lines.append(made)
    path.write_bytes(b"".join(lines))
