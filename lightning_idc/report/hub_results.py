"""Results in the format of the Hugging Face hub: entries of ``.eval_results/NAME.yaml`` of a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lightning_idc.metrics.results import part_of


def hub_entries(result: Mapping[str, Any], dataset: str) -> list[dict[str, Any]]:
    """Entries of a model's results, one per score and part, named by protocol and metric.

    If several parts have a metric, the names of all but the first include the part.

    Args:
        result: content of ``metrics.json``.
        dataset: name of the benchmark's repository, ``OWNER/NAME``.

    Example:
        >>> result = {"protocol": {"name": "coco", "hash": "c96a"}, "headline": "all", "scores": {"all": {"F1": 9.5}}}
        >>> result |= {"counts": {"all": {"pairs": 2}}, "data": {"split": "test", "fingerprint": "1f"}, "seed": 1}
        >>> hub_entries({**result, "predictions": {"digest": "2e"}, "selection": None}, "people/pairs")[0]["notes"]
        'protocol coco c96a, 2 pairs, split test, references 1f, predictions 2e, seed 1'
    """
    protocol, data = result["protocol"], result["data"]
    about = [f"split {data['split'] or 'unknown'}", f"references {data['fingerprint']}"]
    about.append(f"predictions {result['predictions']['digest']}")
    if result["seed"] is not None:
        about.append(f"seed {result['seed']}")
    if result["selection"] is not None:
        about.append(f"chosen on {result['selection']}")
    entries = []
    for part, scores in result["scores"].items():
        for metric, value in scores.items():
            if value is None:
                continue
            name = metric if part == part_of(result, metric) else f"{part} {metric}"
            task = re.sub(r"[^a-z0-9]+", "_", f"{protocol['name']} {name}".lower()).strip("_")
            pairs = f"{result['counts'][part]['pairs']} pairs" + f" ({part})" * (part != result["headline"])
            notes = ", ".join([f"protocol {protocol['name']} {protocol['hash']}", pairs, *about])
            entries.append({"dataset": {"id": dataset, "task_id": task}, "value": value, "notes": notes})
    return entries
