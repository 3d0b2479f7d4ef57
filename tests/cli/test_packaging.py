"""What is installed: the wheel, the lock, and the reasons for the dependencies."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def setup() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def requirements(text: str) -> list[Requirement]:
    return [Requirement(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def hashed_pins() -> dict[str, list[str]]:
    """Pins of the lock, each with the hashes of its files."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return {pin.strip(): hashes.split() for pin, _, hashes in (line.partition(" --hash=") for line in lines)}


def locked(python: str) -> dict[str, str]:
    """Version of each package that the lock installs on Linux with this Python."""
    environment = {
        "python_full_version": f"{python}.1",
        "python_version": python,
        "sys_platform": "linux",
        "platform_machine": "x86_64",
    }
    pins = [Requirement(pin) for pin in hashed_pins()]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    result = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}
    assert len(result) == len(here), "a package is pinned twice for one Python"
    return result


def test_every_dependency_has_a_lower_bound_and_a_reason() -> None:
    lines = (
        (ROOT / "setup.cfg").read_text(encoding="utf-8").split("install_requires =\n")[1].split("\n\n")[0].splitlines()
    )
    needs = [
        (line.strip(), lines[number - 1].strip())
        for number, line in enumerate(lines)
        if not line.strip().startswith("#")
    ]
    assert len(needs) >= 15
    for need, before in needs:
        assert ">=" in need, need
        assert before.startswith("# "), f"{need} has no reason"


def test_the_lock_file_names_no_registry() -> None:
    text = re.sub(r"--hash=sha256:[0-9a-f]{64}", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"))
    assert not re.search(r"https?:|://|@|--|#|/", text), "a lock with URLs, options or paths works on one machine only"


def test_every_file_of_the_lock_has_a_hash() -> None:
    """Without a hash, pip refuses the lock and uv accepts whatever the index returns; `make lock` writes them all."""
    pins = hashed_pins()
    assert len(pins) > 150
    for pin, hashes in pins.items():
        assert hashes and all(re.fullmatch(r"(--hash=)?sha256:[0-9a-f]{64}", value) for value in hashes), pin


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_satisfies_what_setup_cfg_asks_for(python: str) -> None:
    pins = locked(python)
    parser = setup()
    asked = parser["options"]["install_requires"] + "\n" + parser["options.extras_require"]["dev"]
    for need in requirements(asked):
        if need.marker is not None and not need.marker.evaluate({"python_version": python}):
            continue  # required only for other versions of Python
        version = pins.get(canonicalize_name(need.name))
        assert version is not None and need.specifier.contains(version), (str(need), version)


@pytest.mark.slow  # builds the wheel and runs it in a new process
def test_the_wheel_brings_recipes_and_runs_from_anywhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("lightning_idc", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = f"from setuptools import build_meta; print(build_meta.build_wheel({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(tmp_path / done.stdout.strip().splitlines()[-1]) as wheel:
        names = set(wheel.namelist())
        wheel.extractall(tmp_path / "installed")
        (entry,) = (name for name in names if name.endswith("entry_points.txt"))
        scripts = wheel.read(entry).decode()
    shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.yaml")}
    assert shipped and {f"lightning_idc/{name}" for name in shipped} <= names
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "lightning_idc").rglob("*.py")}
    assert modules <= names
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "lightning_idc").rglob("README.md")} <= names
    expected = {"lightning = lightning_idc.cli:lightning_command", "lightning-idc = lightning_idc.cli:command"}
    assert expected <= set(scripts.splitlines())
    listed = subprocess.run(
        [sys.executable, "-m", "lightning_idc", "list", "recipes"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "quickstart" in listed.stdout
