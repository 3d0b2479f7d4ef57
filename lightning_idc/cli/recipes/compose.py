"""Composing a recipe: a YAML file of stages, each of which becomes a separate LightningCLI configuration.

    defaults: [cpu, rendered]                        # files of recipes/_base, merged in order; this file wins
    recipe: {title, requirements, expected, minutes, smoke: {dotted key: value}, import: [module]}
    base: {data: {class: SyntheticPairs, train_pairs: 3000}}    # shared by all stages
    stages:
      pretrain_backbone: {}                          # defined in a file of `defaults`
      train: {run: fit, trainer: {...}, model: {class: PairTransformer, width: 96}}    # merged over base
      again: {like: train, trainer: {...}}           # merged over `train`
      test: {of: train}                              # the model and the best checkpoint of `train`
    matrix: {dataset: {levir_cc: {recipe, base, stages}}}    # one entry of each axis is merged over the file

1. `_read` merges a file over its defaults.
2. `load` merges the chosen entries of the matrix over it.
3. `_stage` merges each stage over `base` and over the stage that its `like` names.
4. `resolve` fills in checkpoints of earlier stages.
5. `as_lightning` converts a stage to the format of LightningCLI.

Mappings are merged key by key. A class is written as its name and its arguments, ``{class: AdamW, lr: 1.0e-3}``; if the
class is replaced, arguments that the new class lacks are dropped. ``callbacks`` are options by class name, or by a
label with ``class``; null removes a callback, or a stage in the matrix. A value may refer to another one,
``${base.data.root}``, to the checkpoint of an earlier stage, ``${stages.train.best}``, and to the folder of the run,
``${run_dir}``. A stage without ``of`` and ``ckpt_path`` starts without weights.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_idc.cli.configuration import read_yaml
from lightning_idc.cli.recipes.classes import as_lightning, merge, with_classes
from lightning_idc.cli.recipes.shipped import shipped_folder
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import digest
from lightning_idc.utils.names import nearest

VERBS = ("fit", "validate", "test", "predict")
SECTIONS = ("recipe", "defaults", "base", "stages", "matrix")
ABOUT = ("title", "requirements", "expected", "minutes", "smoke", "import")
_STAGE_KEYS = ("run", "of", "like")


@dataclass
class Stage:
    """One step of a recipe.

    Args:
        name: unique name, also of its folder.
        run: LightningCLI verb.
        options: configuration in the format of recipes.
        key: digest of the stage and of the stages whose results it reads.
    """

    name: str
    run: str
    options: dict[str, Any]
    key: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """Configuration in the format of LightningCLI."""
        return as_lightning(self.options)


@dataclass
class Recipe:
    """A recipe as read from its file.

    Args:
        path: path of the file.
        about: title, requirements, expected, minutes, smoke, import.
        stages: stages in order.
        choice: selected entry of each matrix axis.
    """

    path: Path
    about: dict[str, Any]
    stages: list[Stage]
    choice: dict[str, str] = field(default_factory=dict)


@dataclass
class _Sections:
    """Sections of a recipe file, merged over those of its defaults.

    Args:
        recipe, base, matrix: sections of the file.
        stages: entries of stages by name.
        order: names of the stages to run, in order.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=dict)
    matrix: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def merged(self, over: Mapping[str, Any]) -> _Sections:
        """Copy with other sections merged in; stages that are null there are removed from the order."""
        stages, order = dict(self.stages), self.order
        for name, entry in (over.get("stages") or {}).items():
            if entry is None:
                order = [other for other in order if other != name]
            else:
                stages[name] = merge(stages.get(name, {}), entry)
        return _Sections(
            merge(self.recipe, over.get("recipe") or {}),
            merge(self.base, over.get("base") or {}),
            {**self.matrix, **(over.get("matrix") or {})},
            stages,
            order,
        )


def load(path: Path, choice: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: path of the file.
        choice: selected entries by matrix axis; the first entry for other axes.

    Raises:
        ConfigError: the file is missing or is not a recipe.
    """
    chosen = choices(path, choice or {})[0]
    sections = _read(path)
    if not sections.order:
        raise ConfigError(
            f"{path} is not a recipe: expected the keys recipe, base and stages; see `lightning-idc list recipes`"
        )
    for axis, entry in chosen.items():
        sections = sections.merged(sections.matrix[axis][entry] or {})
    stages: dict[str, Stage] = {}
    for name in sections.order:
        stages[name] = _stage(f"{path}, stage {name}", sections, name, stages)
    trained: list[str] = []
    for name, stage in stages.items():
        where = f"{path}, stage {name}"
        stage.options = with_classes(_filled(stage.options, where, trained, sections.base), where)
        trained += [name] if stage.run == "fit" else []
    _set_keys(list(stages.values()))
    return Recipe(path, sections.recipe, list(stages.values()), chosen)


def about(path: Path) -> dict[str, Any]:
    """Title, requirements and the like of a recipe, without its stages."""
    raw = read_yaml(path)
    below: dict[str, Any] = {}
    for name in raw.get("defaults") or []:
        below = merge(below, about(_default(path, str(name))))
    section = raw.get("recipe") or {}
    if not isinstance(section, dict):
        raise ConfigError(f"{path}: expected keys with values under recipe, found {section!r:.200}")
    return merge(below, section)


def axes(path: Path) -> dict[str, dict[str, Any]]:
    """Axes of the matrix of a recipe, with their entries.

    Raises:
        ConfigError: an axis has no entries, or an entry has unknown sections or stages.
    """
    sections = _read(path)
    for axis, entries in sections.matrix.items():
        if not isinstance(entries, dict) or not entries:
            raise ConfigError(f"{path}: matrix.{axis}: expected entries with the changes of each, found {entries!r}")
        for name, entry in entries.items():
            where = f"{path}: matrix.{axis}.{name}"
            if not isinstance(entry or {}, dict) or set(entry or {}) - {"recipe", "base", "stages"}:
                raise ConfigError(f"{where}: expected recipe, base and stages, found {entry!r:.200}")
            for stage in (entry or {}).get("stages") or {}:
                if stage not in sections.order:
                    raise ConfigError(f"{where}: there is no stage {stage!r}; {nearest(stage, sections.order)}")
    return sections.matrix


def choices(path: Path, chosen: Mapping[str, Any]) -> list[dict[str, str]]:
    """Combinations of matrix entries, one entry per axis; one empty combination without a matrix.

    Args:
        path: recipe file.
        chosen: selected entries by axis; all entries for other axes.

    Raises:
        ConfigError: the recipe does not have an axis or entry.
    """
    matrix = axes(path)
    for axis, entry in chosen.items():
        if axis not in matrix:
            hint = nearest(axis, matrix) if matrix else "it has no matrix"
            raise ConfigError(f"--matrix.{axis}: {path} has no such axis; {hint}")
        if entry not in matrix[axis]:
            raise ConfigError(f"--matrix.{axis}: there is no entry {str(entry)!r}; {nearest(str(entry), matrix[axis])}")
    product = itertools.product(*([chosen[axis]] if axis in chosen else list(matrix[axis]) for axis in matrix))
    return [dict(zip(matrix, entries, strict=True)) for entries in product]


def resolve(config: Any, run_dir: Path, best: Mapping[str, str], where: str = "a stage") -> Any:
    """Copy of a configuration with its references to the run and to earlier stages filled in.

    Args:
        config: configuration of a stage.
        run_dir: folder of the run.
        best: best checkpoint of each trained stage, by name; empty if it saved none.
        where: beginning of a message.

    Raises:
        ConfigError: a referenced stage has no checkpoint.
    """
    stages = {name: {"best": path.replace("${", r"\${")} for name, path in best.items() if path}
    try:
        return _interpolated(config, {"run_dir": str(run_dir), "stages": stages})
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {_one_line(error)}; a stage that saves no checkpoint has no best one") from error


def _read(path: Path) -> _Sections:
    raw = read_yaml(path)
    if unknown := set(raw) - set(SECTIONS):
        raise ConfigError(f"{path}: unknown key {min(unknown)!r}; expected {', '.join(SECTIONS)}")
    for name in ("recipe", "base", "matrix", "stages"):
        if not isinstance(raw.get(name) or {}, dict):
            raise ConfigError(f"{path}: expected keys with values under {name}, found {raw[name]!r:.200}")
    if extra := set(raw.get("recipe") or {}) - set(ABOUT):
        raise ConfigError(f"{path}: unknown key {min(extra)!r} under recipe; expected {', '.join(ABOUT)}")
    below = _Sections()
    for name in raw.get("defaults") or []:
        default = _read(_default(path, str(name)))
        below = below.merged({**vars(default), "order": None})
    stages = {str(name): _checked_entry(path, str(name), entry) for name, entry in (raw.get("stages") or {}).items()}
    # YAML parses names such as 16 and off as numbers and booleans
    matrix = {
        axis: {str(name): with_classes(entry, str(path)) for name, entry in entries.items()}
        if isinstance(entries, dict)
        else entries
        for axis, entries in (raw.get("matrix") or {}).items()
    }
    sections = {"recipe": raw.get("recipe"), "base": with_classes(raw.get("base") or {}, str(path)), "matrix": matrix}
    merged = below.merged({**sections, "stages": stages})
    merged.order = list(stages)
    return merged


def _default(path: Path, name: str) -> Path:
    """File of a name in ``defaults``: in the folder of the recipe, in a ``_base`` folder there or above, or shipped."""
    folders = [path.parent, path.parent / "_base", path.parent.parent / "_base", shipped_folder() / "_base"]
    for folder in folders:
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    names = {file.stem for folder in folders[1:] for file in folder.glob("*.yaml")}
    raise ConfigError(f"{path}: defaults name {name!r}, for which there is no file; {nearest(name, names)}")


def _checked_entry(path: Path, name: str, entry: Any) -> dict[str, Any]:
    """Entry of a stage, with full names of classes."""
    if not isinstance(entry, dict) or ("run" in entry and entry["run"] not in VERBS):
        raise ConfigError(
            f"{path}: stage {name}: expected run ({', '.join(VERBS)}) or of, and a configuration; found {entry!r:.200}"
        )
    if not re.fullmatch(r"\w[\w-]*", name):
        raise ConfigError(f"{path}: stage {name!r}: expected letters, digits, - and _, as it names a folder")
    checked: dict[str, Any] = with_classes(entry, f"{path}, stage {name}")
    return checked


def _inherited(where: str, entries: Mapping[str, Any], name: str, heirs: tuple[str, ...] = ()) -> dict[str, Any]:
    """Entry of a stage merged over the entry of ``like``."""
    entry = entries[name]
    other = entry.get("like")
    if not other:
        return dict(entry)
    if other not in entries or other in (*heirs, name):
        raise ConfigError(f"{where}: like names {other!r}; {nearest(str(other), set(entries) - {*heirs, name})}")
    return merge(_inherited(where, entries, other, (*heirs, name)), entry)


def _stage(where: str, sections: _Sections, name: str, earlier: Mapping[str, Stage]) -> Stage:
    entry = _inherited(where, sections.stages, name)
    options = sections.base
    if of := entry.get("of"):
        trained = {other: stage for other, stage in earlier.items() if stage.run == "fit"}
        if of not in trained:
            raise ConfigError(f"{where}: of names {of!r}, which no earlier stage trains; {nearest(str(of), trained)}")
        model = {"class": (trained[of].options.get("model") or {}).get("class")}
        options = merge(options, {"model": model, "ckpt_path": f"${{stages.{of}.best}}"})
    elif "run" not in entry:
        raise ConfigError(f"{where} needs run ({', '.join(VERBS)}), or of and the name of the stage that it tests")
    stage_options = {key: value for key, value in entry.items() if key not in _STAGE_KEYS}
    return Stage(name, entry.get("run", "test"), merge(options, stage_options))


def _filled(config: dict[str, Any], where: str, trained: Iterable[str], base: dict[str, Any]) -> dict[str, Any]:
    """Configuration with references to values of the recipe filled in, but not those to the run."""
    stages = {name: {"best": rf"\${{stages.{name}.best}}"} for name in trained}
    # OmegaConf takes as long for it as for the configuration itself, and few recipes refer to it
    referred = {"base": base} if "${base" in str(config) else {}
    try:
        filled: dict[str, Any] = _interpolated(config, {"run_dir": r"\${run_dir}", "stages": stages, **referred})
        return filled
    except OmegaConfBaseException as error:
        references = ", ".join(["${run_dir}", *(f"${{stages.{name}.best}}" for name in stages), "${base.KEY}"])
        raise ConfigError(f"{where}: {_one_line(error)}; here there are {references}") from error


def _interpolated(config: Any, values: dict[str, Any]) -> Any:
    return OmegaConf.to_container(OmegaConf.create({**values, "config": config}), resolve=True)["config"]  # type: ignore[call-overload, index]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).removesuffix(" full_key: config")


def _set_keys(stages: list[Stage]) -> None:
    """Set the digest of each stage."""
    for number, stage in enumerate(stages):
        text = json.dumps(stage.options, sort_keys=True, default=str)
        read = [other for other in stages[:number] if _reads(text, other)]
        stage.key = digest(stage.run, text, *(other.key for other in read))


def _reads(text: str, earlier: Stage) -> bool:
    """Whether a configuration uses results of an earlier stage; files of `predict` may be read by any stage."""
    return earlier.run == "predict" or f"stages.{earlier.name}.best}}" in text or f"{{run_dir}}/{earlier.name}/" in text
