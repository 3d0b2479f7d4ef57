"""The library may replace outputs that it wrote itself; files of a user stay unchanged, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.manifest import manifest_path
from lightning_idc.utils.outputs import Output, check_disjoint, check_file, new_file, save_json, write_file


def tree(folder: Path) -> dict[str, bytes | str]:
    """Content of every file below a folder, and target of every link."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def write(folder: Path, *names: str, name: str = "things", text: str = "new", **options: object) -> Output:
    output = Output(folder, name, **options)  # type: ignore[arg-type]
    with output as draft:
        for file in names:
            (draft / file).parent.mkdir(parents=True, exist_ok=True)
            (draft / file).write_text(text)
    return output


def test_an_output_replaces_its_own_files_and_removes_those_that_it_no_longer_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, "a", "sub/b", "sub/deep/c")
    output = write(tmp_path, "a", "sub/b", text="newer")
    assert output.files() == ["a", "sub/b"] and not (tmp_path / "sub/deep").exists()
    result = tree(tmp_path)
    assert result == {"a": b"newer", "sub/b": b"newer", "notes.txt": b"mine"}
    output.remove()
    assert tree(tmp_path) == {"notes.txt": b"mine"}


@pytest.mark.parametrize("change", ["made by the user", "changed by the user", "of another output", "a link", "folder"])
def test_files_of_others_are_replaced_only_with_overwrite(tmp_path: Path, change: str) -> None:
    target, aside = tmp_path / "a", tmp_path / "aside"
    aside.write_text("aside")
    if change == "made by the user":
        target.write_text("mine")
    elif change == "changed by the user":
        write(tmp_path, "a")
        target.write_text("mine")
    elif change == "of another output":
        write(tmp_path, "a", name="others")
    elif change == "a link":
        target.symlink_to(aside)
    else:
        target.mkdir()
        (target / "inner").write_text("mine")
    before = tree(tmp_path)
    message = "is a folder" if change == "folder" else "not written by this command.*--overwrite"
    with pytest.raises(ConfigError, match=message):
        write(tmp_path, "first", "a")
    assert tree(tmp_path) == before, "nothing is written where one file cannot be"
    if change != "folder":
        write(tmp_path, "a", overwrite=True)
        assert target.read_text() == "new" and aside.read_text() == "aside"


def test_a_file_that_the_user_changed_is_not_removed_with_an_earlier_output(tmp_path: Path) -> None:
    output = write(tmp_path, "a", "b")
    (tmp_path / "b").write_text("mine")
    write(tmp_path, "a")
    assert (tmp_path / "b").read_text() == "mine"
    (tmp_path / "a").write_text("mine, too")
    output.remove()
    assert tree(tmp_path) == {"a": b"mine, too", "b": b"mine"}


@pytest.mark.parametrize("place", ["in", "in/sub/x", "in/x", "linked/x", "file"])
def test_no_output_is_or_lies_in_an_input(tmp_path: Path, place: str) -> None:
    (tmp_path / "in/sub").mkdir(parents=True)
    (tmp_path / "in/1.png").write_bytes(b"picture")
    (tmp_path / "file").write_text("read")
    (tmp_path / "linked").symlink_to("in")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match=r"--out .*(is inside the input|is an input|is a folder)"):
        check_file("--out", tmp_path / place, [tmp_path / "in", tmp_path / "file"], overwrite=True)
    with pytest.raises(ConfigError):
        write_file(tmp_path / place, "x", True, [tmp_path / "in", tmp_path / "file"])
    assert tree(tmp_path) == before


def test_a_folder_of_its_own_holds_no_files_of_others_and_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    write(tmp_path, "own/1", reserved=["own"])
    write(tmp_path, "own/1", reserved=["own"], text="again")
    (tmp_path / "own/notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"contains 'notes.txt', which this command did not write"):
        write(tmp_path, "own/1", reserved=["own"])
    with pytest.raises(ConfigError, match="overlaps the input"):
        write(tmp_path, "own/1", reserved=["own"], inputs=[tmp_path / "own/notes.txt"], overwrite=True)
    write(tmp_path, "own/2", reserved=["own"], overwrite=True)
    assert tree(tmp_path / "own") == {"2": b"new", "notes.txt": b"mine"}


def test_a_link_below_the_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link or a file; expected a folder"):
        write(tmp_path / "out", "sub/a", overwrite=True)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_file_that_is_named_by_a_link_is_written_where_the_link_leads(tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("table.csv")
    for text in ("1", "2"):
        write_file(tmp_path / "latest", text)
        assert (tmp_path / "latest").is_symlink() and (tmp_path / "table.csv").read_text() == text
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(ConfigError, match="circle"):
        write_file(tmp_path / "circle", "x")


def test_an_error_while_writing_leaves_the_folder_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "out", "a")
    before = tree(tmp_path)
    for folder in ("out", "fresh"):
        with pytest.raises(KeyError), Output(tmp_path / folder, "things") as draft:
            (draft / "a").write_text("half")
            raise KeyError("stopped")
    assert tree(tmp_path) == before and not (tmp_path / "fresh").exists()


def test_a_run_that_is_cut_off_between_two_files_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a", "b", text="old")
    replace: Callable[..., None] = __import__("os").replace

    def cut(source: Path, target: Path) -> None:
        if target.name == "b":
            raise SystemExit
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", cut)
        with pytest.raises(SystemExit):
            write(tmp_path, "a", "b", text="new")
    assert ((tmp_path / "a").read_text(), (tmp_path / "b").read_text()) == ("new", "old")
    write(tmp_path, "a", "b", text="newer")
    assert (tmp_path / "b").read_text() == "newer"


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "no JSON",
        json.dumps({"outputs": {"things": {"../x": ["0"]}}}),
        json.dumps({"outputs": {"things": {"/x": ["0"]}}}),
        json.dumps({"outputs": {"things": {"a": None}}}),
        json.dumps({"outputs": []}),
    ],
)
def test_a_damaged_list_of_outputs_gives_no_right_to_replace_a_file(tmp_path: Path, content: str) -> None:
    manifest_path(tmp_path).parent.mkdir(parents=True, exist_ok=True)
    manifest_path(tmp_path).write_text(content)
    (tmp_path / "a").write_text("mine")
    before = tree(tmp_path)
    with pytest.raises(ConfigError, match="--overwrite"):
        write(tmp_path, "a")
    assert tree(tmp_path) == before


def test_a_cache_folder_that_cannot_be_written_costs_only_the_memory_of_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    monkeypatch.setenv("LIGHTNING_IDC_CACHE", str(tmp_path / "cache"))
    write(tmp_path / "out", "a")
    with pytest.raises(ConfigError, match="--overwrite"):
        write(tmp_path / "out", "a")
    write(tmp_path / "out", "a", overwrite=True)


def test_outputs_of_one_command_are_apart(tmp_path: Path) -> None:
    (tmp_path / "same").symlink_to("x")
    for other in ("x", "./x", "same", "x/y"):
        with pytest.raises(ConfigError, match="--out and --reg would both write"):
            check_disjoint({"--out": tmp_path / "x", "--junit": None, "--reg": tmp_path / other})
    with pytest.raises(ConfigError, match="both write"):  # some file systems ignore case
        check_disjoint({"--out": tmp_path / "Scores.json", "--reg": tmp_path / "scores.json"})
    check_disjoint({"--out": Path("/dev/null"), "--reg": Path("/dev/null"), "--junit": tmp_path / "y"})


def test_commands_do_not_replace_files_of_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = {f"{side}/a.png": Image.new("RGB", (16, 16), side) for side in ("red", "green")}
    for name, image in pairs.items():
        (tmp_path / name).parent.mkdir()
        image.save(tmp_path / name)
    sides, out = [str(tmp_path / "red"), str(tmp_path / "green")], str(tmp_path / "answers.jsonl")
    assert [main(["compare", *sides, "--out", out]) for _ in range(2)] == [0, 0], "a command replaces its own file"
    compared = Path(out).read_bytes()
    assert main(["predict", *sides, "--out", out]) == 1 and Path(out).read_bytes() == compared
    assert "was not written by this command" in capsys.readouterr().err
    assert main(["compare", *sides, "--out", str(tmp_path / f"{'x' * 300}.jsonl")]) == 2
    assert "cannot be used (File name too long)" in capsys.readouterr().err


def test_devices_are_written_to_as_they_are(tmp_path: Path) -> None:
    write_file("/dev/null", "x")
    assert Path("/dev/null").is_char_device()


def test_a_callback_reports_a_file_that_it_did_not_replace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scores.json").write_text("mine")
    assert not save_json(tmp_path / "scores.json", {"a": 1}) and "could not write" in capsys.readouterr().err
    assert (tmp_path / "scores.json").read_text() == "mine"
    assert save_json(tmp_path / "scores.json", {"a": 1}, overwrite=True)


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    for text in ("1", "2"):
        write_file(tmp_path / "caf\udce9.csv", text)
    assert (tmp_path / "caf\udce9.csv").read_text() == "2"


def test_a_new_file_never_replaces_another(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("nowhere")
    with pytest.raises(ConfigError, match="exists"), new_file(tmp_path / "a") as part:
        part.write_text("x")
    with new_file(tmp_path / "b") as part:
        part.write_text("x")
    assert tree(tmp_path) == {"a": "nowhere", "b": b"x"}
