"""Running the stages of a recipe, one process each, in a folder that a stopped run can be resumed from."""

from __future__ import annotations

import os
import shlex
import sys
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.cli.locking import only_run_in
from lightning_idc.cli.peers import Peers, variables
from lightning_idc.cli.processes import may_fork, run_process
from lightning_idc.cli.recipe import Recipe, Stage, resolve
from lightning_idc.cli.records import digest_of, read_record, write_json
from lightning_idc.cli.streams import OUTCOME, together
from lightning_idc.utils.errors import PairError
from lightning_idc.utils.files import atomic_write

RUN, DONE = "run.json", "stage.json"


@dataclass
class Run:
    """One run of a recipe and the folder it lies in.

    Args:
        folder: one sub-folder per stage, and ``run.json``.
        overrides: keys of the command line.
        resuming: whether stages may have been run before.
        imported_only: whether this process has done nothing but import.
        peers: the other processes of the run; None where this one is alone.
    """

    folder: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    resuming: bool = False
    imported_only: bool = False
    peers: Peers | None = None

    @classmethod
    def started(cls, recipe: Path, folder: Path | None) -> Run:
        """Make the folder of a new run.

        Raises:
            PairError: there is a run in it already.
        """
        if folder is None:
            folder = new_folder(recipe)
        elif (folder / RUN).exists():
            raise PairError(_taken(folder))
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder.resolve())

    @classmethod
    def resumed(cls, recipe: Path, folder: Path) -> Run:
        """Open the folder of a stopped run.

        Raises:
            PairError: there is no run in it, or its record is damaged.
        """
        record = folder / RUN
        if not record.is_file():
            raise PairError(
                f"there is no run in {str(folder)!r} to resume; runs of {recipe} lie in {Path('runs') / recipe.stem}"
            )
        known = read_record(record, ("recipe", "overrides"), "a run without it cannot be resumed: start anew")
        if known["recipe"] != recipe.name:
            raise PairError(f"{folder} holds a run of {known['recipe']}, not of {recipe.name}")
        return cls(folder.resolve(), known["overrides"], resuming=True)

    def go(self, recipe: Recipe) -> int:
        """Run all stages that are not finished; return the exit status.

        Raises:
            PairError: another process is at work in the folder, or something in it is damaged.
        """
        status = 1
        try:
            with only_run_in(self.folder):
                if not self.resuming and (self.folder / RUN).exists():
                    raise PairError(_taken(self.folder))  # by one that was started in the same moment
                about = {"recipe": recipe.path.name, "digest": digest_of(recipe.path), "overrides": self.overrides}
                write_json(self.folder / RUN, about)
                status = self._go(recipe)
        finally:
            if self.peers is not None:
                self.peers.end(status)
        return status

    def _go(self, recipe: Recipe) -> int:
        shown = os.path.relpath(self.folder)
        print(f"{recipe.about.get('title', recipe.path.stem)}\nresults: {shown}", flush=True)
        began = time.monotonic()
        fits: list[tuple[Stage, str]] = []
        for number, stage in enumerate(recipe.stages, 1):
            key = recipe.keys[stage.name]
            result = self._finished(stage, key)
            if result is not None:
                print(f"\n== {stage.name}: already done", flush=True)
            else:
                print(f"\n== {stage.name} ({stage.run}, stage {number} of {len(recipe.stages)})", flush=True)
                started = time.monotonic()
                status = self._run_with_followers(recipe, number - 1, fits)
                resume = f"lightning-idc run {shlex.quote(str(recipe.path))} --resume {shlex.quote(shown)}"
                if status:
                    said = "stopped in" if status == 130 else "failed in"
                    print(f"\n{said} stage {stage.name}; continue with\n  {resume}", file=sys.stderr, flush=True)
                    return status
                result = self._finished(stage, key)
                if result is None:  # the share of one task of an array
                    print(f"the other tasks make the rest; when they are done, go on with\n  {resume}", flush=True)
                    return 0
                print(f"== {stage.name} took {_spent(started)}", flush=True)
            if stage.run == "fit":
                fits.append((stage, result.get("best", "")))
        print(f"\ndone in {_spent(began)}; results: {shown}", flush=True)
        return 0

    def _finished(self, stage: Stage, key: str) -> dict[str, Any] | None:
        """What a stage left; None where it has not been finished as the recipe, and those below it, say now."""
        record = self.folder / stage.name / DONE
        if not record.is_file():
            return None
        again = f"remove {os.path.relpath(record)} to run the stage again"
        result = read_record(record, ("best", "metrics"), again)
        if result.get("key", key) != key:  # runs of earlier versions have none
            kept = _set_aside(record.parent)
            print(
                f"\n== {stage.name}: the recipe was changed after this stage was run, so it runs again; "
                f"what it left is in {os.path.relpath(kept)}",
                flush=True,
            )
            return None
        if result["best"]:
            best = self.folder / result["best"]  # relative, so that a run may be moved
            if not best.exists():
                raise PairError(
                    f"stage {stage.name} is finished but its checkpoint {str(best)!r} is gone; put it back, or {again}"
                )
            # runs of earlier versions have no digest
            if "digest" in result and result["digest"] != digest_of(best):
                raise PairError(
                    f"stage {stage.name} is finished but its checkpoint {str(best)!r} is not the one it left; "
                    f"put that back, or {again}"
                )
            result["best"] = str(best)
        return result

    def _run_with_followers(self, recipe: Recipe, at: int, fits: list[tuple[Stage, str]]) -> int:
        """Run a stage, and those behind it that can begin before it has ended."""
        stages = [recipe.stages[at]]
        for stage in together(recipe.stages[at:])[1:] if self.peers is None else ():
            if self._finished(stage, recipe.keys[stage.name]) is not None:
                break
            stages.append(stage)
        files = [self._written(stage, fits) for stage in stages]
        outcome = files[0].with_name(OUTCOME)
        if len(stages) == 1:
            trainer = yaml.safe_load(files[0].read_text(encoding="utf-8"))["trainer"]
            status = self._run_everywhere(stages[0].run, files[0], outcome, trainer)
        else:
            print(f"with it: {', '.join(stage.name for stage in stages[1:])}", flush=True)
            status = run_process("stream", files, outcome, False)
        for stage in stages if not status else ():
            status = status or self._record_end(stage, recipe.keys[stage.name])
        return status

    def _written(self, stage: Stage, fits: list[tuple[Stage, str]]) -> Path:
        """File that a stage is run with."""
        file = self.folder / stage.name / "stage.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(file, yaml.safe_dump(self._config(stage, fits), sort_keys=False, allow_unicode=True))
        return file

    def _record_end(self, stage: Stage, key: str) -> int:
        home = self.folder / stage.name
        if not (home / OUTCOME).is_file():
            return 1
        result = read_record(home / OUTCOME, ("best", "metrics"), "resume the run to make it anew")
        if "unfinished" in result:
            print(f"\nstage {home.name} is not finished: {result['unfinished']}", flush=True)
            (home / OUTCOME).unlink()
            return 0
        best = Path(result["best"]) if result["best"] else None
        if best is not None:
            from lightning_idc.checkpoints.checkpoint_io import check_intact

            check_intact(best, f"remove {os.path.relpath(home)} to train this stage anew")
            result["digest"] = digest_of(best)
            if best.resolve().is_relative_to(self.folder):
                result["best"] = str(best.resolve().relative_to(self.folder))
        write_json(home / DONE, {**result, "key": key})
        (home / OUTCOME).unlink()
        return 0

    def _run_everywhere(self, verb: str, config: Path, outcome: Path, trainer: dict[str, Any]) -> int:
        if self.peers is None:
            return run_process(verb, config, outcome, may_fork(trainer, self.imported_only))
        turn = self.peers.announce(verb=verb, config=str(config), result=str(outcome), digest=digest_of(config))
        status = run_process(verb, config, outcome, False, variables(turn), self.peers.failed)
        return status or int(not self.peers.wait_for_others())

    def _config(self, stage: Stage, fits: list[tuple[Stage, str]]) -> dict[str, Any]:
        home = self.folder / stage.name
        config: dict[str, Any] = resolve(stage.config, self.folder, {fit.name: best for fit, best in fits})
        trainer = config["trainer"] = config.get("trainer") or {}
        trainer.setdefault("default_root_dir", str(home))
        if stage.run != "fit":
            same = [(fit, best) for fit, best in fits if fit.model == stage.model]
            if not config.get("ckpt_path") and same:
                fit, config["ckpt_path"] = same[-1]
                if not config["ckpt_path"]:
                    raise PairError(
                        f"stage {stage.name} needs what stage {fit.name} learned, which left no checkpoint: let its "
                        "ModelCheckpoint save one (save_last: true), or give this stage a ckpt_path"
                    )
            print(
                f"weights: {os.path.relpath(config['ckpt_path'])}" if config.get("ckpt_path") else "weights: as built"
            )
        elif self.resuming and home.is_dir():
            from lightning_idc.checkpoints.checkpoint_io import newest_checkpoint

            newest = newest_checkpoint(home, lambda said: print(said, flush=True))
            if newest is not None:
                config["ckpt_path"] = str(newest)
                print(f"continuing from {os.path.relpath(newest)}", flush=True)
            else:
                print("there is no checkpoint to go on from, so this stage begins anew", flush=True)
        return config


def new_folder(recipe: Path) -> Path:
    """Folder for a run that was given none; it is not made."""
    folder = first = Path("runs") / recipe.stem / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    number = 1
    while folder.exists():
        number += 1
        folder = first.with_name(f"{first.name}_{number}")
    return folder


def _taken(folder: Path) -> str:
    return f"{folder} holds a run already; continue it with --resume {folder}, or name another folder"


def _set_aside(home: Path) -> Path:
    """Rename the folder of a stage, so that nothing in it is lost."""
    number = 1
    while (kept := home.with_name(f"{home.name}.{number}")).exists():
        number += 1
    home.rename(kept)
    return kept


def follow(peers: Peers) -> int:
    """Take part in the stages of a run that another process leads; the exit status."""

    def run_stage(verb: str, config: Path, result: Path, environment: dict[str, str]) -> int:
        return run_process(verb, config, result, False, environment, peers.failed)

    return peers.follow(run_stage)


def _spent(since: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - since), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
