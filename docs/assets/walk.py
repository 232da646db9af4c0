"""Draw the walk of one private step: python docs/assets/walk.py writes walk.svg beside this file.

Every mark is where a small computation puts it: gradients are drawn, clipped, added and noised by the numbers below.
"""

import math
import random
from itertools import pairwise
from pathlib import Path

WIDTH, HEIGHT, TOP, BOX, SIDE, GAP = 1080, 390, 52, 150, 150, 24
INK, SOFT, LINE, HUE, WARM, PAPER = "#1f2a30", "#5b6a72", "#c9d3d7", "#00796b", "#c2571a", "#ffffff"
STAGES = (
    ("sampling", "each example takes part", "by its own secret coin"),
    ("gradients", "one for each example,", "from autograd's graph"),
    ("bound", "none moves the sum", "by more than C"),
    ("sum", "of the batch, over", "chunks and ranks"),
    ("noise", "of the stated law, from", "a secure source"),
    ("optimizer", "any of torch's: it sees", "only what was released"),
)
RADIUS = 34.0  # the clipping norm, in pixels


def draws() -> tuple[list[tuple[int, int]], list[tuple[float, float]]]:
    """Who takes part, and their gradients: lengths of every size in directions that mostly agree."""
    source = random.Random(11)
    cells = [(i, j) for j in range(6) for i in range(8) if source.random() < 0.13]
    vectors = []
    for _ in cells:
        length, angle = RADIUS * source.lognormvariate(0.15, 0.4), source.gauss(-0.7, 0.9)
        vectors.append((length * math.cos(angle), length * math.sin(angle)))
    return cells, vectors


def clipped(vector: tuple[float, float]) -> tuple[float, float]:
    scale = min(1.0, RADIUS / math.hypot(*vector))
    return scale * vector[0], scale * vector[1]


def text(x: float, y: float, words: str, size: float = 13, colour: str = INK, weight: int = 400) -> str:
    style = f'font-size="{size:g}" fill="{colour}" font-weight="{weight}" text-anchor="middle"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{words}</text>'


def arrow(x: float, y: float, dx: float, dy: float, colour: str = HUE, width: float = 2.0, head: float = 6.0) -> str:
    """A line with a head; the tip is where the vector ends."""
    length = math.hypot(dx, dy)
    ux, uy = dx / length, dy / length
    tip, base = (x + dx, y + dy), (x + dx - head * ux, y + dy - head * uy)
    left, right = ((base[0] + s * 0.5 * head * -uy, base[1] + s * 0.5 * head * ux) for s in (1, -1))
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in (tip, left, right))
    line = f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{base[0]:.1f}" y2="{base[1]:.1f}"'
    return f'{line} stroke="{colour}" stroke-width="{width}"/><polygon points="{points}" fill="{colour}"/>'


def circle(x: float, y: float, r: float, style: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" {style}/>'


def box(x: float, y: float, width: float, height: float, fill: str = PAPER, stroke: str = LINE) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" stroke="{stroke}"/>'


def pictures(x: list[float], y: float) -> list[str]:
    """What each of the six stages does, drawn around the middle (x, y) of its box."""
    cells, vectors = draws()
    parts = []
    for j in range(6):
        for i in range(8):
            style = f'fill="{HUE}"' if (i, j) in cells else f'fill="none" stroke="{LINE}" stroke-width="1.5"'
            parts.append(circle(x[0] + 14 * (i - 3.5), y + 14 * (j - 2.5), 4, style))
    parts += [arrow(x[1] - 12, y + 8, *v) for v in vectors]
    parts.append(circle(x[2], y, RADIUS, f'fill="none" stroke="{WARM}" stroke-dasharray="4 3" stroke-width="1.5"'))
    parts += [arrow(x[2], y, *clipped(v)) for v in vectors]
    total = [sum(clipped(v)[k] for v in vectors) for k in (0, 1)]
    scale = 78 / math.hypot(*total)
    total = [scale * t for t in total]
    parts.append(arrow(x[3] - total[0] / 2, y - total[1] / 2, *total, width=3.5, head=10))
    start = x[4] - total[0] / 2, y - total[1] / 2
    end = start[0] + total[0], start[1] + total[1]
    source = random.Random(5)
    parts += [
        circle(end[0] + source.gauss(0, 11), end[1] + source.gauss(0, 11), 1.4, f'fill="{WARM}" opacity="0.55"')
        for _ in range(140)
    ]
    released = total[0] + source.gauss(0, 11), total[1] + source.gauss(0, 11)
    parts.append(arrow(*start, *total, colour=LINE, width=3.5, head=10))
    parts.append(arrow(*start, *released, width=3.5, head=10))
    for r in (52, 37, 22, 8):
        ring = f'fill="none" stroke="{LINE}" stroke-width="1.5"'
        parts.append(f'<ellipse cx="{x[5] + 8:.1f}" cy="{y + 4:.1f}" rx="{r}" ry="{0.72 * r:.1f}" {ring}/>')
    path = [(-46, -44), (-34, -16), (-12, -24), (-8, 2), (8, 4)]
    for (a, b), (c, d) in pairwise(path):
        parts.append(arrow(x[5] + a, y + b, c - a, d - b, width=2.2))
    return parts


def ledger(x: float, y: float) -> list[str]:
    """Lines of the ledger, each holding the hash of the one before it."""
    parts = []
    for i in range(4):
        left = x + i * 92
        last = i == 3
        parts.append(box(left, y, 76, 44, stroke=HUE if last else LINE))
        parts.append(text(left + 38, y + 19, f"step {i + 1}", 12, INK, 600 if last else 400))
        parts.append(text(left + 38, y + 35, "hash", 11, SOFT))
        if i:
            parts.append(arrow(left, y + 22, -16, 0, SOFT, 1.5, 5))
    return parts


def picture() -> str:
    lefts = [GAP + i * (SIDE + GAP) + 4 for i in range(6)]
    middles = [left + SIDE / 2 for left in lefts]
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#f6f9f9"/>']
    parts.append(text(WIDTH / 2, 32, "One private step", 17, INK, 600))
    for left, middle, (name, first, second) in zip(lefts, middles, STAGES, strict=True):
        parts += [box(left, TOP, SIDE, BOX), text(middle, TOP + BOX + 20, name, 15, HUE, 600)]
        parts += [text(middle, TOP + BOX + 38, first, 12, SOFT), text(middle, TOP + BOX + 53, second, 12, SOFT)]
    parts += [arrow(left - GAP + 3, TOP + BOX / 2, GAP - 6, 0, SOFT, 2, 7) for left in lefts[1:]]
    parts += pictures(middles, TOP + BOX / 2)
    base = 306
    parts += ledger(lefts[2] - 20, base)
    parts.append(text(lefts[2] + 156, base + 64, "ledger: the line is on disk before the noise is drawn", 12, SOFT))
    down = lefts[2] + 294  # above the last line of the ledger
    parts.append(arrow(down, TOP + BOX + 62, 0, base - TOP - BOX - 66, HUE, 2, 7))
    parts.append(arrow(lefts[2] + 334, base + 22, 34, 0, SOFT, 2, 7))
    right = lefts[2] + 372
    parts += [box(right, base, 100, 44), text(right + 50, base + 27, "accounting", 13)]
    parts.append(text(right + 50, base + 64, "from what ran", 12, SOFT))
    parts.append(arrow(right + 102, base + 22, 30, 0, SOFT, 2, 7))
    parts += [box(right + 136, base, 150, 44, HUE, HUE), text(right + 211, base + 27, "the guarantee", 14, PAPER, 600)]
    parts.append(text(right + 211, base + 64, "proven, checked, assumed", 12, SOFT))
    parts += [box(lefts[0], base, 186, 44), text(lefts[0] + 93, base + 19, "plan", 13, INK, 600)]
    parts.append(text(lefts[0] + 93, base + 35, "all of it, as one value", 11, SOFT))
    parts.append(text(lefts[0] + 93, base + 64, "solved before data is touched", 12, SOFT))
    title = "One private step: sampling, gradients, bound, sum, noise, optimizer; counted before the noise is drawn"
    font = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="{font}">'
    return "\n".join([head, f"<title>{title}</title>", *parts, "</svg>", ""])


if __name__ == "__main__":
    Path(__file__).with_name("walk.svg").write_text(picture())
