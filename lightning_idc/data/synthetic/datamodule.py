"""Data module of rendered pairs, for training, tests and benchmarks without downloads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_idc.data.datamodule import PairDataModule, check_no_options
from lightning_idc.data.splits import Split
from lightning_idc.data.synthetic.cache import Key, ensure
from lightning_idc.data.synthetic.facts import change_accuracy, report_accuracy
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.sampling import Relations
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.utils.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, Share, TwoOrMore, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import default_cache_dir


class SyntheticPairs(PairDataModule):
    """Pairs of CLEVR-like scenes with captions and ground truth, rendered once and cached on disk.

    Args:
        mode: ``clevr_change``, ``clevr_dc``, ``clevr_wide`` or ``omnidiff``.
        train_pairs: number of training pairs.
        val_pairs: number of validation pairs.
        test_pairs: number of test pairs, which are also used for prediction.
        render_size: height and width of the images in pixels, or one number for both.
        things: minimum and maximum number of objects in a scene; None for the default of the mode. For `omnidiff` this
            is the number of unchanged objects, to which the changed ones are added.
        camera_jitter: maximum shift of each camera coordinate per image in world units; None for the default of the
            mode.
        no_change: fraction of pairs in which only camera and lights change; None for the default of the mode.
        relations: ``always``: captions give the position of the object; ``needed``: only if another object looks the
            same; None for the default of the mode. Not for `omnidiff`.
        data_seed: seed of the scenes, separate from the training seed.
        cache_dir: folder for rendered pairs; None for ``$LIGHTNING_IDC_CACHE`` or ``~/.cache/lightning_idc``.
        progress: whether to show a progress bar while rendering.
        render_workers: number of rendering threads; None for one per core.
        kwargs: arguments of `PairDataModule`.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> data = SyntheticPairs(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, progress=False)
        >>> data.dataset("train")[0].after.shape
        torch.Size([3, 16, 16])
    """

    def __init__(
        self,
        mode: str = "clevr_change",
        train_pairs: PositiveInt = 6000,
        val_pairs: PositiveInt = 400,
        test_pairs: PositiveInt = 500,
        render_size: PositiveInt | tuple[PositiveInt, PositiveInt] = 64,
        things: tuple[TwoOrMore, TwoOrMore] | None = None,
        camera_jitter: NonNegativeFloat | None = None,
        no_change: Share | None = None,
        relations: Relations | None = None,
        data_seed: int = 0,
        cache_dir: str | Path | None = None,
        progress: bool = True,
        render_workers: NonNegativeInt | None = None,
        **kwargs: Any,
    ) -> None:
        check_arguments(SyntheticPairs.__init__, locals())
        super().__init__(**kwargs)
        check_no_options(self.image_options, "rendered pairs are 8-bit images")
        height, width = (render_size, render_size) if isinstance(render_size, int) else render_size
        if min(height, width) < 16:
            raise ConfigError(f"render_size is {height}x{width}; expected at least 16 pixels per side")
        world = replace(load_mode(mode).WORLD, aspect=width / height)
        if relations is not None and mode == "omnidiff":
            raise ConfigError("relations applies to the modes with a single change, not to omnidiff")
        overrides: dict[str, Any] = {
            "things": things,
            "camera_jitter": camera_jitter,
            "no_change": no_change,
            "relations": relations,
        }
        if things is not None:
            if len(things) != 2 or not 2 <= things[0] <= things[1]:
                raise ConfigError(f"things is {things}; expected a minimum of at least 2 and a maximum")
            overrides["things"] = tuple(things)
        world = replace(world, **{name: value for name, value in overrides.items() if value is not None})
        sizes = {"train": train_pairs, "val": val_pairs, "test": test_pairs}
        self._keys = {split: Key(mode, split, pairs, height, width, data_seed, world) for split, pairs in sizes.items()}
        self._root = Path(cache_dir).expanduser() if cache_dir is not None else default_cache_dir()
        self._native = height, width
        self.domain = f"rendered scenes ({mode})"
        self._progress = progress
        self._workers = render_workers
        self._rendered: dict[str, SyntheticSource] = {}

    def native_size(self) -> tuple[int, int]:
        return self._native

    def prepare_data(self) -> None:
        """Render missing splits; called by one process per machine."""
        for split in self._keys:
            ensure(self._keys[split], self._root, self._progress, self._workers)

    def source(self, split: Split) -> SyntheticSource:
        """Return the pairs of a split, rendering them if they are missing."""
        name = "test" if split == "predict" else split
        if name not in self._rendered:
            self._rendered[name] = SyntheticSource(self._keys[name], self._root, self._progress, self._workers)
        return self._rendered[name]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """Check the facts of a caption against the scene; see `facts`."""
        source = self.source(split)
        ground_truth = source.ground_truth(int(id.rpartition("-")[2]))
        if source.key.mode == "omnidiff":
            scores = report_accuracy(caption, ground_truth)
            return {
                "types": scores["type_recall"] == 1.0 == scores["type_precision"],
                "facts": scores["fact_recall"] == 1.0,
            }
        accuracy = change_accuracy(caption, ground_truth)
        return {name.removesuffix("_correct"): is_correct for name, is_correct in accuracy.items()}
