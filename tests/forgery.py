"""What a forger without a key can do to a ledger, and what can happen to any file."""

import json
import random

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


def mutations(content: bytes, count: int, seed: int):
    """Bytes changed, cut out, doubled, moved, swapped between lines, numbers and words replaced."""
    draw = random.Random(seed)
    words = [b"-1", b"1e999", b"NaN", b"null", b"{}", b"[]", b'"x"', b"9" * 400, b"true", b"\x00", b"\xff", b"0.5"]
    for _ in range(count):
        kind, text = draw.randrange(7), bytearray(content)
        at = draw.randrange(len(text))
        if kind == 0:
            text[at] = draw.randrange(256)
        elif kind == 1:
            del text[at : at + draw.randrange(1, 60)]
        elif kind == 2:
            text[at:at] = text[at : at + draw.randrange(1, 200)]
        elif kind == 3:
            text[at : at + draw.randrange(1, 12)] = draw.choice(words)
        else:
            lines = bytes(text).split(b"\n")
            i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
            if kind == 4:
                lines[i], lines[j] = lines[j], lines[i]
            elif kind == 5:
                lines.insert(i, lines[j])
            else:
                del lines[i]
            text = bytearray(b"\n".join(lines))
        if bytes(text) != content:
            yield bytes(text)
