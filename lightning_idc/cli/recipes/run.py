"""Run: runs the stages of a recipe in a folder, which can be resumed."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from lightning_idc.cli.recipes.classes import as_lightning
from lightning_idc.cli.recipes.compose import Recipe, Stage, resolve
from lightning_idc.cli.recipes.launch import Launch
from lightning_idc.cli.recipes.plan import INTERRUPTED, REFUSED, Plan
from lightning_idc.cli.recipes.ranks import Ranks
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import atomic_write, digest

RUN, DONE = "run.json", "stage.json"


@dataclass(frozen=True)
class Run:
    """One run of a recipe.

    Args:
        recipe: recipe with all keys of the command line.
        folder: absolute path of the run folder, with a subfolder per stage and ``run.json``.
        keys: keys of the command line, including those of a resumed run.
        launch: launcher of stages.
        ranks: rank of this process.
    """

    recipe: Recipe
    folder: Path
    keys: dict[str, Any]
    launch: Launch
    ranks: Ranks

    def go(self) -> int:
        """Run all stages that are not finished.

        Returns:
            The exit status.

        Raises:
            ConfigError: the folder is in use by another run or has other files, or is not writable.
            DataError: a file of the folder is damaged.
        """
        if self.ranks.rank:
            return self._run_stages()
        if not (self.folder / RUN).exists():
            self._check_is_free()
        new = [path for path in (self.folder, *self.folder.parents) if not path.exists()]
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder):
            # the digest shows whether runs are seeds of the same recipe
            recipe = digest(*(stage.key for stage in self.recipe.stages))
            about = {"recipe": self.recipe.path.name, "digest": recipe, "overrides": self.keys}
            atomic_write(self.folder / RUN, json.dumps(about, indent=2, default=str))
            status = self._run_stages()
        if status == REFUSED:
            if self.folder in new:
                shutil.rmtree(self.folder)
            with suppress(OSError):  # a parent folder may contain another run by now
                for parent in new:
                    if parent.exists():
                        parent.rmdir()
            return 1
        return status

    def _check_is_free(self) -> None:
        """Raise a ConfigError if a new run would write into folders that other programs made."""
        for stage in self.recipe.stages:
            if os.path.lexists(self.folder / stage.name):
                raise ConfigError(
                    f"{self._relative_folder()} has {stage.name!r}, which is not of a run; expected a folder without "
                    f"it for the stage {stage.name}: choose another --out"
                )

    def _run_stages(self) -> int:
        self._say(f"{self.recipe.about.get('title', self.recipe.path.stem)}\nresults: {self._relative_folder()}")
        began = time.monotonic()
        best: dict[str, str] = {}
        later: Sequence[Stage] = self.recipe.stages[1:]  # the process of the first stage checks all of them
        for number, stage in enumerate(self.recipe.stages):
            record = self._record(stage)
            if record is not None and record["key"] == stage.key:
                self._say(f"\n== {stage.name}: already done")
            else:
                self._say(f"\n== {stage.name} ({stage.run}, stage {number + 1} of {len(self.recipe.stages)})")
                started = time.monotonic()
                plan = self._plan(number, best, changed=record is not None, later=later)
                followed = not all(map(self._is_finished, self.recipe.stages[number + 1 :]))
                status = self.launch(plan, followed)
                if status:
                    self._print_resume_hint(stage, status)
                    return status
                record, later = self._record(stage), ()
                if record is None:  # this task of an array has finished its shards
                    self._say(f"other tasks are running; after they finish, resume with\n  {self._resume_command()}")
                    return 0
                self._say(f"== {stage.name} took {_duration(started)}")
            if stage.run == "fit":
                best[stage.name] = self._best(stage, record)
        self._say(f"\ndone in {_duration(began)}; results: {self._relative_folder()}")
        return 0

    def _plan(self, number: int, best: dict[str, str], changed: bool, later: Sequence[Stage]) -> Plan:
        """Write the configuration of a stage, and return the plan of its process.

        Args:
            number: index of the stage.
            best: best checkpoint of each trained stage.
            changed: whether the recipe changed after the stage was finished.
            later: later stages to check.
        """
        stage, rank = self.recipe.stages[number], self.ranks.rank
        home = self.folder / stage.name
        if changed and rank == 0:
            old = _move_to_backup(home)
            self._say(f"the recipe was changed, so it runs again; its earlier results are in {os.path.relpath(old)}")
        config = as_lightning(resolve(stage.options, self.folder, best, f"stage {stage.name}"))
        config["trainer"] = {"default_root_dir": str(home), **(config.get("trainer") or {})}
        if stage.run != "fit":
            weights = config.get("ckpt_path")
            self._say(f"weights: {os.path.relpath(weights) if weights else 'initial'}")
        elif not changed and (newest := self._newest_checkpoint(home)):
            config["ckpt_path"] = str(newest)
        # only rank 0 writes into the folder of a stage, since it may rename the folder
        file = home / "stage.yaml" if rank == 0 else self.folder / ".ranks" / f"{stage.name}.{rank}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        return Plan(
            stage.run,
            str(file),
            str(home / DONE),
            key=stage.key,
            environment=self.ranks.environment(number),
            later=[(other.name, other.run, other.config) for other in later],
        )

    def _newest_checkpoint(self, home: Path) -> Path | None:
        if not any(home.rglob("*.ckpt")):
            return None
        from lightning_idc.checkpoints.checkpoint_io import newest_checkpoint

        newest = newest_checkpoint(home, self._say)
        if newest is not None:
            self._say(f"resuming from {os.path.relpath(newest)}")
        return newest

    def _record(self, stage: Stage) -> dict[str, Any] | None:
        """Record of a finished stage; None if it is not finished."""
        path = self.folder / stage.name / DONE
        return read_record(path, ("key", "best", "metrics")) if path.is_file() else None

    def _is_finished(self, stage: Stage) -> bool:
        """Whether a stage was finished with the current recipe and inputs."""
        record = self._record(stage)
        return record is not None and record["key"] == stage.key

    def _best(self, stage: Stage, record: dict[str, Any]) -> str:
        if not record["best"]:
            return ""
        best = self.folder / record["best"]  # relative, so that the run folder can be moved
        if not best.exists():
            raise DataError(
                f"stage {stage.name} is finished but its checkpoint {str(best)!r} is missing; restore it, or remove "
                f"{self._relative_folder()}/{stage.name}/{DONE} to run the stage again"
            )
        return str(best)

    def _say(self, text: str) -> None:
        if self.ranks.rank == 0:
            print(text, flush=True)

    def _relative_folder(self) -> str:
        return os.path.relpath(self.folder)

    def _resume_command(self) -> str:
        return f"lightning-idc run {shlex.quote(str(self.recipe.path))} --resume {shlex.quote(self._relative_folder())}"

    def _print_resume_hint(self, stage: Stage, status: int) -> None:
        if status != REFUSED and self.ranks.rank == 0:
            how = "stopped in" if status == INTERRUPTED else "failed in"
            print(f"\n{how} stage {stage.name}; continue with\n  {self._resume_command()}", file=sys.stderr, flush=True)


def read_record(path: Path, names: Sequence[str]) -> dict[str, Any]:
    """Content of ``run.json`` or ``stage.json``.

    Args:
        path: path of the record.
        names: required keys.

    Raises:
        DataError: the file is damaged.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    missing = [name for name in names if name not in record] if isinstance(record, dict) else names
    if missing:
        raise DataError(f"{path} is damaged: it has no {missing[0]!r}")
    return dict(record)


def new_folder(recipe: Path) -> Path:
    """Default folder of a new run; it is not created."""
    first = Path("runs") / recipe.stem / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    numbered = (first.with_name(f"{first.name}_{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], numbered) if not folder.exists())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder of a run; the system releases the lock when this process ends."""
    lock = FileLock(folder / ".lightning_idc.lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        if not os.access(folder, os.W_OK):  # a lock file that cannot be created also times out
            raise ConfigError(f"{str(folder)!r} is not writable") from None
        raise ConfigError(
            f"{str(folder)!r} is in use by another run; wait for it, stop it, or choose another folder"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{str(folder)!r} is not writable: {error.strerror}; a run writes its results to it"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _move_to_backup(home: Path) -> Path:
    """Rename the folder of a stage, so that its files are preserved."""
    names = (home.with_name(f"{home.name}.{number}") for number in itertools.count(1))
    return home.rename(next(path for path in names if not path.exists()))


def _duration(since: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - since), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
