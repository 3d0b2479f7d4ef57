"""Every numeric argument of a public class has its bounds in its type, and every bound is also checked in Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from helpers.sources import PACKAGE, trees

from lightning_idc.utils import bounds
from lightning_idc.utils.lazy import public_names

BOUNDS = {name for name, kind in vars(bounds).items() if isinstance(kind, type) and issubclass(kind, bounds.Bounded)}
SEEDS = {"seed", "data_seed", "noise_seed"}
RESULTS = {"Answer", "Caption", "Difference", "Interval", "Protocol", "Scores", "Table", "TrainingStep"}
"""Public classes that the library creates and users only read."""
NO_BOUND = {
    "AdversarialRetriever": {"temperature"},  # may be infinite: the retriever then chooses uniformly
    "BertAdam": {"max_grad_norm"},  # -1 means no limit
    "FromData": {"error_margins"},
    "MDP": {"layers"},  # indices, which may count from the end
    "MDPAdapter": {"layers"},
    "NAMC": {"stage"},
    "NearestPrototype": {"min_similarity"},  # a cosine similarity
    "PairDataModule": {"fill_nan"},
    "RewardMined": {"max_reward"},
    "SimilarPairs": {"gamma", "alpha", "beta"},
    "StatefulEncoder": {"layers"},  # ascending, up to the depth of the tower, which is known only later
    "StatefulEncoderAdapter": {"layers"},
    "TimmGrid": {"stage"},
    "WeightedRewards": {"weights"},  # a negative weight is a penalty
    "EraseObjects": {"max_similarity", "confidence", "overlap"},  # on the scale of a model's scores
    "RemovedObjects": {"present", "absent"},
    "SamSegmenter": {"confidence", "stability"},
    "GridBackbone": {"mean", "std"},
}
"""Numbers for which any value can make sense."""
CHECKED_BY_HAND = {
    "FrameInterpolator": {"frames"},  # 1, 3, 7, ...
    "LogarithmicWarmup": {"warmup", "steps", "start"},
    "PairDataModule": {"page"},
    "PasteEdits": {"scale"},
    "WarmupHold": {"warmup", "start"},
}
STILL_BY_HAND: dict[str, set[str]] = {
    "Addon": {"weight"},
    "AddonCallback": {"weight"},
    "AdversarialRetriever": {"weight"},
    "MaskedReconstruction": {"weight"},
    "NoiseMasking": {"weight"},
    "PreferenceOptimization": {"weight"},
}
"""Classes that still check their numbers by hand; never add to this."""


def public_classes() -> Iterator[ast.ClassDef]:
    """Yield the definition of each public class once."""
    seen = set()
    for stub in sorted(PACKAGE.rglob("__init__.pyi")):
        for module, name in public_names(stub).values():
            file = PACKAGE.parent / f"{module.replace('.', '/')}.py"
            if (file, name) in seen or not file.exists():
                continue
            seen.add((file, name))
            for node in trees()[file].body:
                if isinstance(node, ast.ClassDef) and node.name == name:
                    yield node


def arguments_of(function: ast.FunctionDef) -> list[tuple[str, ast.expr | None]]:
    return [(argument.arg, argument.annotation) for argument in (*function.args.args, *function.args.kwonlyargs)]


def arguments_of_class(node: ast.ClassDef) -> list[tuple[str, ast.expr | None]]:
    """Arguments of the constructor, or fields of a dataclass."""
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and member.name == "__init__":
            return arguments_of(member)
    if not any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        return []
    return [
        (ast.unparse(member.target), member.annotation) for member in node.body if isinstance(member, ast.AnnAssign)
    ]


def names_in(annotation: ast.expr | None) -> set[str]:
    nodes = ast.walk(annotation) if annotation is not None else ()
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def test_numbers_of_public_classes_have_bounds() -> None:
    free: dict[str, set[str]] = {}
    for node in public_classes():
        for name, annotation in arguments_of_class(node):
            if names_in(annotation) & {"int", "float"} and name not in SEEDS and node.name not in RESULTS:
                free.setdefault(node.name, set()).add(name)
    listed: dict[str, set[str]] = {}
    for table in (NO_BOUND, CHECKED_BY_HAND, STILL_BY_HAND):
        for kind, names in table.items():
            listed.setdefault(kind, set()).update(names)
    assert free == listed


def unchecked(tree: ast.Module) -> Iterator[str]:
    """Names of the functions and dataclasses of a module that declare bounds and do not check them."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    for node in classes:
        fields = [member.annotation for member in node.body if isinstance(member, ast.AnnAssign)]
        if any(names_in(field) & BOUNDS for field in fields) and "check_fields(self)" not in ast.unparse(node):
            yield node.name
    for node in (tree, *classes):
        prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        for function in (member for member in node.body if isinstance(member, ast.FunctionDef)):
            if any(names_in(annotation) & BOUNDS for _, annotation in arguments_of(function)):
                first = function.body[1 if ast.get_docstring(function) else 0]
                if ast.unparse(first) != f"check_arguments({prefix}{function.name}, locals())":
                    yield prefix + function.name


def test_bounds_are_checked_in_python() -> None:
    assert {
        str(file.relative_to(PACKAGE)): names for file, tree in trees().items() if (names := [*unchecked(tree)])
    } == {}
