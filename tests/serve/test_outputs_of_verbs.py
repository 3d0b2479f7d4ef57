"""Every verb that writes leaves the existing files of a folder unchanged, byte for byte."""

from __future__ import annotations

import csv
import inspect
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import huggingface_hub
import pytest
from helpers.toy_stages import pair_of

from lightning_idc.callbacks.show_results import ShowResults
from lightning_idc.cli import VERBS, _target, main
from lightning_idc.data.benchmarks.spot_the_diff import SpotTheDiff
from lightning_idc.serve.formats import write_records
from lightning_idc.synthesis.duplicates import Deduplicate
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run as run_stage
from lightning_idc.utils.errors import ConfigError

Draw = Callable[..., Path]
MINE = [
    "predictions.jsonl", "predictions.jsonl.part", "comparison.jsonl", "comparison.jsonl.part", "out.jsonl",
    "out.csv", "out.parquet", "reg.json", "junit.xml", "page.html", "page_pictures/holiday.png",
    "page_pictures/notes.txt", "page_2.html", "README.md", ".env", "notes.txt", "config.json", "model.safetensors",
    "adapters.json", "captioner.json", "encoder.pt2", "step.pt2", "encoder.onnx", "board.md", "board.html",
    "board.tex", "picture.png", "result.json", "metrics.json",
    "answers.jsonl", "manifest.json", "annotations/train.json", "quickstart.yaml", "best.ckpt",
    "report.html", "report_pictures/mine.jpg",
    "store/manifest.json", "store/notes.txt", "folder.jsonl/notes.txt",
]  # fmt: skip


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """Return the names of files that were added, removed or changed."""
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


@pytest.fixture
def home(tmp_path: Path, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with files of the user, and inputs for the verbs in ``in``."""
    draw("home/in/old/a.png", seed=1, size=(300, 300))
    draw("home/in/new/a.png", seed=2, size=(300, 300))
    draw("home/in/pairs/before/a.png", seed=1)
    draw("home/in/pairs/after/a.png", seed=2)
    folder = tmp_path / "home"
    for name in MINE:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(f"mine: {name}".encode())
    said = [{"id": "a", "caption": "the cube moved", "references": ["the cube moved left"]}]
    (folder / "in/said.json").write_text(json.dumps(said))
    questions = [{"pair": "p", "question": f"q{n}?", "answer": "a", "response": "a"} for n in range(2)]
    (folder / "in/answers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in questions))
    (folder / "in/refs.json").write_text(json.dumps({"a": ["the cube moved left"]}))
    (folder / "in/results").mkdir()
    with zipfile.ZipFile(folder / "in/a.zip", "w") as packed:
        packed.writestr("annotations/train.json", "[]")
        packed.writestr("annotations/val.json", "[]")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(SpotTheDiff, "remotes", ())
    assert main(["score", "in/said.json", "--out", "in/results/result.json", "--metrics", "BLEU"]) == 0
    return folder


PAIRS = ["in/old", "in/new", "--model", "MODEL"]
# arguments of calls that would overwrite a file of the user or an input
REFUSED = {
    "predict": ["predict", *PAIRS],
    "predict, a table": ["predict", *PAIRS, "--out", "out.csv"],
    "predict, parquet": ["predict", *PAIRS, "--out", "out.parquet"],
    "predict, what is left of a run": ["predict", *PAIRS, "--out", "./predictions.jsonl", "--overwrite"],
    "predict into an input": ["predict", *PAIRS, "--out", "in/new/fresh.jsonl", "--overwrite"],
    "predict onto a folder": ["predict", *PAIRS, "--out", "folder.jsonl"],
    "compare": ["compare", *PAIRS],
    "compare, reg": ["compare", *PAIRS, "--out", "fresh.jsonl", "--reg", "reg.json"],
    "compare, junit": ["compare", *PAIRS, "--out", "fresh.jsonl", "--junit", "junit.xml"],
    "compare, page": ["compare", *PAIRS, "--out", "fresh.jsonl", "--report", "page.html"],
    "compare, pictures": ["compare", *PAIRS, "--out", "fresh.jsonl", "--report", "page.htm"],
    "compare, pictures of the input": [
        "compare", "in/old", "page_pictures", "--model", "MODEL", "--report", "page.htm",
    ],
    "compare, page in the input": ["compare", *PAIRS, "--report", "in/new/fresh.html", "--overwrite"],
    "compare, onto a file of the model": [
        "compare", *PAIRS, "--out", "fresh.jsonl", "--reg", "MODEL/config.json", "--overwrite",
    ],
    "compare, two of one name": ["compare", *PAIRS, "--out", "fresh.jsonl", "--reg", "fresh.jsonl"],
    "compare, records among the pictures": [
        "compare", *PAIRS, "--report", "fresh.html", "--out", "fresh_pictures/a.jsonl",
    ],
    "describe": ["describe", "in/old/a.png", "in/new/a.png", "--model", "MODEL", "--out", "picture.png"],
    "describe onto an input": [
        "describe", "in/old/a.png", "in/new/a.png", "--model", "MODEL", "--out", "in/new/a.png", "--overwrite",
    ],
    "export torch": ["export", "torch", "--out", ".", "--model", "MODEL"],
    "export hf": ["export", "hf", "--out", ".", "--model", "MODEL"],
    "push": ["push", "me/model", "--out", ".", "--model", "MODEL"],
    "export hf onto the model": ["export", "hf", "--out", "MODEL", "--model", "MODEL", "--overwrite"],
    "export onnx": ["export", "onnx", "--out", ".", "--model", "MODEL"],
    "score": ["score", "in/said.json", "--metrics", "BLEU", "--out", "result.json"],
    "score onto its references": [
        "score", "in/said.json", "--references", "in/refs.json", "--out", "in/refs.json", "--overwrite",
    ],
    "score onto the judge": ["score", "in/said.json", "--judge", "MODEL", "--out", "MODEL/config.json", "--overwrite"],
    "score onto an input": ["score", "in/said.json", "--metrics", "BLEU", "--out", "in/said.json", "--overwrite"],
    "leaderboard": ["leaderboard", "in/results", "--out", "board.md"],
    "leaderboard, the page": ["leaderboard", "in/results", "--out", "board.txt"],
    "questions": ["score", "in/answers.jsonl", "--questions", "pairs", "--out", "answers.jsonl"],
    "convert": ["convert", "vqgan", "best.ckpt", "--out", "best.ckpt"],
    "data refilter": ["data", "refilter", "in", "--out", "store"],
    "data prepare": ["data", "prepare", "spot_the_diff", "--root", ".", "--archive", "in/a.zip"],
}  # fmt: skip


READS = {"list", "plan", "doctor", "serve", "mcp"}
"""Verbs that write nothing."""
OF_RUNS = {"run", "fit", "validate", "test"}
"""Verbs of tests/cli/test_outputs_of_runs.py."""
INPUT_OPTIONS = {"archive", "folders", "results", "resume"}
"""Options with paths that are only read, or of a resumed run."""


def test_every_verb_and_every_output_option_is_tried_here() -> None:
    tried = [*REFUSED.values(), *(arguments for arguments, _ in WRITES.values()), *RECORDS]
    assert {arguments[0] for arguments in tried} | READS | OF_RUNS == VERBS.keys()
    options, sub_verbs = set(), set()
    for verb in VERBS.keys() - OF_RUNS - {"run"}:
        target = _target(VERBS[verb][0])
        functions = target if isinstance(target, Mapping) else {"": target}
        for sub_verb, function in functions.items():
            outputs = {name for name in output_options(function) if name not in INPUT_OPTIONS}
            options |= {(verb, name) for name in outputs}
            sub_verbs |= {f"{verb} {sub_verb}"} if outputs and sub_verb else set()
    assert {verb for verb, _ in options} & READS == set()
    # --out of predict and compare has a default
    missing = {(verb, name) for verb, name in options if not any(a[0] == verb and f"--{name}" in a for a in tried)}
    assert missing == set()
    assert sub_verbs <= {" ".join(arguments[:2]) for arguments in tried}


def output_options(function: Callable[..., int]) -> Iterator[str]:
    """Yield the path options of a verb, and ``--sidecar`` and ``--out`` of `data export`, which is a URL."""
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            yield from (field.name for field in fields(hints[name]) if "Path" in str(field.type))
        elif parameter.kind is parameter.KEYWORD_ONLY and ("Path" in str(hints[name]) or name in ("sidecar", "out")):
            yield name


def filled(arguments: list[str], model: Path) -> list[str]:
    return [argument.replace("MODEL", str(model)) for argument in arguments]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that would be uploaded."""
    sent: list[str] = []

    class Api:
        def create_repo(self, *unused: Any, **options: Any) -> None:
            pass

        def get_paths_info(self, *unused: Any, **options: Any) -> list[Any]:
            return []

        def upload_folder(self, folder_path: Path, allow_patterns: list[str], **unused: Any) -> str:
            names = tree(Path(folder_path))
            sent.extend(name for name in names if any(fnmatch(name, pattern) for pattern in allow_patterns))
            return "address"

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    return sent


@pytest.mark.parametrize("case", REFUSED)
def test_no_verb_replaces_or_removes_a_file_of_the_user(
    case: str, home: Path, model: Path, hub: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before, model_before = tree(home), tree(model)
    assert main(filled(REFUSED[case], model)) in (1, 2)
    captured = capsys.readouterr()
    assert changed(before, tree(home)) == set() and tree(model) == model_before and hub == []
    assert not [path for path in home.rglob(".lightning_idc-*")] and not [*home.rglob("*.partial")]
    assert "Traceback" not in captured.err and ("error: " in captured.err or "problem: " in captured.out)


WRITES = {
    "predict": (["predict", *PAIRS, "--out", "n.jsonl"], "n.jsonl"),
    "predict beside before and after": (
        ["predict", "in/pairs", "--model", "MODEL", "--out", "in/pairs/n.csv"], "in/pairs/n.csv",
    ),
    "compare": (
        ["compare", *PAIRS, "--out", "n.jsonl", "--reg", "n.json", "--junit", "n.xml", "--report", "n.html"],
        "n.jsonl n.json n.xml n.html n_pictures/000001_before.jpg n_pictures/000001_after.jpg n_diff/a.png",
    ),
    "describe": (["describe", "in/old/a.png", "in/new/a.png", "--model", "MODEL", "--out", "n.png"], "n.png"),
    "push": (
        ["push", "me/model", "--out", "n", "--model", "MODEL"],
        "n/README.md n/config.json n/model.safetensors",
    ),
    "export hf": (
        ["export", "hf", "--out", "n", "--model", "MODEL"], "n/README.md n/config.json n/model.safetensors",
    ),
    "export torch": (
        ["export", "torch", "--out", "n", "--model", "MODEL"], "n/captioner.json n/encoder.pt2 n/step.pt2",
    ),
    "score": (["score", "in/said.json", "--metrics", "BLEU", "--out", "n.json"], "n.json"),
    "leaderboard": (["leaderboard", "in/results", "--out", "n.md"], "n.md n.html n.tex"),
    "questions": (["score", "in/answers.jsonl", "--questions", "pairs", "--out", "n.json"], "n.json"),
    "predict beside the images": (["predict", "in/pairs", "--sidecar", "--model", "MODEL"], "in/pairs/after/a.txt"),
    "data prepare": (
        ["data", "prepare", "spot_the_diff", "--root", "n", "--archive", "in/a.zip"],
        "n/annotations/train.json n/annotations/val.json",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITES)
def test_a_verb_run_twice_writes_only_its_outputs(case: str, home: Path, model: Path, hub: list[str]) -> None:
    arguments, outputs = WRITES[case]
    before = tree(home)
    for _ in range(2):  # overwriting its own output needs no flag
        hub.clear()
        assert main(filled(arguments, model)) in ((0, 1) if case == "data prepare" else (0,))
        assert changed(before, tree(home)) == set(outputs.split())
    if case == "push":
        assert hub == [name.removeprefix("n/") for name in sorted(outputs.split())]


def test_a_push_from_a_folder_of_others_sends_what_was_written_and_no_more(
    home: Path, model: Path, hub: list[str]
) -> None:
    for name in ("README.md", "config.json", "model.safetensors"):
        (home / name).unlink()
    before = tree(home)
    assert main(["push", "me/model", "--out", ".", "--model", str(model)]) == 0
    assert hub == ["README.md", "config.json", "model.safetensors"] and changed(before, tree(home)) == set(hub)


def test_overwrite_replaces_the_files_that_are_named_and_no_others(home: Path, model: Path, hub: list[str]) -> None:
    before = tree(home)
    assert main(["compare", *filled(PAIRS, model), "--out", "out.jsonl", "--report", "page.html", "--overwrite"]) == 0
    pictures = {"page_pictures/000001_before.jpg", "page_pictures/000001_after.jpg"}
    assert changed(before, tree(home)) == {"out.jsonl", "page.html", *pictures}


def test_a_report_never_replaces_an_existing_folder_of_its_name(
    tmp_path: Path, draw: Draw, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    draw("old_pictures/1.png", seed=1)
    draw("new_pictures/1.png", seed=2)
    (tmp_path / "new_pictures/notes.txt").write_text("thesis")
    before = tree(tmp_path)
    monkeypatch.chdir(tmp_path)
    inputs = ["compare", "old_pictures", "new_pictures", "--model", str(model), "--report", "new.html"]
    for flag in ([], ["--overwrite"]):
        assert main([*inputs, *flag]) == 2
        assert "the images of --report" in (printed := capsys.readouterr().err) or "new_pictures" in printed
        assert tree(tmp_path) == before


RECORDS = [
    ["data", "export", "STORE", "--out", "store"],
    ["data", "export", "STORE", "--out", "notes.txt"],
    ["data", "export", "STORE", "--out", "in", "--format", "jsonl"],
    ["data", "refilter", "STORE", "--out", "store"],
    ["data", "refilter", "STORE", "--out", "."],
    ["data", "refilter", "STORE", "--out", "notes.txt"],
]


class TwoPairs:
    """Records of two pairs."""

    fingerprint = "two pairs"

    def __len__(self) -> int:
        return 2

    def record(self, index: int) -> Record:
        record = Record(f"r{index}", {"captions": ["a dog", f"a cat {index}"]})
        record.decoded = pair_of(10, 200 + index).decoded
        record.unsaved = {"before", "after"}
        return record


def test_records_go_into_no_folder_of_the_user(home: Path, hub: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    store = run_stage(Deduplicate(("captions",)), TwoPairs(), home / "in/records").folder  # type: ignore[arg-type]
    before = tree(home)
    for arguments in RECORDS:
        assert main([argument.replace("STORE", str(store)) for argument in arguments]) == 1
        assert changed(before, tree(home)) == set()
        assert (said := capsys.readouterr().err).startswith("error: ") and "Traceback" not in said
    assert main(["data", "push", str(store), "me/pairs"]) == 0
    assert changed(before, tree(home)) == set() and hub == ["README.md", "data/00000-of-00001.parquet"]
    assert main(["data", "export", str(store), "--out", "n"]) == 0
    assert changed(before, tree(home)) == {"n/00000-of-00001.parquet"}


def test_a_cell_of_a_table_is_no_formula(tmp_path: Path) -> None:
    texts = ["=HYPERLINK(1)", "+1", "-1", "@a", "\ta", "\n=1", "\uff1d1", "a=b", ""]
    records = [{"id": text, "caption": text, "boxes": [], "log_prob": -0.5} for text in texts]
    write_records(records, tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["caption"] for row in rows] == [f"'{text}" for text in texts[:-2]] + ["a=b", ""]
    assert {row["log_prob"] for row in rows} == {"-0.5"}


def test_results_of_a_test_are_refused_before_it_begins(home: Path, model: Path) -> None:
    import lightning_idc

    captioner = lightning_idc.load(model, device="cpu")
    loop = SimpleNamespace(verbose=True)
    trainer: Any = SimpleNamespace(test_loop=loop, validate_loop=loop, is_global_zero=True, default_root_dir=str(home))
    with pytest.raises(ConfigError, match=r"ShowResults: .*predictions\.jsonl.*--overwrite"):
        ShowResults().setup(trainer, captioner, "test")
    ShowResults().setup(trainer, captioner, "fit")
    ShowResults(overwrite=True).setup(trainer, captioner, "test")
