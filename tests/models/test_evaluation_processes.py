"""Evaluation in several processes equals that in one, with few pairs and without captions, and never deadlocks."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluation_processes import REFERENCES, SIZES
from helpers.processes import launch
from helpers.sources import PACKAGE, trees

HERE = Path(__file__).parent


def outcome(processes: int, out: Path) -> dict[str, dict[str, Any]]:
    launch(HERE / "evaluation_processes.py", str(processes), out, processes=processes)
    return torch.load(out / f"{processes}.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return outcome(1, tmp_path_factory.mktemp("alone"))


@pytest.mark.dist
@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_scores_and_losses_equal_those_of_one(processes: int, alone: Any, tmp_path: Path) -> None:
    result = outcome(processes, tmp_path)
    assert result.keys() == alone.keys() and len(result) == len(SIZES) * len(REFERENCES)
    for case, values in alone.items():
        assert result[case].keys() == values.keys(), case
        assert result[case]["said"] == values["said"], case
        for name, value in values.items():
            if name != "said":
                torch.testing.assert_close(result[case][name], value, rtol=1e-5, atol=1e-6, msg=f"{case}: {name}")


@pytest.mark.dist
def test_what_is_measured_depends_on_the_references(alone: Any) -> None:
    """The cases above have different results; otherwise they could agree for the wrong reason."""
    assert "test/loss" in alone["5 all 1"] and "test/loss" not in alone["5 none 1"]
    assert alone["5 all 1"]["test/loss"] != alone["5 first 1"]["test/loss"]
    assert alone["5 all 1"]["test/loss"] == pytest.approx(alone["5 all 2"]["test/loss"], rel=1e-5)
    assert len(alone["7 odd 1"]["said"]) == 7


# ---- all processes must take part in collective calls ----------------------------------------------------

COLLECTIVES = {
    *(
        "all_gather",
        "all_gather_dict",
        "all_gather_object",
        "all_reduce",
        "barrier",
        "broadcast",
        "broadcast_object_list",
    ),
    *("full_state_dict", "full_tensor", "gather", "gather_object", "reduce", "reduce_boolean_decision", "scatter"),
}
OF_ONE = ("is_rank_zero", "is_global_zero", "global_rank", "local_rank", "get_rank", "rank")
"""Names whose values differ between processes."""


def named(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def synced(call: ast.Call) -> bool:
    if named(call.func) in COLLECTIVES:
        return True
    return any(option.arg == "sync_dist" for option in call.keywords) and named(call.func) in ("log", "log_dict")


def depends_on_rank(test: ast.expr) -> bool:
    return any(named(node) in OF_ONE for node in ast.walk(test))


def conditional_collectives(tree: ast.Module) -> list[str]:
    """Find collective calls that depend on the rank or, where a batch is evaluated, on the batch."""
    messages: list[str] = []

    def visit(node: ast.AST, function: str, inside: bool) -> None:
        if isinstance(node, ast.FunctionDef):
            function, inside = node.name, False
        if isinstance(node, ast.Call) and inside and synced(node):
            messages.append(f"{function}: {ast.unparse(node.func)}, line {node.lineno}")
        of_batch = function.endswith(("_step", "update", "_evaluate"))
        branches = isinstance(node, ast.If | ast.IfExp | ast.While) and (of_batch or depends_on_rank(node.test))
        for name, value in ast.iter_fields(node):
            under = inside or (branches and name in ("body", "orelse"))
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, function, under)
                    under = under or leaves(child, of_batch)

    def leaves(node: ast.AST, of_batch: bool) -> bool:
        """Return whether some processes skip the statements that follow."""
        conditional = isinstance(node, ast.If) and (of_batch or depends_on_rank(node.test))
        return conditional and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break)  # type: ignore[attr-defined]

    visit(tree, "", False)
    return messages


@pytest.mark.slow
def test_no_collective_call_is_conditional() -> None:
    result = {
        path.relative_to(PACKAGE).as_posix(): calls
        for path, tree in trees().items()
        if (calls := conditional_collectives(tree))
    }
    assert not result
