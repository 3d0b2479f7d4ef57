"""Reading, merging and overriding recipes; the oracles are the rules in the docstring of cli/recipes/compose.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_idc.cli.configuration import merge as append
from lightning_idc.cli.configuration import parse_overrides, parse_value, set_key
from lightning_idc.cli.recipes import classes, entries
from lightning_idc.cli.recipes.classes import merge
from lightning_idc.cli.recipes.compose import Recipe, about, choices, load, resolve
from lightning_idc.cli.recipes.overrides import check_recipe, override
from lightning_idc.utils.errors import ConfigError

TWO = """
recipe: {title: Toy, minutes: 1, smoke: {data.items: 4}}
base:
  trainer: {max_epochs: 1, logger: false, callbacks: {a.A: {}}}
  data: {class: toy_idc.Numbers, items: 8}
stages:
  first: {run: fit, model: {class: toy_idc.Toy}, trainer: {callbacks: {b.B: {}}}}
  second: {run: fit, model: {class: toy_idc.Other, width: 3}, ckpt_path: "${stages.first.best}"}
"""


def recipe(tmp_path: Path, text: str = TWO) -> Recipe:
    path = tmp_path / "toy.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path)


def test_a_stage_is_the_base_with_its_own_keys_merged_over_it(tmp_path: Path) -> None:
    first, second = recipe(tmp_path).stages
    assert first.config["trainer"] == {
        "max_epochs": 1,
        "logger": False,
        "callbacks": [{"class_path": "a.A"}, {"class_path": "b.B"}],
    }
    assert second.config["trainer"]["callbacks"] == [{"class_path": "a.A"}], "one stage must not change another"


def test_another_class_keeps_the_arguments_that_it_has() -> None:
    base = {"model": {"class": "toy_idc.Toy", "width": 1, "fail_at": 2}}
    assert merge(base, {"model": {"width": 3}})["model"] == {"class": "toy_idc.Toy", "width": 3, "fail_at": 2}
    assert merge(base, {"model": {"class": "toy_idc.Other"}})["model"] == {"class": "toy_idc.Other", "width": 1}
    assert base == {"model": {"class": "toy_idc.Toy", "width": 1, "fail_at": 2}}, "merging leaves its inputs alone"


def test_plus_on_the_command_line_makes_a_list_at_any_depth() -> None:
    assert append({}, {"trainer": {"callbacks+": [1]}}) == {"trainer": {"callbacks": [1]}}
    assert append({"logger": False}, {"logger+": ["CSVLogger"]}) == {"logger": ["CSVLogger"]}, "false is an empty list"
    assert append({"others": {"SFT": "a"}}, {"others": {"SFT+": "b"}}) == {"others": {"SFT": "a", "SFT+": "b"}}


@pytest.mark.parametrize("value", [True, "abc"])
def test_plus_after_something_else_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"logger\\+ adds to a list, found {value!r}"):
        append({"logger": value}, {"logger+": 1})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just text", "contains str"),
        ("", "contains nothing"),
        ("base: {}", "expected the keys recipe, base and stages"),
        ("stages: {a: {run: fit}}\nstage: 1", "unknown key 'stage'"),
        ("stages: {a: {run: train}}", "stage a: expected run (fit, validate, test, predict)"),
        ("stages: {../a: {run: fit}}", "it names a folder"),
        ("stages: {a: {run: fit}, a: {run: test}}", "duplicate key a"),
        ("stages: {a: 3}", "stage a: expected run"),
        ("recipe: {titel: x}\nstages: {a: {run: fit}}", "unknown key 'titel'"),
        ("stages: {a: {seed_everything: 1, seed_everything: 2}}", "duplicate key seed_everything in line 1"),
        ("stages: [{name: a, run: fit}]", "expected keys with values under stages"),
        ("stages: {a: {run: fit, trainer: {callbacks: [{class: LogPairs}]}}}", "as in LogPairs: {}; found a list"),
        ("stages: {a: {run: fit, trainer: {callbacks: {LogPairs: 3}}}}", "callbacks.LogPairs: expected options"),
        ("stages: {a: {run: fit, model: {class_path: ProCap}}}", "expected `class: ProCap` with its arguments"),
        ("stages: &a [*a]", "recursive aliases are not supported in line 1"),
        ("5: 1\nstages: {a: {run: fit}}", "the key 5 is a int; expected text"),
        ("stages: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("stages: !!python/object:os.system {a: {}}", "could not determine a constructor for the tag"),
        ("stages: {a: {}}", "stage a needs run"),
        ("stages: {a: {of: b}}", "of names 'b', which no earlier stage trains"),
        ("stages: {a: {run: fit}, b: {like: aa}}", "like names 'aa'; did you mean 'a'?"),
        ("stages: {a: {run: fit}, b: {like: b}}", "like names 'b'"),
        ("defaults: [cup]\nstages: {a: {run: fit}}", "did you mean 'cpu'?"),
        ("matrix: {data: []}\nstages: {a: {run: fit}}", "matrix.data: expected entries"),
        ("matrix: {data: {x: {stages: {b: {}}}}}\nstages: {a: {run: fit}}", "there is no stage 'b'"),
        ("matrix: {data: {x: {bse: {}}}}\nstages: {a: {run: fit}}", "expected recipe, base and stages"),
        ("stages: {a: {run: fit, model: {class: ProCpa}}}", "did you mean 'ProCap'?"),
        ("stages: {a: {run: fit, ckpt_path: '${base.x.y}'}}", "base.x.y"),
        ("stages: {a: {run: fit, ckpt_path: '${'}}", "no viable alternative at input '${'"),
        ("stages: {a: {run: fit, ckpt_path: '${stages.b.best}'}}", "stages.b"),
        ("stages: {a: {run: fit, ckpt_path: '${runs_dir}'}}", "here there are ${run_dir}"),
        ("stages: [", "not readable as YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(tmp_path, text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_reference_to_a_test_stage_is_refused(tmp_path: Path) -> None:
    text = "stages: {a: {run: test}, b: {run: fit, ckpt_path: '${stages.a.best}'}}"
    with pytest.raises(ConfigError, match=r"stages\.a"):
        recipe(tmp_path, text)


SHARED = """
base: {trainer: {max_epochs: 1}, data: {class: toy_idc.Numbers, items: 8}}
stages:
  first: {run: fit, model: {class: toy_idc.Toy, width: 3}, trainer: {callbacks: {a.A: {}, c.C: {}}}}
  second: {like: first, model: {pause: 1.0}, trainer: {callbacks: {b.B: {every: 2}, c.C: null}}}
  test: {of: second, trainer: {max_epochs: 5}}
"""


def test_a_stage_may_be_like_another_and_a_test_is_of_one(tmp_path: Path) -> None:
    first, second, test = recipe(tmp_path, SHARED).stages
    assert second.run == "fit" and second.config["model"]["init_args"] == {"width": 3, "pause": 1.0}
    added = {"class_path": "b.B", "init_args": {"every": 2}}
    assert second.config["trainer"]["callbacks"] == [{"class_path": "a.A"}, added]
    assert first.config["trainer"]["callbacks"] == [{"class_path": "a.A"}, {"class_path": "c.C"}]
    assert test.run == "test" and test.config["trainer"] == {"max_epochs": 5}
    assert test.config["model"] == {"class_path": "toy_idc.Toy"} and test.config["ckpt_path"] == "${stages.second.best}"


def test_defaults_lie_under_the_recipe_and_their_stages_run_where_it_names_them(tmp_path: Path) -> None:
    (tmp_path / "_base").mkdir()
    (tmp_path / "_base" / "shared.yaml").write_text("recipe: {title: shared, smoke: {data.items: 1}}\n" + SHARED)
    result = recipe(
        tmp_path,
        """
recipe: {title: own, smoke: {model.width: 1}}
defaults: [shared]
base: {data: {class: toy_idc.Numbers, batch_size: 2}}
stages: {third: {like: first}, test: {of: third}}
""",
    )
    assert result.about == {"title": "own", "smoke": {"data.items": 1, "model.width": 1}}
    assert [stage.name for stage in result.stages] == ["third", "test"], "the others are only a source"
    numbers = {"class_path": "toy_idc.Numbers", "init_args": {"items": 8, "batch_size": 2}}
    assert [stage.config["data"] for stage in result.stages] == [numbers, numbers]


def test_an_entry_of_the_matrix_changes_the_recipe(tmp_path: Path) -> None:
    text = """
matrix:
  data:
    few: {base: {data: {items: 2}}}
    none: {stages: {test: null}}
  width: {small: {}, wide: {stages: {first: {model: {width: 9}}}}}
"""
    path = recipe(tmp_path, SHARED + text).path
    assert [tuple(choice.values()) for choice in choices(path, {"width": "wide"})] == [
        ("few", "wide"),
        ("none", "wide"),
    ]
    assert len(choices(path, {})) == 4
    result = load(path, {"data": "none", "width": "wide"})
    assert [stage.name for stage in result.stages] == ["first", "second"]
    assert [stage.config["model"]["init_args"]["width"] for stage in result.stages] == [9, 9]
    assert [stage.config["data"]["init_args"]["items"] for stage in load(path).stages] == [2, 2, 2]
    for wrong, says in (({"dta": "few"}, "did you mean 'data'?"), ({"data": "fwe"}, "did you mean 'few'?")):
        with pytest.raises(ConfigError) as caught:
            choices(path, wrong)
        assert says in str(caught.value)


def test_entries_of_a_matrix_may_be_called_numbers_and_switches(tmp_path: Path) -> None:
    """YAML parses such names as numbers or booleans; the command line, messages and folders use their text."""
    text = """
matrix:
  width: {8: {}, 16: {stages: {first: {model: {width: 16}}}}}
  rate: {0.5: {}, off: {stages: {test: null}}}
"""
    path = recipe(tmp_path, SHARED + text).path
    assert next(tuple(choice.values()) for choice in choices(path, {})) == ("8", "0.5")
    chosen = choices(
        path, {name: str(value) for name, value in parse_overrides(["--width", "16", "--rate", "off"]).items()}
    )
    assert len(chosen) == 1
    result = load(path, chosen[0])
    assert [stage.name for stage in result.stages] == ["first", "second"]
    assert [stage.config["model"]["init_args"]["width"] for stage in result.stages] == [16, 16]
    with pytest.raises(ConfigError, match=r"no entry '15'; did you mean '16'"):
        choices(path, {"width": "15"})


def test_a_value_may_name_another_and_yaml_may_merge(tmp_path: Path) -> None:
    text = """
base: {data: &sizes {class: toy_idc.Numbers, items: 8, batch_size: 4}}
stages:
  first: {run: fit, data: {<<: *sizes, items: 3}, model: {class: toy_idc.Toy, n: "${base.data.items}"}}
"""
    config = recipe(tmp_path, text).stages[0].config
    assert config["data"]["init_args"] == {"items": 3, "batch_size": 4} and config["model"]["init_args"]["n"] == 8


def test_references_are_filled_in_everywhere_and_anywhere_in_a_text() -> None:
    value = {"a": ["${stages.x.best}"], "b": "${run_dir}/pictures", "c": 3}
    assert resolve(value, Path("/r"), {"x": "/r/x.ckpt"}) == {"a": ["/r/x.ckpt"], "b": "/r/pictures", "c": 3}
    with pytest.raises(ConfigError, match="saves no checkpoint"):
        resolve("${stages.x.best}", Path("/r"), {"x": ""})


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "1E-3", "0.001", "+1e-3"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    assert parse_value(text) == 0.001  # YAML 1.1 parses 1e-3 as text, a trap for learning rates


def test_overrides_are_read_as_yaml() -> None:
    result = parse_overrides(["--a.b", "3", "--c=[1, 2]", "--d", "-1", "--e=", "--f", "x=y"])
    assert result == {"a.b": 3, "c": [1, 2], "d": -1, "e": None, "f": "x=y"}
    for wrong in (["a"], ["--a"], ["--a", "--b", "1"], ["--a", "[1"]):
        with pytest.raises(ConfigError):
            parse_overrides(wrong)


def test_a_key_of_a_configuration_leads_through_classes_and_lists() -> None:
    config: dict[str, Any] = {"class_path": "a.A", "init_args": {"optimizer": {"class_path": "b.B"}}}
    set_key(config, ["optimizer", "lr"], 1)
    set_key(config, ["init_args", "width"], 2)
    assert config["init_args"] == {"optimizer": {"class_path": "b.B", "init_args": {"lr": 1}}, "width": 2}
    several: dict[str, Any] = {"callbacks": [{"class_path": "c.C"}, 3]}
    set_key(several, ["callbacks", "0", "every"], 4)
    assert several["callbacks"][0]["init_args"] == {"every": 4}
    with pytest.raises(ConfigError, match="not an index of a list of 2"):
        set_key(several, ["callbacks", "2", "every"], 4)


def test_a_key_of_a_recipe_leads_through_classes_and_lists() -> None:
    options: dict[str, Any] = {"class": "a.A", "optimizer": "AdamW", "steps": [{"class": "b.B"}, 3]}
    classes.set_key(options, ["init_args", "optimizer", "init_args", "lr"], 1)
    classes.set_key(options, ["steps", "0", "every"], 4)
    classes.set_key(options, ["schedule", "warmup"], 0.1)
    assert options["optimizer"] == {"class": "AdamW", "lr": 1} and options["schedule"] == {"warmup": 0.1}
    assert options["steps"] == [{"class": "b.B", "every": 4}, 3]
    with pytest.raises(ConfigError, match="'2' is not a key of a list of 2"):
        classes.set_key(options, ["steps", "2", "every"], 4)


def test_an_override_goes_to_the_stages_whose_class_has_it(tmp_path: Path) -> None:
    result = recipe(tmp_path)
    override(result, {"model.fail_at": 5, "data.items": 4, "trainer.max_epochs": 7, "stages.second.model.width": 9})
    first, second = (stage.config for stage in result.stages)
    assert first["model"]["init_args"] == {"fail_at": 5} and second["model"]["init_args"] == {"width": 9}
    assert [c["data"]["init_args"]["items"] for c in (first, second)] == [4, 4]
    assert [c["trainer"]["max_epochs"] for c in (first, second)] == [7, 7]


def test_an_argument_of_a_parent_behind_kwargs_can_be_overridden(tmp_path: Path) -> None:
    result = recipe(tmp_path)
    override(result, {"model.width": 6})  # Toy takes it as **kwargs for Base
    assert [stage.config["model"]["init_args"]["width"] for stage in result.stages] == [6, 6]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("model.widht", "did you mean 'width'"),
        ("data.item", "did you mean 'items'"),
        ("stages.frist.trainer.max_epochs", "did you mean 'first'"),
        ("stages.first", "no such stage"),
        ("trianer.max_epochs", "did you mean 'trainer'"),
        ("optimizer.lr", "put it under model.init_args"),
    ],
)
def test_an_unknown_override_is_refused_with_the_nearest_key(tmp_path: Path, key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(recipe(tmp_path), {key: 1})
    assert says in str(caught.value) and f"--{key}" in str(caught.value)


def test_what_a_recipe_is_about_is_known_without_its_classes(tmp_path: Path) -> None:
    """The metadata names the modules to import, which may define the recipe's classes."""
    (tmp_path / "shared.yaml").write_text("recipe: {import: [mine]}\nbase: {model: Mine}\n")
    path = tmp_path / "toy.yaml"
    path.write_text("recipe: {title: own}\ndefaults: [shared]\nstages: {a: {run: fit}}\n")
    assert about(path) == {"import": ["mine"], "title": "own"}
    with pytest.raises(ConfigError, match="there is no class 'Mine'"):
        load(path)


def test_a_key_that_no_class_of_a_recipe_has_is_refused_with_its_stage(tmp_path: Path) -> None:
    text = TWO.replace("width: 3", "widht: 3").replace("a.A: {}", "LogPairs: {}")
    with pytest.raises(ConfigError, match=r"toy.yaml, stage second: model: Other has no .* did you mean 'width'"):
        check_recipe(recipe(tmp_path, text.replace("b.B: {}", "")))


def test_a_stage_is_another_where_it_or_what_it_reads_of_was_changed(tmp_path: Path) -> None:
    keys = [stage.key for stage in recipe(tmp_path).stages]
    assert [stage.key for stage in recipe(tmp_path, TWO + "# a comment\n").stages] == keys
    second = [stage.key for stage in recipe(tmp_path, TWO.replace("width: 3", "width: 4")).stages]
    assert second[0] == keys[0] and second[1] != keys[1]
    first = recipe(tmp_path, TWO.replace("b.B", "b.C")).stages
    assert first[0].key != keys[0] and first[1].key != keys[1], "it takes the weights of the first"


@pytest.mark.parametrize(
    ("environment", "count"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "PASSIVE"}, None)],
)
def test_how_threads_wait_is_set_unless_the_user_has_set_it(
    environment: dict[str, str], count: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(os, "environ", environment)
    entries._set_waiting_of_threads()
    assert environment.get("GOMP_SPINCOUNT") == count
