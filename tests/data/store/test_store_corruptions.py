"""Damaged stores of every kind: a read returns what was written, or raises a one-line error that names the file.

Each case is read as in a new process. A store that its owner can recompute is recomputed. In a store that several
processes extend, rows may be missing, since a missing row is computed or refused on access.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from lightning_idc.cli import main
from lightning_idc.cli.errors import readable
from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.data.store import shards
from lightning_idc.data.store.building import write_manifest
from lightning_idc.data.store.decoded import DecodedSource, decode_to_store
from lightning_idc.data.store.feature_store import FeatureCache
from lightning_idc.data.store.manifest import MANIFEST, Manifest, fingerprint_of
from lightning_idc.data.store.reader import Store, faults, shards_in
from lightning_idc.data.synthetic import SyntheticSource
from lightning_idc.data.synthetic.cache import Key
from lightning_idc.data.synthetic.modes import load_mode
from lightning_idc.methods.policy.cached_scores import append_scores, read_scores
from lightning_idc.methods.procap.procedures import ProcedureFolder
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import ImageFolder
from lightning_idc.synthesis.stages import MapStage
from lightning_idc.synthesis.store import RecordStore, write_records
from lightning_idc.utils.errors import IDCError


@dataclass(frozen=True)
class User:
    """A kind of store.

    Args:
        write: the store below a folder; 1 writes another one of the same kind.
        read: everything in it, by name.
        tables: tables of the store.
        partial: whether rows may be missing.
    """

    write: Callable[[Path, int], None]
    read: Callable[[Path], dict[str, Any]]
    tables: tuple[str, ...]
    partial: bool = False


def pictures(folder: Path, seed: int) -> FolderPairs:
    folder.mkdir(parents=True, exist_ok=True)
    dice, rows = np.random.default_rng(seed), ["id,before,after,caption,split"]
    for number in range(5):
        for side in "ab":
            Image.fromarray(dice.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(folder / f"{number}{side}.bmp")
        rows.append(f"p{number},{number}a.bmp,{number}b.bmp,c,train")
    (folder / "pairs.csv").write_text("\n".join(rows))
    return FolderPairs(folder, image_size=(8, 8))


def write_images(folder: Path, other: int) -> None:
    if not (folder / "files").exists():
        pictures(folder / "files", other)
    read_images(folder)


def read_images(folder: Path) -> dict[str, Any]:
    source = FolderPairs(folder / "files", image_size=(8, 8)).pairs_of("train")
    cached = DecodedSource(source, decode_to_store(source, folder / "store", (8, 8), "bilinear"))
    return {cached.ids[index]: pixels(cached.load(index)) for index in range(len(cached))}


def pixels(sample: Any) -> list[Any]:
    return [sample.before.tolist(), sample.after.tolist(), sample.captions]


def key(other: int) -> Key:
    return Key("clevr_change", "val", 3, 16, 16, other, load_mode("clevr_change").WORLD)


def rendered(folder: Path, other: int = 0) -> SyntheticSource:
    return SyntheticSource(key(other), folder / "store", progress=False, workers=1)


def read_rendered(folder: Path) -> dict[str, Any]:
    source = rendered(folder)
    return {id: [*pixels(source.load(index)), source.ground_truth(index)] for index, id in enumerate(source.ids)}


def kept(folder: Path) -> FeatureCache:
    return FeatureCache(lambda images: images.float().mean((2, 3)) / 7, folder / "store", FLOAT, True)


FLOAT = np.dtype(np.float32)
IMAGES = torch.arange(4 * 3 * 5 * 5).remainder(251).to(torch.uint8).view(4, 3, 5, 5)


def write_features(folder: Path, other: int) -> None:
    cache = kept(folder) if not other else kept(folder / "other")
    cache(IMAGES[:3] + other)
    cache(IMAGES + other)


def read_features(folder: Path) -> dict[str, Any]:
    return {"features": kept(folder)(IMAGES).tolist()}


def write_two_stores(folder: Path, other: int) -> None:
    parent = ""
    for stage, source in (("first", None), ("store", "../first")):
        (folder / stage).mkdir(parents=True, exist_ok=True)
        identity = {"seed": other, "stage": stage, "source": parent}
        for number in range(2):
            records = [Record(f"r{number}{row}", {"other": other}) for row in range(3)]
            for row, record in enumerate(records):
                record.origin = None if source is None else 3 * number + row
                name = "early" if source is None else "late"
                record.images[name] = bytes([other, number, row]) * 30
                record.arrays["vector"] = np.arange(4.0) + row + other
            write_records(folder / stage, fingerprint_of(identity), number, records)
        write_manifest(folder / stage, identity, shards_in(folder / stage, Manifest(identity)), source=source)
        parent = RecordStore(folder / stage).fingerprint


def read_records(folder: Path) -> dict[str, Any]:
    store = RecordStore(folder / "store")
    return {
        record.id: [record.facts, record.encoded("late"), record.encoded("early"), record.arrays["vector"].tolist()]
        for record in store
    }


PAIRS = torch.arange(4 * 2 * 3 * 4 * 4).remainder(256).to(torch.uint8).view(4, 2, 3, 4, 4)


def write_procedures(folder: Path, other: int) -> None:
    procedures = ProcedureFolder(folder / "store")
    procedures.check_settings({"frames": 1, "midpoint": f"M{other}"})
    for first in (0, 2):
        frames = PAIRS[first : first + 2, :1] + other
        scores = torch.arange(4.0).view(2, 2, 1) + first + other
        procedures.add([f"p{first}", f"p{first + 1}"], PAIRS[first : first + 2], frames, scores)


def read_procedures(folder: Path) -> dict[str, Any]:
    procedures = ProcedureFolder(folder / "store")
    result = {f"p{row}": procedures.of(f"p{row}", *PAIRS[row]) for row in range(4) if f"p{row}" in procedures}
    return {name: [made.frames.tolist(), made.similarities.tolist()] for name, made in result.items()}  # type: ignore[union-attr]


def write_scores(folder: Path, other: int) -> None:
    for first in (0, 3):
        rows = {
            (f"p{row}", (1, row, 2)): (row * 10**15 + other, -row - 0.25 - other) for row in range(first, first + 3)
        }
        append_scores(folder / "store", f"weights {other}", rows)


def read_scores_of(folder: Path) -> dict[str, Any]:
    return {str(name): row for name, row in read_scores(folder / "store", "weights 0").items()}


USERS = {
    "images": User(write_images, read_images, ("pairs",)),
    "rendered": User(lambda folder, other: void(rendered(folder, other)), read_rendered, ("pairs", "texts")),
    "features": User(write_features, read_features, ("rows", "keys")),
    "records": User(write_two_stores, read_records, ("records", "images")),
    "procedures": User(write_procedures, read_procedures, ("rows", "keys"), partial=True),
    "scores": User(write_scores, read_scores_of, ("scores",), partial=True),
}


def void(_: object) -> None:
    """Drop a result."""


Damage = Callable[[Path], None]


def edit(change: Callable[[bytes], bytes], keep_time: bool = False) -> Damage:
    def damage(path: Path) -> None:
        stat = path.stat()
        path.write_bytes(change(path.read_bytes()))
        if keep_time:
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    return damage


def flip(share: float, bit: int = 1, keep_time: bool = False) -> Damage:
    def change(content: bytes) -> bytes:
        position = min(int(share * len(content)), len(content) - 1)
        return content[:position] + bytes([content[position] ^ bit]) + content[position + 1 :]

    return edit(change, keep_time)


def higher_number(content: bytes) -> bytes:
    """Increment the first digit from 1 to 8; a digit of a description stays valid."""
    position = next((position for position, sign in enumerate(content) if sign in b"12345678"), 0)
    return content[:position] + bytes([(content[position] + 1) % 256]) + content[position + 1 :]


DAMAGES: dict[str, Damage] = {
    "bit at the start": flip(0.0),
    "bit in the first quarter": flip(0.25, 16),
    "bit in the middle": flip(0.5, 4),
    "bit in the third quarter": flip(0.75, 128),
    "bit at the end": flip(1.0),
    "bit that a disk lost": flip(0.6, keep_time=True),
    "cut by a byte": edit(lambda content: content[:-1]),
    "cut to a half": edit(lambda content: content[: len(content) // 2]),
    "bytes lost at the front": edit(lambda content: content[3:]),
    "bytes added": edit(lambda content: content + b"\x07" * 8),
    "a block of zeros": edit(lambda content: content[:90] + bytes(40) + content[130:], keep_time=True),
    "a number one higher": edit(higher_number),
    "other text": edit(lambda content: b"<html>404</html>"),
    "empty": edit(lambda content: b""),
    "missing": Path.unlink,
    "no file": lambda path: (path.unlink(), path.mkdir())[1],
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, Any]]]:
    result = {}
    for name, user in USERS.items():
        folder = tmp_path_factory.mktemp(name)
        user.write(folder, 0)
        result[name] = folder, user.read(folder)
        assert result[name][1]
    return result


@pytest.fixture
def store(written: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of a written store, file times included, that this process has not checked yet."""
    folder = tmp_path / "copy"
    shutil.copytree(written[request.node.callspec.params["user"]][0], folder)
    if (folder / "files").is_dir():  # images are identified by times that cannot be copied
        shutil.rmtree(folder / "store")
        write_images(folder, 0)
    new_process()
    return folder


def new_process() -> None:
    shards._checked.clear()
    shards.open_shard.cache_clear()


def inner(folder: Path) -> Path:
    """The folder that holds the manifest of the store."""
    return next(path.parent for path in sorted((folder / "store").rglob(MANIFEST)))


def files(folder: Path, kind: str) -> list[Path]:
    """The manifest, or the shards of a table."""
    return sorted(inner(folder).glob(kind if kind == MANIFEST else f"{kind}-*.arrow"))


def judge(user: str, folder: Path, expected: dict[str, Any]) -> str:
    """Read a store and return 'right', 'in parts' or 'refused'; any other outcome fails."""
    new_process()
    try:
        result = USERS[user].read(folder)
    except IDCError as error:
        message = str(error)
        assert "\n" not in message and str(folder) in message and len(message) < 500, message
        return "refused"
    if result == expected:
        return "right"
    assert USERS[user].partial and result.items() <= expected.items(), "other data than was written, without a word"
    return "in parts"


CASES = [(user, file, damage) for user in USERS for file in (MANIFEST, *USERS[user].tables) for damage in DAMAGES]
REMOVED = ("missing", "no file")


@pytest.mark.parametrize(("user", "file", "damage"), CASES)
def test_no_damage_is_silent_or_a_traceback(
    written: dict[str, tuple[Path, dict[str, Any]]], store: Path, user: str, file: str, damage: str
) -> None:
    target = files(store, file)[-1]
    assert faults(target.parent) == []
    DAMAGES[damage](target)
    named = faults(target.parent)
    outcome = judge(user, store, written[user][1])
    # a shard of scores that was removed counts as never written, since nothing lists it
    assert named or outcome == "right" or (user == "scores" and damage in REMOVED)


@pytest.mark.parametrize("user", USERS)
def test_no_flipped_bit_of_a_store_is_silent(
    written: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path, user: str
) -> None:
    """Flip 25 bits in each file of a store, drawn with a fixed seed."""
    draw = np.random.default_rng(5)
    shutil.copytree(written[user][0], tmp_path / "copy")
    folder = tmp_path / "copy" / inner(written[user][0]).relative_to(written[user][0])
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".arrow", ".json")):
        content = path.read_bytes()
        for _ in range(25):
            damaged = bytearray(content)
            damaged[draw.integers(len(content))] ^= 1 << int(draw.integers(8))
            path.write_bytes(damaged)
            assert faults(folder), f"{path.name} was changed without a word"
        path.write_bytes(content)
        assert faults(folder) == []


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("what", ["shards swapped", "shard of another store", "manifest of another store", "all of it"])
def test_swapped_files_are_detected(
    written: dict[str, tuple[Path, dict[str, Any]]], store: Path, tmp_path: Path, user: str, what: str
) -> None:
    other = tmp_path / "other"
    USERS[user].write(other, 1)
    other = other / "other" if user == "features" else other
    arrows = files(store, USERS[user].tables[0])
    if what == "shards swapped":
        if len(arrows) < 2:
            pytest.skip("one shard")
        one, two = arrows[:2]
        content = one.read_bytes()
        one.write_bytes(two.read_bytes())
        two.write_bytes(content)
    elif what == "shard of another store":
        arrows[0].unlink()
        shutil.copy2(files(other, USERS[user].tables[0])[0], inner(store))
    elif what == "manifest of another store":
        shutil.copy2(inner(other) / MANIFEST, inner(store) / MANIFEST)
    elif user in ("records", "procedures"):
        pytest.skip("the user names the folder, and the other one is as good")
    else:
        target = inner(store)
        shutil.rmtree(target)
        shutil.copytree(inner(other), target)
    judge(user, store, written[user][1])


@pytest.mark.parametrize("user", USERS)
def test_store_of_another_version_is_rejected(
    written: dict[str, tuple[Path, dict[str, Any]]], store: Path, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_idc.data.store.manifest.FORMAT", 99)
    judge(user, store, written[user][1])


def same_size_and_time(path: Path) -> None:
    """Change the content of an image file, but not its size or time."""
    stat = path.stat()
    path.write_bytes(path.read_bytes()[:-30] + bytes(30))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (stat.st_size, stat.st_mtime_ns)


def test_replaced_source_image_is_decoded_again(tmp_path: Path) -> None:
    write_images(tmp_path, 0)
    before = read_images(tmp_path)
    same_size_and_time(tmp_path / "files" / "3a.bmp")
    after = read_images(tmp_path)
    assert after["p3"] != before["p3"] and after["p2"] == before["p2"]
    fresh = FolderPairs(tmp_path / "files", image_size=(8, 8)).pairs_of("train")
    assert all(pixels(fresh.load(index)) == after[id] for index, id in enumerate(fresh.ids))


def test_replaced_source_image_invalidates_records(tmp_path: Path) -> None:
    pictures(tmp_path / "files", 0)
    stage = MapStage(unchanged)
    run(stage, ImageFolder(str(tmp_path / "files")), tmp_path / "a")
    (tmp_path / "files").rename(tmp_path / "moved")
    run(stage, ImageFolder(str(tmp_path / "moved")), tmp_path / "a")
    same_size_and_time(tmp_path / "moved" / "3a.bmp")
    with pytest.raises(IDCError, match="records of the source that differ now"):
        run(stage, ImageFolder(str(tmp_path / "moved")), tmp_path / "a")


def unchanged(record: Record) -> Record:
    return record


@pytest.mark.slow
def test_damaged_image_cache_is_rebuilt(tmp_path: Path) -> None:
    write_images(tmp_path, 0)
    expected = read_images(tmp_path)
    for damage in DAMAGES.values():
        damage(files(tmp_path, "pairs")[0])
        new_process()
        try:
            assert read_images(tmp_path) == expected
        except IDCError as error:  # a shard of the right size is checked when it is opened
            assert f"delete {inner(tmp_path)} and run again" in str(error)
            shutil.rmtree(inner(tmp_path))
            assert read_images(tmp_path) == expected
    assert not [path for path in (tmp_path / "store").iterdir() if path.name.startswith(".")]


def test_damage_in_a_worker_is_a_one_line_error(tmp_path: Path) -> None:
    write_images(tmp_path, 0)
    data = FolderPairs(tmp_path / "files", image_size=(8, 8), cache_images=tmp_path / "store", num_workers=1)
    source = data.pairs_of("train")
    source = source if isinstance(source, DecodedSource) else DecodedSource(source, Store(inner(tmp_path)))
    flip(0.5, keep_time=True)(files(tmp_path, "pairs")[0])
    new_process()
    with pytest.raises(IDCError) as caught:
        list(DataLoader(Loaded(source), num_workers=1))
    message = readable(caught.value)
    assert message is not None and message.startswith(str(tmp_path)) and "is damaged" in message and "\n" not in message


class Loaded(Dataset[Any]):
    """The before images of a source, as a dataset for a plain DataLoader."""

    def __init__(self, source: DecodedSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.source.load(index).before


def test_verify_lists_damaged_files(
    written: dict[str, tuple[Path, dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("records", "features"):
        shutil.copytree(written[name][0], tmp_path / name)
    assert main(["data", "verify", str(tmp_path)]) == 0
    assert "3 stores, 0 damaged" in capsys.readouterr().out
    (target,) = (tmp_path / "records" / "first").glob("records-00001-*")
    flip(0.7)(target)
    assert main(["data", "verify", str(tmp_path)]) == 1
    message = capsys.readouterr().out
    assert (
        f"first/{target.name} is damaged: it does not match its checksum" in message
        and "3 stores, 1 damaged" in message
    )
    assert main(["data", "verify", str(tmp_path / "nowhere")]) == 1
    assert "no manifest.json in" in capsys.readouterr().err
    assert main(["data", "mend", str(tmp_path)]) == 2


def test_the_corpus_has_its_size() -> None:
    assert len(CASES) + 4 * len(USERS) >= 250
    assert replace(key(0), seed=1) == key(1)
