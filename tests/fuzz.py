"""Fuzz everything that reads files for a given time: parsers, tokenizers, tables, YAML, archives.

    python tests/fuzz.py --minutes 10

This runs the tests that draw their inputs with new examples, while plain `pytest` always uses the same ones. Where
atheris is installed (extra `fuzz`), each test gets an equal share of the time, inputs are mutated by their coverage of
the library, Pillow and PyYAML, and useful inputs are saved in `.hypothesis/guided` for the next run; elsewhere
hypothesis draws without guidance. Failing inputs are printed; add them to the test with `@example`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

TESTS = Path(__file__).resolve().parents[1] / "tests"
CORPUS = TESTS.parent / ".hypothesis" / "guided"
INSTRUMENTED = ["lightning_idc", "PIL", "yaml"]


def fuzzing_tests() -> list[str]:
    """Test files whose tests draw their inputs."""
    return [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "@given" in path.read_text(encoding="utf-8")]


def from_bytes(item: pytest.Function) -> Callable[[bytes], Any]:
    """Turn a test, with its fixtures and parameters, into a function of the bytes that determine its inputs."""
    handle = item.obj.hypothesis
    drawn = handle._given_kwargs
    fixed = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name not in drawn}

    def run(**values: Any) -> None:
        try:
            handle.inner_test(**fixed, **values)
        except Exception:
            print(f"\nfailed with {values!r}")
            raise

    quiet = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    return quiet(given(**drawn)(run)).hypothesis.fuzz_one_input  # type: ignore[no-any-return]


class Guided:
    """Fuzzes each test with atheris in a separate process, for an equal share of the time.

    Args:
        minutes: total time for all tests.
        seed: seed of atheris.
    """

    def __init__(self, minutes: float, seed: int) -> None:
        self.until, self.seed, self.left, self.runs = time.monotonic() + 60 * minutes, seed, 0, 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.left = len(items)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool:
        seconds = max(1, round((self.until - time.monotonic()) / max(self.left, 1)))
        self.left -= 1
        corpus = CORPUS / re.sub(r"\W+", "_", pyfuncitem.nodeid)
        corpus.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile("w+") as output:
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                self._fuzz(pyfuncitem, seconds, corpus, output.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            said = output.read()
        done = re.findall(r"Done (\d+) runs", said)
        self.runs += int(done[-1]) if done else 0
        if status or not done:
            pytest.fail(f"status {status}; the input is kept in {corpus}\n{said[-6000:]}", pytrace=False)
        return True

    def _fuzz(self, item: pytest.Function, seconds: int, corpus: Path, output: int) -> None:
        """Fuzz one test in the forked process; never returns."""
        import atheris

        try:
            for stream in (1, 2):
                os.dup2(output, stream)
            sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)
            options = [f"-max_total_time={seconds}", f"-seed={self.seed}", f"-artifact_prefix={corpus}/", "-timeout=60"]
            atheris.Setup(["fuzz", *options, "-max_len=4096", "-rss_limit_mb=0", str(corpus)], from_bytes(item))
            atheris.Fuzz()
        except BaseException:
            traceback.print_exc()
        os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("--unguided", action="store_true", help="hypothesis alone, although atheris is there")
    parser.add_argument("more", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    until, seed, rounds = time.monotonic() + 60 * options.minutes, options.seed, 0
    files = fuzzing_tests()
    same = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "-m", "hypothesis and not dist", *options.more]
    if find_spec("atheris") is not None and not options.unguided:
        import atheris

        guided = Guided(options.minutes, options.seed % 2**31)
        with contextlib.redirect_stderr(sys.stdout), atheris.instrument_imports(include=INSTRUMENTED):
            failed = pytest.main([*same, "-p", "no:timeout", *files], plugins=[guided])
        if failed:
            sys.exit(f"failed; repeat it with --seed {options.seed}")
        print(f"{guided.runs} inputs for the tests of {len(files)} files, guided by coverage: nothing found")
        return
    while time.monotonic() < until:
        arguments = [*same, "--hypothesis-profile=fresh", f"--hypothesis-seed={seed}"]
        if pytest.main([*arguments, *files]):
            sys.exit(f"failed in round {rounds + 1}; repeat it with --seed {seed}")
        rounds, seed = rounds + 1, seed + 1
    print(f"{rounds} rounds over {len(files)} files of tests, nothing found")


if __name__ == "__main__":
    main()
