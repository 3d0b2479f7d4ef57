"""The library accesses user files and network addresses through only one module each."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "lightning_idc"
REMOVES_OR_WRITES = re.compile(
    r"\brmtree\(|\.write_text\(|\.write_bytes\(|upload_folder\(|upload_file\(|create_commit\(|\bos\.(replace|rename|remove)\("
    r"|shutil\.(move|copy\w*)\(|\.unlink\(|\.rename\(|\.open\(\"[wax]b?\"|\bopen\([^)]*\"[wax]b?\"|\batomic_write\("
)
# the reason why a file may write by itself
WRITERS = {
    "utils/outputs.py": "the one door",
    "utils/manifest.py": "the list of outputs",
    "utils/uploads.py": "the one door to the hub",
    "utils/files.py": "atomic_write itself, and the half-written files of processes that are gone",
    # folders that the library names, creates, and recognises by its own manifest or seal
    "data/store/shards.py": "stores",
    "data/store/building.py": "stores",
    "data/store/growing.py": "stores",
    "data/store/manifest.py": "stores",
    "synthesis/run.py": "stores of records",
    "cli/recipes/ranks.py": "the lock of a folder of runs",
    "cli/recipes/run.py": "folders of runs",
    "cli/stage.py": "folders of runs",
    "checkpoints/checkpoint_io.py": "checkpoints",
    "metrics/meteor/paraphrase_index.py": "an index in the cache folder",
    "methods/namc/descriptions.py": "statistics in the folder of a store",
    "synthesis/progress.py": "progress in the folder of a store",
    "synthesis/provenance.py": "provenance in the folder of a store",
    "synthesis/models/endpoint.py": "answers by the digest of their request",
    "metrics/spice.py": "a temporary folder",
    "synthesis/models/sentence.py": "weights in the cache folder",
    "synthesis/export.py": "an empty folder, on any file system of fsspec",
    # these get the path of a draft
    "report/pages.py": "pages into a draft",
    "serve/reg.py": "reg.json and images into a draft",
    "synthesis/web/browser.py": "settings of fonts in a temporary folder",
    "data/tables/prepare.py": "downloads into a draft",
    # parts of an unfinished run, which begin with its key
    "serve/batch.py": "parts of an unfinished run",
    "callbacks/write_predictions.py": "parts of an unfinished run",
    "cli/pairs.py": "captions into a draft",
    "data/export/files.py": "pairs into a draft",
}
HTTP = {"urllib.request", "urllib.error", "http.client", "requests", "httpx", "httpx2", "aiohttp", "urllib3"}


def sources() -> dict[str, str]:
    return {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.mark.slow
def test_files_are_written_and_removed_through_one_module() -> None:
    result = {name for name, text in sources().items() if REMOVES_OR_WRITES.search(text)}
    assert result - WRITERS.keys() == set(), "write through lightning_idc.utils.outputs"


@pytest.mark.parametrize("call", ["rmtree(", "upload_folder(", "upload_file(", "create_commit("])
def test_few_modules_remove_or_upload_folders(call: str) -> None:
    allowed = (
        {"utils/outputs.py", "data/store/building.py", "synthesis/run.py", "cli/recipes/run.py"}
        if call == "rmtree("
        else {"utils/uploads.py"}
    )
    assert {name for name, text in sources().items() if call in text} <= allowed


@pytest.mark.slow
def test_addresses_are_opened_through_one_module() -> None:
    result = set()
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                named = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
            if HTTP & set(named):
                result.add(name)
    assert result == {"utils/http.py"}
