"""Running the stages of a recipe, one process each, in a folder that a stopped run can be resumed from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.cli.recipes import Recipe, Stage, resolve
from lightning_idc.errors import PairError

DONE = "stage.json"


def run_recipe(recipe: Recipe, run_dir: Path | None, resume: Path | None) -> int:
    """Run all stages, or those that an earlier run did not finish; return the exit status."""
    if resume is not None and not resume.is_dir():
        raise PairError(f"there is no run {str(resume)!r} to resume; runs lie in {Path('runs') / recipe.path.stem}")
    folder = resume or run_dir or Path("runs") / recipe.path.stem / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    title = recipe.about.get("title", recipe.path.stem)
    print(f"{title}\nresults: {folder}", flush=True)
    best: dict[str, str] = {}
    last_fit = ""
    began = time.monotonic()
    for number, stage in enumerate(recipe.stages):
        home = folder / stage.name
        record = home / DONE
        if resume is not None and record.is_file():
            result = json.loads(record.read_text(encoding="utf-8"))
            print(f"\n== {stage.name}: already done", flush=True)
        else:
            print(f"\n== {stage.name} ({stage.run}, stage {number + 1} of {len(recipe.stages)})", flush=True)
            started = time.monotonic()
            config = _config(stage, folder, home, best, last_fit, resuming=resume is not None)
            result = _run_stage(stage, config, home, folder, recipe)
            if isinstance(result, int):
                return result
            print(f"== {stage.name} took {time.monotonic() - started:.0f} s", flush=True)
        if stage.run == "fit":
            best[stage.name] = last_fit = result["best"]
    print(f"\ndone in {time.monotonic() - began:.0f} s; results: {folder}", flush=True)
    return 0


def _config(
    stage: Stage, folder: Path, home: Path, best: dict[str, str], last_fit: str, resuming: bool
) -> dict[str, Any]:
    config: dict[str, Any] = resolve(stage.config, folder, best)
    trainer = config.setdefault("trainer", {})
    trainer["default_root_dir"] = str(home)
    if stage.run != "fit" and not config.get("ckpt_path") and last_fit:
        config["ckpt_path"] = last_fit
    started = home.is_dir() and any(home.iterdir())
    if resuming and stage.run == "fit" and started:
        checkpoints = sorted(home.rglob("*.ckpt"), key=lambda path: path.stat().st_mtime)
        if not checkpoints:
            raise PairError(
                f"stage {stage.name!r} was stopped before its first checkpoint, so there is nothing to resume; "
                f"remove {home} to start the stage afresh"
            )
        config["ckpt_path"] = str(checkpoints[-1])
        print(f"continuing from {checkpoints[-1]}", flush=True)
    return config


def _run_stage(stage: Stage, config: dict[str, Any], home: Path, folder: Path, recipe: Recipe) -> dict[str, Any] | int:
    from lightning_idc.cli.training import RESULT

    home.mkdir(parents=True, exist_ok=True)
    file = home / "config.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    result = home / "result.json"
    environment = {**os.environ, RESULT: str(result.resolve())}
    command = [sys.executable, "-m", "lightning_idc", stage.run, "--config", str(file)]
    # a group of its own, so that Ctrl-C reaches the stage once, through us, with its workers
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        status = process.wait()
    except KeyboardInterrupt:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        print(f"\nstopped in stage {stage.name}; continue with\n  {_resume(recipe, folder)}", file=sys.stderr, flush=True)
        return 130
    if status or not result.is_file():
        print(f"\nstage {stage.name} failed; after mending it continue with\n  {_resume(recipe, folder)}", file=sys.stderr, flush=True)
        return status or 1
    os.replace(result, home / DONE)
    return json.loads((home / DONE).read_text(encoding="utf-8"))


def _resume(recipe: Recipe, folder: Path) -> str:
    return f"lightning-idc run {recipe.path} --resume {folder}"
