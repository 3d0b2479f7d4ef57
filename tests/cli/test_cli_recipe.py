"""Reading, merging and overriding recipes; the oracles are the rules in the docstring of cli/recipe.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lightning_idc.cli.configuration import merge, parse_overrides, parse_value, set_key
from lightning_idc.cli.recipe import Recipe, choices, load, override, resolve
from lightning_idc.utils.errors import ConfigError, PairError

TWO = """
recipe: {title: Toy, minutes: 1, smoke: {data.items: 4}}
base:
  trainer: {max_epochs: 1, logger: false, callbacks: [{class_path: a.A}]}
  data: {class_path: toy_idc.Numbers, init_args: {items: 8}}
stages:
  - name: first
    run: fit
    config: {model: {class_path: toy_idc.Toy}, trainer: {callbacks+: [{class_path: b.B}]}}
  - name: second
    run: fit
    config: {model: {class_path: toy_idc.Other, init_args: {width: 3}}, ckpt_path: "${stages.first.best}"}
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


def test_merging_another_class_does_not_keep_the_arguments_of_the_first() -> None:
    base = {"model": {"class_path": "a.A", "init_args": {"x": 1}}}
    assert merge(base, {"model": {"init_args": {"y": 2}}})["model"]["init_args"] == {"x": 1, "y": 2}
    assert merge(base, {"model": {"class_path": "b.B"}})["model"] == {"class_path": "b.B"}
    assert base == {"model": {"class_path": "a.A", "init_args": {"x": 1}}}, "merging must leave its inputs alone"


def test_plus_without_a_list_before_makes_one_at_any_depth() -> None:
    assert merge({}, {"trainer": {"callbacks+": [1]}}) == {"trainer": {"callbacks": [1]}}
    assert merge({"logger": False}, {"logger+": ["CSVLogger"]}) == {"logger": ["CSVLogger"]}, "false stands for none"


@pytest.mark.parametrize(
    ("base", "over", "says"),
    [
        ({"a": True}, {"a+": 1}, "a\\+ adds to a list, found True"),
        ({"a": "abc"}, {"a+": 1}, "a\\+ adds to a list, found 'abc'"),
        ({"a": {"b": 1}}, {"a+": 1}, "a\\+ adds to a list, found {'b': 1}"),
        ({"init_args": "x"}, {"init_args+": {"b": 1}}, "init_args\\+ adds to keys with values, found 'x'"),
        ({"init_args": {"b": 1}}, {"init_args+": 1}, "init_args\\+ adds to keys with values, found 1"),
    ],
)
def test_plus_after_something_else_is_refused(base: dict[str, Any], over: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        merge(base, over)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("just text", "holds str"),
        ("", "holds nothing"),
        ("base: {}", "expected the keys recipe, base and stages"),
        ("stages: [{name: a, run: fit}]\nstage: 1", "unknown key 'stage'"),
        ("stages: [{name: a, run: train}]", "stage 1 needs name, run (fit, validate, test, predict)"),
        ("stages: [{name: ../a, run: fit}]", "it names a folder"),
        ("stages: [{name: a, run: fit}, {name: a, run: test}]", "different names"),
        ("stages: [{name: a, run: fit, config: 3}]", "expected keys with values under config"),
        ("recipe: {titel: x}\nstages: [{name: a, run: fit}]", "unknown key 'titel'"),
        (
            "stages: [{name: a, run: fit, config: {seed_everything: 1, seed_everything: 2}}]",
            "duplicate key seed_everything in line 1",
        ),
        ("stages: &a [*a]", "recursive aliases are not supported in line 1"),
        ("5: 1\nstages: [{name: a, run: fit}]", "the key 5 is a int; expected text"),
        ("stages: " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("stages: !!python/object:os.system [{name: a}]", "could not determine a constructor for the tag"),
        ("stages: [{name: a}]", "stage a needs run"),
        ("stages: [{name: a, of: b}]", "of names 'b', which no earlier stage trains"),
        ("stages: [{name: a, run: fit}, {name: b, like: aa}]", "like names 'aa'; did you mean 'a'?"),
        ("stages: [{name: a, run: fit}, {name: b, like: b}]", "like names 'b'"),
        ("defaults: [cup]\nstages: [{name: a, run: fit}]", "did you mean 'cpu'?"),
        ("matrix: {data: []}\nstages: [{name: a, run: fit}]", "matrix.data: expected entries"),
        ("matrix: {data: {x: {stages: {b: {}}}}}\nstages: [{name: a, run: fit}]", "there is no stage 'b'"),
        ("matrix: {data: {x: {bse: {}}}}\nstages: [{name: a, run: fit}]", "expected recipe, base and stages"),
        ("stages: [{name: a, run: fit, config: {model: {class_path: ProCpa}}}]", "did you mean 'ProCap'?"),
        ("stages: [{name: a, run: fit, config: {ckpt_path: '${base.x.y}'}}]", "${base.x.y} cannot be filled in"),
        ("stages: [{name: a, run: fit, config: {ckpt_path: '${'}}]", "no viable alternative at input '${'"),
        ("stages: [{name: a, run: fit, config: {ckpt_path: '${stages.b.best}'}}]", "cannot be filled in"),
        ("stages: [{name: a, run: fit, config: {ckpt_path: '${runs_dir}'}}]", "${run_dir}"),
        ("stages: [", "not readable as YAML"),
    ],
)
def test_what_is_no_recipe_is_refused_with_the_reason(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(PairError) as caught:
        recipe(tmp_path, text)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_reference_to_a_test_stage_is_refused(tmp_path: Path) -> None:
    text = "stages: [{name: a, run: test}, {name: b, run: fit, config: {ckpt_path: '${stages.a.best}'}}]"
    with pytest.raises(PairError, match="cannot be filled in"):
        recipe(tmp_path, text)


SHARED = """
base: {trainer: {max_epochs: 1}, data: {class_path: toy_idc.Numbers, init_args: {items: 8}}}
stages:
  - name: first
    run: fit
    config: {model: {class_path: toy_idc.Toy, init_args: {width: 3}}, trainer: {callbacks: [{class_path: a.A}]}}
  - {name: second, like: first, config: {model: {init_args: {pause: 1.0}}, trainer: {callbacks+: [{class_path: b.B}]}}}
  - {name: test, of: second, config: {trainer: {max_epochs: 5}}}
"""


def test_a_stage_may_be_like_another_and_a_test_is_of_one(tmp_path: Path) -> None:
    first, second, test = recipe(tmp_path, SHARED).stages
    assert second.run == "fit" and second.config["model"]["init_args"] == {"width": 3, "pause": 1.0}
    assert second.config["trainer"]["callbacks"] == [{"class_path": "a.A"}, {"class_path": "b.B"}]
    assert first.config["trainer"]["callbacks"] == [{"class_path": "a.A"}]
    assert test.run == "test" and test.config["trainer"] == {"max_epochs": 5}
    assert test.config["model"] == {"class_path": "toy_idc.Toy"} and test.config["ckpt_path"] == "${stages.second.best}"


def test_defaults_lie_under_the_recipe_and_their_stages_run_where_it_names_them(tmp_path: Path) -> None:
    (tmp_path / "_base").mkdir()
    (tmp_path / "_base" / "shared.yaml").write_text("recipe: {title: shared, smoke: {data.items: 1}}\n" + SHARED)
    found = recipe(
        tmp_path,
        """
recipe: {title: own, smoke: {model.width: 1}}
defaults: [shared]
base: {data: {class_path: toy_idc.Other, init_args+: {batch_size: 2}}}
stages: [{name: third, like: first}, {name: test, of: third}]
""",
    )
    assert found.about == {"title": "own", "smoke": {"data.items": 1, "model.width": 1}}
    assert [stage.name for stage in found.stages] == ["third", "test"], "the others are only a source"
    kept = {"class_path": "toy_idc.Other", "init_args": {"items": 8, "batch_size": 2}}
    assert [stage.config["data"] for stage in found.stages] == [kept, kept]


def test_an_entry_of_the_matrix_changes_the_recipe(tmp_path: Path) -> None:
    text = """
matrix:
  data:
    few: {base: {data: {init_args: {items: 2}}}}
    none: {stages: {test: null}}
  width: {small: {}, wide: {stages: {first: {config: {model: {init_args: {width: 9}}}}}}}
"""
    path = recipe(tmp_path, SHARED + text).path
    assert [tuple(choice.values()) for choice in choices(path, {"width": "wide"})] == [
        ("few", "wide"),
        ("none", "wide"),
    ]
    assert len(choices(path, {})) == 4
    found = load(path, {"data": "none", "width": "wide"})
    assert [stage.name for stage in found.stages] == ["first", "second"]
    assert [stage.config["model"]["init_args"]["width"] for stage in found.stages] == [9, 9]
    assert [stage.config["data"]["init_args"]["items"] for stage in load(path).stages] == [2, 2, 2]
    for wrong, says in (({"dta": "few"}, "did you mean 'data'?"), ({"data": "fwe"}, "did you mean 'few'?")):
        with pytest.raises(PairError) as caught:
            choices(path, wrong)
        assert says in str(caught.value)


def test_entries_of_a_matrix_may_be_called_numbers_and_switches(tmp_path: Path) -> None:
    """YAML reads them as such, and the command line, messages and folders have their text."""
    text = """
matrix:
  width: {8: {}, 16: {stages: {first: {config: {model: {init_args: {width: 16}}}}}}}
  rate: {0.5: {}, off: {stages: {test: null}}}
"""
    path = recipe(tmp_path, SHARED + text).path
    assert next(tuple(choice.values()) for choice in choices(path, {})) == ("8", "0.5")
    chosen = choices(
        path, {name: str(value) for name, value in parse_overrides(["--width", "16", "--rate", "off"]).items()}
    )
    assert len(chosen) == 1
    found = load(path, chosen[0])
    assert [stage.name for stage in found.stages] == ["first", "second"]
    assert [stage.config["model"]["init_args"]["width"] for stage in found.stages] == [16, 16]
    with pytest.raises(ConfigError, match=r"no entry '15'; did you mean '16'"):
        choices(path, {"width": "15"})


def test_a_value_may_name_another_and_yaml_may_merge(tmp_path: Path) -> None:
    text = """
base: {data: {class_path: toy_idc.Numbers, init_args: &sizes {items: 8, batch_size: 4}}}
stages:
  - name: first
    run: fit
    config: {data: {init_args: {<<: *sizes, items: 3}}, model: {init_args: {n: "${base.data.init_args.items}"}}}
"""
    config = recipe(tmp_path, text).stages[0].config
    assert config["data"]["init_args"] == {"items": 3, "batch_size": 4} and config["model"]["init_args"]["n"] == 8


def test_names_of_before_are_still_read(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning, match="smallest is called smoke now"):
        found = recipe(tmp_path, TWO.replace("smoke", "smallest"))
    assert found.about["smoke"] == {"data.items": 4}


def test_references_are_filled_in_everywhere_and_anywhere_in_a_text() -> None:
    value = {"a": ["${stages.x.best}"], "b": "${run_dir}/pictures", "c": 3}
    assert resolve(value, Path("/r"), {"x": "/r/x.ckpt"}) == {"a": ["/r/x.ckpt"], "b": "/r/pictures", "c": 3}
    with pytest.raises(PairError, match="left no checkpoint"):
        resolve("${stages.x.best}", Path("/r"), {"x": ""})


@pytest.mark.parametrize("text", ["1e-3", "1.0e-3", "1E-3", "0.001", "+1e-3"])
def test_a_number_with_an_exponent_is_a_number(text: str) -> None:
    assert parse_value(text) == 0.001  # YAML 1.1 reads 1e-3 as text, a trap in every learning rate


def test_overrides_are_read_as_yaml() -> None:
    found = parse_overrides(["--a.b", "3", "--c=[1, 2]", "--d", "-1", "--e=", "--f", "x=y"])
    assert found == {"a.b": 3, "c": [1, 2], "d": -1, "e": None, "f": "x=y"}
    for wrong in (["a"], ["--a"], ["--a", "--b", "1"], ["--a", "[1"]):
        with pytest.raises(PairError):
            parse_overrides(wrong)


def test_setting_a_key_finds_its_way_through_classes_and_lists() -> None:
    config: dict[str, Any] = {"class_path": "a.A", "init_args": {"optimizer": {"class_path": "b.B"}}}
    set_key(config, ["optimizer", "lr"], 1)
    set_key(config, ["init_args", "width"], 2)
    assert config["init_args"] == {"optimizer": {"class_path": "b.B", "init_args": {"lr": 1}}, "width": 2}
    several: dict[str, Any] = {"callbacks": [{"class_path": "c.C"}, 3]}
    set_key(several, ["callbacks", "0", "every"], 4)
    assert several["callbacks"][0]["init_args"] == {"every": 4}
    with pytest.raises(PairError, match="not an index of a list of 2"):
        set_key(several, ["callbacks", "2", "every"], 4)


def test_an_override_goes_to_the_stages_whose_class_has_it(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    override(found, {"model.fail_at": 5, "data.items": 4, "trainer.max_epochs": 7, "stages.second.model.width": 9})
    first, second = (stage.config for stage in found.stages)
    assert first["model"]["init_args"] == {"fail_at": 5} and second["model"]["init_args"] == {"width": 9}
    assert [c["data"]["init_args"]["items"] for c in (first, second)] == [4, 4]
    assert [c["trainer"]["max_epochs"] for c in (first, second)] == [7, 7]


def test_an_argument_of_a_parent_behind_kwargs_can_be_overridden(tmp_path: Path) -> None:
    found = recipe(tmp_path)
    override(found, {"model.width": 6})  # Toy takes it as **kwargs for Base
    assert [stage.config["model"]["init_args"]["width"] for stage in found.stages] == [6, 6]


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
    with pytest.raises(PairError) as caught:
        override(recipe(tmp_path), {key: 1})
    assert says in str(caught.value) and f"--{key}" in str(caught.value)
