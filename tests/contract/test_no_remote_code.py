"""The code of transformers models that ship their own is never run, and no terminal prompt offers to run it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.sources import PACKAGE, trees

CODE = """
from pathlib import Path
Path({trace!r}).touch()
from transformers import PretrainedConfig
class Config(PretrainedConfig):
    model_type = "unheard_of"
"""


def unsaid(tree: ast.Module) -> list[int]:
    """Lines that load something with an Auto class of transformers without setting ``trust_remote_code`` to false."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of = node.func.value
        if node.func.attr != "from_pretrained" or not isinstance(of, ast.Name) or not of.id.startswith("Auto"):
            continue
        said = any(option.arg == "trust_remote_code" and not ast.literal_eval(option.value) for option in node.keywords)
        passed = any(option.arg is None for option in node.keywords)  # **options, which the readers below try
        if not said and not passed:
            found.append(node.lineno)
    return found


def test_every_load_says_that_no_code_is_run() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): unsaid(tree) for path, tree in trees().items()}
    assert not {name: lines for name, lines in files.items() if lines}


def readers(folder: Path) -> dict[str, Callable[[], Any]]:
    from lightning_idc.metrics.judge import CausalJudge
    from lightning_idc.models.vlm.loading import load_language_model
    from lightning_idc.models.vlm.published import Source, load_model, load_skeleton
    from lightning_idc.synthesis.models.chat import ChatModel

    return {
        "model": lambda: load_model(Source(str(folder))),
        "skeleton": lambda: load_skeleton(folder),
        "language model": lambda: load_language_model(str(folder), ()),
        "judge": lambda: CausalJudge(str(folder)),
        "slot": lambda: ChatModel(str(folder)).load(),
    }
