"""Each class has one name: bare name, public path and path of the defining module resolve to it."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from lightning_idc.utils import names
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.lazy import public_names
from lightning_idc.utils.names import class_of, full_name, public_name, with_full_names

PUBLIC = sorted(names._public())


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_the_class_of_its_module(name: str) -> None:
    package, path = names._public()[name]
    module, _, original = path.rpartition(".")
    result = getattr(importlib.import_module(module), original)
    assert (
        class_of(name) is class_of(f"{module}.{original}") is getattr(importlib.import_module(package), name) is result
    )
    assert full_name(name) == full_name(f"{module}.{original}") == f"{package}.{name}"
    if isinstance(result, type) and result.__module__ == module:
        assert public_name(result) == f"{package}.{name}"


def test_no_public_name_stands_for_two_classes() -> None:
    root = importlib.import_module("lightning_idc").__path__[0]
    seen: dict[str, tuple[str, str]] = {}
    for package in names.PACKAGES:
        for name, home in public_names(f"{root}/{package.rpartition('.')[2]}/__init__.pyi").items():
            assert seen.setdefault(name, home) == home, f"{name} is {seen[name]} and {home}"


@pytest.mark.parametrize(
    ("given", "full"),
    [
        ("AdamW", "torch.optim.AdamW"),
        ("ModelCheckpoint", "lightning.pytorch.callbacks.ModelCheckpoint"),
        ("WarmupCosine", "lightning_idc.models.schedules.WarmupCosine"),
        ("CSVLogger", "lightning.pytorch.loggers.CSVLogger"),
        ("lightning_idc.data.synthetic.SyntheticPairs", "lightning_idc.data.SyntheticPairs"),
        ("lightning_idc.data.transforms.Flip", "lightning_idc.data.Flip"),
        ("lightning_idc.data.transforms.pairs.Flip", "lightning_idc.data.Flip"),
        ("mine.Captioner", "mine.Captioner"),
    ],
)
def test_paths_lead_to_the_public_name(given: str, full: str) -> None:
    assert full_name(given) == full or full_name(given).endswith(f".{full.rpartition('.')[2]}")
    if not given.startswith("mine"):
        assert class_of(given) is class_of(full)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ProCpa", "did you mean 'ProCap'?"),
        ("AdmW", "did you mean 'AdamW'?"),
        ("Zzzzzz", "--import MODULE"),
        ("lightning_idc.methods.ProCpa", "did you mean 'ProCap'?"),
        ("no_such_module.ProCap", "cannot be imported"),
        ("lightning_idc.__version__", "is a str; expected a class"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        class_of(name)
    assert says in str(caught.value)


def test_names_are_filled_in_at_any_depth_and_nothing_else_is_touched() -> None:
    inputs = {"a": [{"class_path": "ProCap", "init_args": {"b": {"class_path": "AdamW"}}}], "model": "ProCap", "n": 3}
    result = with_full_names(inputs)
    assert result["a"][0]["class_path"] == "lightning_idc.methods.ProCap"
    assert result["a"][0]["init_args"]["b"]["class_path"] == "torch.optim.AdamW"
    assert result["model"] == "ProCap" and inputs["a"][0]["class_path"] == "ProCap"


def test_a_module_of_the_user_may_define_import_and_pass_on_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_defined.py").write_text("class Own:\n    pass\n\n\nclass _Hidden:\n    pass\n")
    imports = (
        "from mine_defined import *\ntry:\n    from mine_defined import Own as Other\nexcept ImportError:\n    pass\n"
    )
    (tmp_path / "mine_passed_on.py").write_text(imports)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(names, "MODULES", [*names.MODULES, "mine_passed_on"])
    assert full_name("Own") == "mine_passed_on.Own" and full_name("Other") == "mine_passed_on.Other"
    assert names.definition("mine_passed_on.Other")[0] == "mine_defined"  # type: ignore[index]
    with pytest.raises(ConfigError):
        full_name("_Hidden")
