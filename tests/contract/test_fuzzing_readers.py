"""Fuzz the readers of images, checkpoints, YAML and command lines: they raise our errors or return a valid result."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.bad_files.weights import MODEL, good_checkpoint
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save

from lightning_idc.checkpoints.checkpoint_io import newest_checkpoint
from lightning_idc.cli.configuration import gather, parse_overrides, parse_value, read_yaml
from lightning_idc.cli.recipes.compose import load
from lightning_idc.images.options import ImageOptions
from lightning_idc.images.read import read_image
from lightning_idc.models.loading import load_captioner
from lightning_idc.utils.errors import IDCError

# `make fuzz` draws other examples, for a given time
QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "set", "cut", "insert", "repeat", "remove"]), st.floats(0, 1), st.integers(0, 255)
    ),
    max_size=6,
)


def changed(data: bytes, changes: list[tuple[str, float, int]], within: int | None = None) -> bytes:
    """Apply drawn changes at drawn positions of the data, or of its first ``within`` bytes."""
    found = bytearray(data)
    for kind, place, value in changes:
        at = int(place * (min(len(found), within or len(found)) - 1)) if found else 0
        if kind == "flip" and found:
            found[at] ^= 1 << value % 8
        elif kind == "set" and found:
            found[at] = value
        elif kind == "cut":
            del found[at:]
        elif kind == "insert":
            found[at:at] = bytes([value]) * (1 + value % 9)
        elif kind == "repeat":
            found[at:at] = found[at : at + value]
        else:
            del found[at : at + value]
    return bytes(found)


# ---- damaged files -----------------------------------------------------------------------------------------


def pictures() -> dict[str, bytes]:
    """A small image in every format, and in the modes that a format encodes differently."""
    values = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    colour = Image.fromarray(values[..., :3])
    modes = {
        **{kind: colour for kind in ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM")},
        "PNG RGBA": Image.fromarray(values),
        "PNG P": colour.convert("P"),
        "PNG 1": colour.convert("1"),
        "PNG 16": Image.fromarray(values[..., 0].astype(np.uint16) * 257),
        "TIFF F": Image.fromarray(values[..., 0].astype(np.float32)),
        "TIFF 16": Image.fromarray(values[..., 0].astype(np.uint16) * 257),
    }
    found = {}
    for name, image in modes.items():
        buffer = io.BytesIO()
        image.save(buffer, name.split()[0])
        found[name] = buffer.getvalue()
    return found


RECIPE = """
recipe: {title: x}
base: {model: {class: ProCap}}
stages: {a: {run: fit}, b: {run: test}}
"""


def checkpoint(old: bool) -> bytes:
    buffer = io.BytesIO()
    torch.save(good_checkpoint(), buffer, _use_new_zipfile_serialization=not old)
    return buffer.getvalue()


def config() -> bytes:
    hparams = {key: value for key, value in good_checkpoint()["hyper_parameters"].items() if not key.startswith("_")}
    return json.dumps({"class_path": MODEL, "init_args": hparams}).encode()


def state() -> bytes:
    return save({key: value.clone() for key, value in good_checkpoint()["state_dict"].items()})


def read_picture(data: bytes, folder: Path) -> None:
    read_or_refuse(data, ImageOptions("auto" if len(data) % 2 else None, None, None, None))


def read_or_refuse(data: bytes, options: ImageOptions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about damaged metadata
        try:
            image = read_image(data, options, name="fuzz")
        except IDCError as error:
            assert "fuzz" in str(error) and len(str(error)) < 1000
            return
    assert image.dtype == torch.uint8 and image.ndim == 3 and min(image.shape) > 0


def read_checkpoint_file(data: bytes, folder: Path) -> None:
    path = folder / "last.ckpt"
    path.write_bytes(data)
    newest_checkpoint(folder, lambda message: None)
    try:
        load_captioner(path)
    except IDCError as error:
        assert "last.ckpt" in str(error) or "the checkpoint" in str(error)


def read_model_folder(folder: Path, config_file: bytes, weights_file: bytes) -> None:
    (folder / "config.json").write_bytes(config_file)
    (folder / "model.safetensors").write_bytes(weights_file)
    try:
        load_captioner(folder)
    except IDCError as error:
        assert str(error)


def read_recipe(data: bytes, folder: Path) -> None:
    (folder / "x.yaml").write_bytes(data)
    each_reader(folder / "x.yaml")


FILES: dict[str, tuple[Callable[[], bytes], Callable[[bytes, Path], None]]] = {
    **{name: (lambda data=data: data, read_picture) for name, data in pictures().items()},
    "checkpoint": (lambda: checkpoint(old=False), read_checkpoint_file),
    "checkpoint before zip": (lambda: checkpoint(old=True), read_checkpoint_file),
    "config of a folder": (config, lambda data, folder: read_model_folder(folder, data, state())),
    "safetensors of a folder": (state, lambda data, folder: read_model_folder(folder, config(), data)),
    "recipe": (RECIPE.encode, read_recipe),
}


@cache
def good_file(name: str) -> bytes:
    return FILES[name][0]()


@pytest.mark.parametrize("name", FILES)
@given(changes=CHANGES, start=st.booleans())
@example(changes=[("flip", 0.59375, 0)], start=False)
@example(changes=[("remove", 0.75, 4), ("flip", 0.59375, 0)], start=False)
@example(changes=[("repeat", 0.03125, 118)], start=False)
@example(changes=[("repeat", 0.0, 78)], start=False)
@example(changes=[("repeat", 0.25, 32)], start=False)
@example(changes=[("insert", 0.25, 0)], start=False)
@QUICK
def test_damaged_files(name: str, changes: list[Any], start: bool, tmp_path: Path) -> None:
    FILES[name][1](changed(good_file(name), changes, 2000 if start else None), tmp_path)


@given(
    start=st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0", b"P6 ", b"RIFF"]),
    rest=st.binary(max_size=120),
)
@QUICK
def test_images_of_any_bytes(start: bytes, rest: bytes) -> None:
    read_or_refuse(start + rest, ImageOptions("auto", "all", 0, 0.0))


# ---- YAML and command lines ------------------------------------------------------------------------------

FRAGMENTS = (
    *("a", "recipe", "base", "stages", "defaults", "matrix", "callbacks", "run", "fit", "class", "model", "class_path"),
    *(": ", ":", "\n", "\n  ", "\n    ", "- ", "\n- ", "{", "}", "[", "]", ", ", "&x ", "*x", "<<: *x", "? ", "| "),
    *("!!python/object:os.system ", "!!binary ", "!!set ", "!x ", "%YAML 1.1\n", "---\n", "...", "'", '"', "#", "\t"),
    *("${a}", "${", "${env:HOME}", "${run_dir}", "${stages.x.best}", "${base.a}", "1e3", "0x1f", "1_0", "0o7", ".nan"),
    *("~", "null", "true", "2024-01-01", "1:30", "5", "-1", "é", "\\", "\x00", "\ufeff", "=", "@", "`"),
)
YAMLS = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join) | st.text(max_size=30)
WORDS = st.sampled_from(["--a", "--a.b", "--a+", "--", "-c", "--a=", "=", "--a.0", "x"]) | YAMLS


def each_reader(path: Path) -> None:
    for reader in (read_yaml, load, lambda file: gather(["--config", str(file)])):
        try:
            reader(path)
        except IDCError as error:
            assert str(error)


@pytest.mark.slow
@given(text=YAMLS)
@example(text="a: &x [*x]\n")
@example(text="a: &x {b: *x}\n")
@example(text="5: 1\n")
@example(text="{" * 5000)
@example(text="[" * 5000)
@example(text="a: &x {b: 1}\nc: {<<: *x}\n")
@example(text="a: {<<: 5}\n")
@example(text="? [a, b]\n: 1\n")
@example(text="? {a: b}\n: 1\n")
@example(text="a: 2024-13-45\n")
@example(text="a: !!binary x\n")
@example(text="'1e3'")
@QUICK
def test_yaml_of_any_shape(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    each_reader(tmp_path / "x.yaml")


@given(words=st.lists(WORDS, max_size=5))
@example(words=["--a.", "1"])
@example(words=["--.", "1"])
@example(words=["--a", "1", "--a.b", "2"])
@example(words=["--a", "--a+"])
@example(words=["--a+", "--a.b"])
@example(words=["--a+", "[[1]]", "--a.b", "1"])
@example(words=["--a+", "[1]", "--a.0.b", "1"])
@example(words=["--a+", "[[1]]", "--a.0.0.b", "1"])
@example(words=["--a", "x", "--a+", "1"])
@example(words=["--model.init_args", "x", "--model.init_args+", "1"])
@QUICK
def test_command_lines_of_any_words(words: list[str]) -> None:
    for reader in (parse_overrides, lambda given: gather([word for word in given if word not in ("-c", "--config")])):
        try:
            reader(list(words))
        except IDCError as error:
            assert str(error)
    for word in words:
        try:
            parse_value(word)
        except IDCError as error:
            assert str(error)
