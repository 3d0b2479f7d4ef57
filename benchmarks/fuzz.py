"""Drawn inputs for everything that reads files, for as long as wanted: parsers, tokenizers, tables, YAML, archives.

    python benchmarks/fuzz.py --minutes 10

The tests that draw their inputs are run again and again with other examples, which `pytest` alone keeps the same. What
fails is printed by hypothesis with its smallest example; keep it with `@example` in the test.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1] / "tests"


def fuzzing_tests() -> list[str]:
    """Files of tests that draw their inputs."""
    return [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "@given" in path.read_text(encoding="utf-8")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first round")
    parser.add_argument("more", nargs="*", help="arguments of pytest, after --")
    options = parser.parse_args()
    until, seed, rounds = time.monotonic() + 60 * options.minutes, options.seed, 0
    files = fuzzing_tests()
    while time.monotonic() < until:
        arguments = ["-q", "-x", "--no-header", "-p", "no:cacheprovider", "--hypothesis-profile=fresh", *options.more]
        if pytest.main([*arguments, f"--hypothesis-seed={seed}", "-m", "hypothesis and not dist", *files]):
            sys.exit(f"failed in round {rounds + 1}; repeat it with --seed {seed}")
        rounds, seed = rounds + 1, seed + 1
    print(f"{rounds} rounds over {len(files)} files of tests, nothing found")


if __name__ == "__main__":
    main()
