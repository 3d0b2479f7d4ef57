"""A folder of image pairs as users have them."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

from PIL import Image, ImageDraw

COLORS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 60, 230)}


def own_pairs(root: Path, count: int = 60) -> Path:
    """Write pairs of mixed image sizes and file formats, in which a square changes its colour or stays the same."""
    draw = random.Random(0)
    rows = []
    for n in range(count):
        size, ending = draw.choice([(64, 64), (120, 90), (80, 130), (200, 150)]), draw.choice(["png", "jpg", "webp"])
        first, second = draw.choices(list(COLORS), k=2)
        for side, color in (("before", first), ("after", second)):
            image = Image.new("RGB", size, (128, 128, 128))
            ImageDraw.Draw(image).rectangle((8, 8, 40, 40), COLORS[color])
            (root / side).mkdir(parents=True, exist_ok=True)
            image.save(root / side / f"{n:04}.{ending if n > 1 else 'png'}")
        kind = "no_change" if first == second else "color"
        said = "nothing changed" if first == second else f"the {first} square is {second} now"
        rows.append({"id": f"{n:04}", "captions": json.dumps([said, f"here {said}"]), "change_type": kind})
    with (root / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["id", "captions", "change_type"])
        table.writeheader()
        table.writerows(rows)
    return root
