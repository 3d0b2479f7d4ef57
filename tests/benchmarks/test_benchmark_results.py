"""Every benchmark keeps its result with what it takes to repeat it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OF_A_PAGE = {"faults.py", "gpu.py"}
"""Those whose result is a page of docs with the command in it, or which run others."""
WRITERS = [
    path
    for path in sorted(BENCHMARKS.glob("*.py"))
    if not path.name.startswith("_") and path.name not in OF_A_PAGE and '"--out"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", WRITERS, ids=lambda path: path.stem)
def test_a_result_is_written_by_the_harness_alone(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported & {"_harness", "_study"}, "results are kept by benchmarks/_harness.py"
    docstring = ast.get_docstring(tree) or ""
    assert docstring.splitlines()[0].strip(), "its first line is the question"


def test_a_result_holds_what_it_takes_to_repeat_it(tmp_path: Path) -> None:
    script = tmp_path / "speed.py"
    script.write_text(
        '"""How fast is it?\n\nMore words.\n"""\nfrom pathlib import Path\nimport sys\nfrom _harness import report\n'
        'report({"rate": 2.5}, Path(sys.argv[1]), "lightning", seeds=[3, 4])\n'
    )
    out = tmp_path / "results" / "speed.json"
    subprocess.run(
        [sys.executable, str(script), str(out), "--runs", "2"],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["question"] == "How fast is it?" and found["rate"] == 2.5 and found["seeds"] == [3, 4]
    assert found["command"] == "python benchmarks/speed.py speed.json --runs 2"
    assert str(tmp_path) not in out.read_text(encoding="utf-8"), "no folder of this machine"
    assert len(found["commit"].split()[0]) == 40
    assert found["environment"]["cpu"] and found["environment"]["cores"] >= 1
    assert set(found["environment"]["versions"]) == {"torch", "numpy", "lightning"}
