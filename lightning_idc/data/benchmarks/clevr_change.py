"""CLEVR-Change: rendered tables, each in a pair with a semantic change and in a pair with new camera and light only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from lightning_idc.data.annotations import find_file, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.sampling import PairSampler
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.jsonfiles import read_json, short

Pairs = Literal["all", "change", "no_change"]
IDS = {"train": 33_830, "val": 1_988, "test": 3_985}
"""Number of scenes per split; each scene has one pair with a change and one without."""
TYPES = {"color": 7_958, "material": 7_963, "add": 7_966, "drop": 7_961, "move": 7_955}
"""Number of scenes per type of change, over all splits."""
_NAMES = {"material": "texture"}  # the name in the papers' tables and in the synthetic pairs of this library
_IOU = "change_captions_by_IOU.json"


class CLEVRChange(Benchmark):
    """CLEVR-Change: 39,803 rendered scenes, each with one changed (five types) and one unchanged pair; 79,606 pairs.

    Ids are those of the common ground-truth files: ``000000.png`` with a change and ``000000.png_n`` without. Types
    are color, texture, add, drop, move and no_change. If ``change_captions_by_IOU.json`` exists, ``meta["iou"]`` of a
    changed pair is the overlap of its two views.

    Features: rendered tables with 1 changed object or none, seen from slightly different cameras; 480 x 320 pixels;
        several sentences per pair; the type of change.
    Format: PNG and JSON.
    Splits: 67,660 train, 3,976 val and 7,970 test pairs (half of each with a change).
    Licence: not stated.
    Cite: Park, Darrell, Rohrbach: Robust Change Captioning (ICCV 2019),
        https://github.com/Seth-Park/RobustChangeCaptioning

    Args:
        pairs: pairs to use: with a change, without a change, or all.
        scenes_together: whether the changed and the unchanged pair of a scene are in the same training step.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = CLEVRChange.split("data/clevr_change", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "clevr_change"
    title = "CLEVR-Change"
    protocol = "clevr-change/total"
    tree = """
images/CLEVR_default_000000.png                before; numbers up to 039999
sc_images/CLEVR_semantic_000000.png            after, with a change
nsc_images/CLEVR_nonsemantic_000000.png        after, without one
change_captions.json, no_change_captions.json  {"CLEVR_default_000000.png": [sentences], ...}
splits.json                                    {"train": [numbers], "val": [...], "test": [...]}
type_mapping.json                              {"color": ["000000.png", ...], "material", "add", "drop", "move"}
change_captions_by_IOU.json                    optional: {"0": overlap of the views, ...}"""
    steps = (
        "download data.tar.gz from the link in the README of the repository Seth-Park/RobustChangeCaptioning "
        "(Google Drive, by hand), unpack it, and set root to its folder data."
    )
    remotes = tuple(
        Remote(path, "https://github.com/Seth-Park/RobustChangeCaptioning", page=True)
        for path in ("images", "sc_images", "nsc_images", "change_captions.json", "no_change_captions.json")
    )

    def __init__(
        self, root: str | Path | None = None, pairs: Pairs = "all", scenes_together: bool = False, **options: Any
    ) -> None:
        check_arguments(CLEVRChange.__init__, locals())
        super().__init__(root, **options)
        self.pairs: Pairs = pairs
        if scenes_together and (pairs != "all" or self.batch_size % 2):
            raise ConfigError(
                "scenes_together needs both pairs of a scene in each step; expected pairs: all and an even batch_size, "
                f"found {pairs} and {self.batch_size}"
            )
        self.scenes_together = scenes_together
        self._tables: dict[str, Any] = {}

    def sampler(self, split: Split, source: PairSource) -> PairSampler:
        sampler = super().sampler(split, source)
        if self.scenes_together:
            sampler.keep_together([id.removesuffix("_n") for id in source.ids])
        return sampler

    def heading(self) -> str:
        return f"{self.title} ({self.pairs} pairs)"

    def annotations(self, split: Split) -> list[list[str]]:
        return [[f"{name}.json"] for name in ("splits", "change_captions", "no_change_captions", "type_mapping")]

    def expected(self, split: Split) -> Counts:
        return Counts(pairs=IDS[split] * (2 if self.pairs == "all" else 1))

    def miscount(self, split: Split) -> str | None:
        scenes_by_type = Counter(self._types().values())
        expected = {_NAMES.get(kind, kind): scenes for kind, scenes in TYPES.items()}
        if scenes_by_type != expected:
            return f"{self.title} type_mapping.json: expected {_scenes(expected)}; found {_scenes(scenes_by_type)}"
        return super().miscount(split)

    def read(self, split: Split) -> list[PairRecord]:
        scenes = numbers_of(self.file("splits.json"), split)
        records: list[PairRecord] = []
        if self.pairs != "no_change":
            kinds = self._types()
            iou = find_file(self.root, _IOU)
            overlaps = read_json(iou, dict) if iou else {}
            for scene in scenes:
                overlap = overlaps.get(str(scene))
                if overlap is not None and (type(overlap) not in (int, float) or not 0 <= overlap <= 1):
                    raise DataError(f"{iou}: the overlap of scene {scene} is {short(overlap)}; expected 0 to 1")
                meta = {} if overlap is None else {"iou": float(overlap)}
                records.append(self._record(scene, "", kinds.get(scene, CHANGE), meta))
        if self.pairs != "change":
            records += [self._record(scene, "_n", NO_CHANGE, {}) for scene in scenes]
        return records

    def _record(self, number: int, ending: str, kind: str, meta: dict[str, Any]) -> PairRecord:
        where = f"{self.title} scene {number}"
        table = self._table("no_change_captions.json" if ending else "change_captions.json")
        key = f"CLEVR_default_{number:06d}.png"
        if key not in table:
            raise DataError(f"{where}: {key!r} has no captions")
        folder, label = ("nsc_images", "nonsemantic") if ending else ("sc_images", "semantic")
        return PairRecord(
            f"{number:06d}.png{ending}",
            where,
            self.files.file(f"images/CLEVR_default_{number:06d}.png", where),
            self.files.file(f"{folder}/CLEVR_{label}_{number:06d}.png", where),
            sentences(table[key], where),
            change_type=kind,
            meta=meta,
        )

    def _table(self, name: str) -> dict[str, Any]:
        if name not in self._tables:
            self._tables[name] = read_json(self.file(name), dict)
        return self._tables[name]

    def _types(self) -> dict[int, str]:
        """Read the type of change of each scene, by its number."""
        path = self.file("type_mapping.json")
        types: dict[int, str] = {}
        for kind, names in read_json(path, dict).items():
            for name in names if isinstance(names, list) else [names]:
                number = name.removesuffix(".png") if isinstance(name, str) else ""
                if not (number.isascii() and number.isdecimal() and len(number) <= 9):
                    raise DataError(f"{path}: {kind} lists {name!r}; expected a name such as '000000.png'")
                types[int(number)] = _NAMES.get(kind, kind)
        return types


def _scenes(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{scenes:,} of {kind}" for kind, scenes in sorted(kinds.items())) or "nothing"


def numbers_of(path: Path, split: str) -> list[int]:
    """Read the scene numbers of a split from a file ``{"train": [numbers], ...}``.

    Raises:
        DataError: the split is absent, or is not a list of integers.
    """
    splits = read_json(path, dict)
    scenes = splits.get(split)
    if not isinstance(scenes, list) or any(type(scene) is not int or not 0 <= scene < 10**9 for scene in scenes):
        raise DataError(f"{path}: {split!r} must be a list of integers; the file has {', '.join(splits) or 'none'}")
    return scenes
