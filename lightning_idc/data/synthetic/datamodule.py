"""The embedded data set: rendered where it is needed, for training, tests and benchmarks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from lightning_idc.data.datamodule import PairDataModule, Split, refuse_options
from lightning_idc.data.synthetic.cache import Key, ensure
from lightning_idc.data.synthetic.facts import change_accuracy, report_accuracy
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.data.synthetic.sampling import Relations
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import default_cache_dir


class SyntheticPairs(PairDataModule):
    """Pairs of CLEVR-like scenes with captions and ground truth, rendered once and kept on disk.

    Args:
        mode: ``clevr_change``, ``clevr_dc``, ``clevr_wide`` or ``omnidiff``.
        train_pairs: number of pairs to train on.
        val_pairs: number of pairs to validate on.
        test_pairs: number of pairs to test on; they are what is predicted, too.
        render_size: height and width of the pictures, or one number for both; pixels.
        things: least and greatest number of things in a scene; None for the mode's own. In `omnidiff` it counts the
            bystanders, to which those that change are added.
        camera_jitter: each coordinate of the camera moves by up to this much in every picture, world units; None
            for the mode's own.
        no_change: share of pairs in which only camera and lights change; None for the mode's own.
        relations: ``always``: captions say where a thing stands; ``needed``: only where another thing looks the same;
            None for the mode's own. `omnidiff` has its own rules.
        data_seed: seed of the scenes, apart from the seed of training.
        cache_dir: folder for rendered pairs; None for ``$LIGHTNING_IDC_CACHE`` or ``~/.cache/lightning_idc``.
        progress: show a bar with the time left while rendering.
        render_workers: threads that render; None for one per core.
        kwargs: arguments of `PairDataModule`.

    Raises:
        ConfigError: an argument that no scene can be drawn with.

    Example:
        >>> data = SyntheticPairs(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, progress=False)
        >>> data.dataset("train")[0].after.shape
        torch.Size([3, 16, 16])
    """

    def __init__(
        self,
        mode: str = "clevr_change",
        train_pairs: int = 6000,
        val_pairs: int = 400,
        test_pairs: int = 500,
        render_size: int | tuple[int, int] = 64,
        things: tuple[int, int] | None = None,
        camera_jitter: float | None = None,
        no_change: float | None = None,
        relations: Relations | None = None,
        data_seed: int = 0,
        cache_dir: str | Path | None = None,
        progress: bool = True,
        render_workers: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        refuse_options(self.image_options, "rendered pairs are 8-bit images")
        height, width = (render_size, render_size) if isinstance(render_size, int) else render_size
        for name, value in (("train_pairs", train_pairs), ("val_pairs", val_pairs), ("test_pairs", test_pairs)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; expected at least one pair")
        if min(height, width) < 16:
            raise ConfigError(f"render_size is {height}x{width}; expected at least 16 pixels each way")
        if no_change is not None and not 0 <= no_change <= 1:
            raise ConfigError(f"no_change is {no_change}; expected a share between 0 and 1")
        world = replace(load_mode(mode).WORLD, aspect=width / height)
        if relations is not None and relations not in get_args(Relations):
            raise ConfigError(f"relations is {relations!r}; choose one of {', '.join(get_args(Relations))}")
        if relations is not None and mode == "omnidiff":
            raise ConfigError("relations is for the modes with a single change; omnidiff has rules of its own")
        given: dict[str, Any] = {
            "things": things,
            "camera_jitter": camera_jitter,
            "no_change": no_change,
            "relations": relations,
        }
        if things is not None:
            if len(things) != 2 or not 2 <= things[0] <= things[1]:
                raise ConfigError(f"things is {things}; expected a least and a greatest number, at least 2")
            given["things"] = tuple(things)
        world = replace(world, **{name: value for name, value in given.items() if value is not None})
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
        """Render what is not on disk yet; called by one process of each machine."""
        for split in self._keys:
            ensure(self._keys[split], self._root, self._progress, self._workers)

    def source(self, split: Split) -> SyntheticSource:
        """Pairs of a split, rendered first where they have to be."""
        name = "test" if split == "predict" else split
        if name not in self._rendered:
            self._rendered[name] = SyntheticSource(self._keys[name], self._root, self._progress, self._workers)
        return self._rendered[name]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """What a caption gets right, judged by the scene: see the functions of `facts`."""
        source = self.source(split)
        truth = source.truth(int(id.rpartition("-")[2]))
        if source.key.mode == "omnidiff":
            shares = report_accuracy(caption, truth)
            return {
                "types": shares["type_recall"] == 1.0 == shares["type_precision"],
                "facts": shares["fact_recall"] == 1.0,
            }
        return {name.removesuffix("_correct"): right for name, right in change_accuracy(caption, truth).items()}
