"""Settings and fixtures of all tests: one thread, fixed examples, and the folder of real data."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# processes started by tests print where a signal ended them; pytest's own handler covers only its own process
os.environ.setdefault("PYTHONFAULTHANDLER", "1")
# as in the Makefile: without bytecode files, each process started by a test compiles torch's sources for ten seconds
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis
import pytest
import torch

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"

# fixed examples, so that only a code change can change the result; --hypothesis-profile=fresh draws others
# slow drawing on a busy machine is not a fault of the code
BUSY = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("same", derandomize=True, max_examples=40, **BUSY)
hypothesis.settings.register_profile("fresh", derandomize=False, **BUSY)
hypothesis.settings.load_profile("same")

# two busy threads on a small machine can be many times slower than one
torch.set_num_threads(1)
sys.dont_write_bytecode = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with tests in several processes first, then those with slow tests, then all others.

    A slow test that starts last keeps a single process busy at the end, and so does one whose training run is shared,
    since the others wait for it. Tests with the same value of their file's ``GROUPED_BY`` run one after another;
    otherwise each process of xdist would prepare what a group shares, such as a training run.
    """
    turn: dict[Path, int] = {}
    for item in items:
        marked = [item.get_closest_marker(name) is not None for name in ("dist", "slow")]
        turn[item.path] = min(turn.get(item.path, 2), [*marked, True].index(True))
    first: dict[tuple[Path, Any], int] = {}
    positions = {
        item: first.setdefault((item.path, value), index) if value is not None else index
        for index, (item, value) in enumerate((item, _group(item)) for item in items)
    }
    items.sort(key=lambda item: (turn[item.path], positions[item]))


def _group(item: pytest.Item) -> Any:
    name = getattr(getattr(item, "module", None), "GROUPED_BY", None)
    return item.callspec.params.get(name) if hasattr(item, "callspec") else None


def pytest_collection_finish() -> None:
    """Exclude imported objects from garbage collection, which would scan them hundreds of times."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()  # otherwise extension modules report leaks


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real data and parity fixtures; tests that need it are skipped where it is missing."""
    if not SHARED.is_dir():
        pytest.skip("the shared folder of real data and parity fixtures is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session", autouse=True)
def packages_are_listed_once() -> Iterator[None]:
    """List installed packages once; each trainer searches them for callbacks, and listing takes 30 ms."""
    from lightning.fabric.utilities import registry

    with patch.object(registry, "entry_points", cache(registry.entry_points)):
        yield


@pytest.fixture(scope="session", autouse=True)
def seeds_are_not_queued_for_missing_devices() -> Iterator[None]:
    """Drop seeding calls queued for devices that this machine does not have.

    ``torch.manual_seed`` queues one for each type of device, with a stack trace: 1.5 ms within a training run.
    """
    with ExitStack() as stack:
        for device, module in (
            (torch.cuda, torch.cuda.random),
            (torch.xpu, torch.xpu.random),
            (torch.mtia, torch.mtia),
        ):
            if not device.is_available():
                stack.enter_context(patch.object(module, "_lazy_call", lambda call, **options: None))
        yield


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Fail a test that leaks environment variables into the next one."""
    before = dict(os.environ)
    yield
    leaked = {k for k in os.environ.keys() ^ before.keys() if not k.startswith(("PYTEST_", "KMP_", "CUDA_MODULE"))}
    os.environ.clear()
    os.environ.update(before)
    seeding = {"PL_GLOBAL_SEED", "PL_SEED_WORKERS", "CUBLAS_WORKSPACE_CONFIG"}  # set by Lightning's seed_everything
    # set by torch, tokenizers and OpenCV when a test is the first to import a part of them
    importing = {
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        "TOKENIZERS_PARALLELISM",
        "LD_LIBRARY_PATH",
    }
    # set by Lightning when it finds a GPU
    allowed = seeding | importing | {"CUDA_DEVICE_ORDER"}
    assert not leaked - allowed, f"the test changed the environment: {sorted(leaked - allowed)}"
