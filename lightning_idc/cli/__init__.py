"""The command line: `lightning-idc`, `lightning run recipe.yaml` and `python -m lightning_idc`."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from lightning_idc.utils.process import collect_rarely, leave

VERBS = {
    "run": ("run.run", "run a recipe: lightning-idc run quickstart [--key value ...]"),
    "fit": ("training.run", "train: --config FILE [--key value ...]"),
    "validate": ("training.run", "measure on the validation split"),
    "test": ("training.run", "measure on the test split"),
    "predict": ("pairs.predict", "caption pairs of files, or a split of a data module"),
    "describe": ("describe.describe", "say what changed between two images, and where"),
    "compare": ("pairs.compare", "compare two folders of images: BEFORE AFTER [--fail_on changed]"),
    "score": ("score.score", "score captions of any file: PREDICTIONS [--references FILE] [--protocol NAME]"),
    "data": ("data.COMMANDS", "check, prepare, count or export data sets; verify, refilter, export or push stores"),
    "list": ("listing.list_names", "recipes | models | data | protocols | plugins that are installed"),
    "export": ("export.export", "onnx | torch | hf: a captioner for programs without this library"),
    "convert": ("convert.convert", "convert an official checkpoint: METHOD CHECKPOINT --out OUT"),
    "push": ("export.push", "upload a captioner to the Hugging Face hub"),
    "serve": ("serve.serve", "answer over HTTP, with a page to drop two images on"),
    "mcp": ("mcp.serve_tool", "answer coding agents over stdio (Model Context Protocol)"),
    "leaderboard": ("leaderboard.leaderboard", "one table of many results: FOLDER [--out FILE]"),
    "plan": ("plan.plan", "compute the memory that a recipe takes"),
    "doctor": ("doctor.doctor", "check this installation"),
}
"""For each verb: its function (or functions by sub-verb), imported on use, and a description."""
STAGE_OF_RECIPE = "stage"
"""Internal verb of a running recipe."""
CONFIG_VERBS = ("fit", "validate", "test")
"""Verbs whose arguments are the keys of a LightningCLI configuration."""
OTHER_STATUS = {"compare": 2}
"""Exit status of errors by verb, if it is not 1; for `compare`, 1 means that something changed."""

TRACEBACK = "LIGHTNING_IDC_TRACEBACK"
"""Environment variable that shows tracebacks, like ``--traceback``."""

IMPORTS = "LIGHTNING_IDC_IMPORT"
"""Environment variable with the modules of ``--import``, separated by commas."""


def command() -> NoReturn:
    """The `lightning-idc` script."""
    collect_rarely()
    leave(main())


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader of a pipe, such as `head`, has closed it; Python would raise again when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(argv: list[str]) -> int:
    from lightning_idc import __version__

    if argv[:1] == ["--version"]:
        print(__version__)
        return 0
    if not argv or argv[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if argv[0] not in VERBS and argv[0] != STAGE_OF_RECIPE:
        import difflib

        near = difflib.get_close_matches(argv[0], VERBS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"error: there is no verb {argv[0]!r}{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    if "--traceback" in argv:
        argv = [argument for argument in argv if argument != "--traceback"]
        os.environ[TRACEBACK] = "1"  # also for the processes of stages
    return guarded(lambda: _run_verb(argv), OTHER_STATUS.get(argv[0], 1))


def _is_not_about_enums(record: logging.LogRecord) -> bool:
    return "is an Enum subclass" not in record.getMessage()


def _run_verb(argv: list[str]) -> int:
    # torch warns about torchao, which peft imports; nothing that a user could change
    logging.getLogger("torch.utils._pytree").addFilter(_is_not_about_enums)
    verb, *arguments = _import_modules(argv)
    if verb == STAGE_OF_RECIPE:
        return int(_target("recipes.launch.run")())
    if verb in CONFIG_VERBS or (verb == "predict" and _names_data(arguments)):
        return int(_target("training.run")(verb, arguments))
    from lightning_idc.cli import typed
    from lightning_idc.utils.outputs import WRITER

    previous = WRITER.set(verb)
    try:
        return typed.call(verb, _target(VERBS[verb][0]), arguments)
    finally:
        WRITER.reset(previous)


def _target(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(f"lightning_idc.cli.{module}"), name)


def _names_data(arguments: Sequence[str]) -> bool:
    """Whether arguments of `predict` are configuration keys of a data module and not paths."""
    flags = [argument.partition("=")[0] for argument in arguments if argument.startswith("-")]
    keys = ("--config", "-c", "--data", "--ckpt_path", "--trainer", "--help_all", "--print_config")
    return any(flag in keys or "." in flag for flag in flags)


def guarded(call: Callable[[], int], status_of_error: int = 1) -> int:
    """Exit status of a call; errors that the user can fix are printed as one message without a traceback.

    Args:
        call: function that returns the exit status.
        status_of_error: exit status after an error.
    """
    try:
        return call()
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            return 130  # Lightning has already shut down and would exit with 1
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            # before Python 3.12, an interrupt in a class body becomes a RuntimeError with that cause
            print("\nstopped", file=sys.stderr)
            return 130
        from lightning_idc.cli.errors import readable
        from lightning_idc.utils.text import hide_passwords, printable

        message = readable(error)
        if message is None or os.environ.get(TRACEBACK):
            import traceback

            traceback.print_exc()
        else:
            print(f"error: {printable(hide_passwords(message))}", file=sys.stderr)
        return getattr(error, "status", status_of_error)


def _import_modules(argv: list[str]) -> list[str]:
    """Arguments without ``--import MODULE``; these modules and plug-ins are imported, except for the verb ``run``.

    Raises:
        ConfigError: a module cannot be imported.
    """
    from lightning_idc.utils.errors import ConfigError
    from lightning_idc.utils.plugins import plugins

    rest: list[str] = []
    modules = [name for name in os.environ.get(IMPORTS, "").split(",") if name]
    arguments = iter(argv)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag != "--import":
            rest.append(argument)
        elif name := value if equals else next(arguments, ""):
            modules.append(name)
        else:
            raise ConfigError("--import needs the name of a module, as in --import mine")
    plugins()
    name_modules(modules, "--import")
    if rest[0] != "run":
        import_named_modules()
    return rest


def import_named_modules() -> None:
    """Import the modules of plug-ins, of ``--import`` and of a recipe's ``import``.

    Raises:
        ConfigError: a module cannot be imported.
    """
    from lightning_idc.utils.errors import ConfigError
    from lightning_idc.utils.plugins import plugins

    for plugin in plugins():
        plugin.load()
    for name in filter(None, os.environ.get(IMPORTS, "").split(",")):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"--import {name}: {error}") from error


def name_modules(modules: Sequence[str], where: str) -> None:
    """Register user modules for class names, in this process and in those of stages.

    Only named modules are imported from the current folder, since it may contain downloaded files.

    Args:
        modules: modules that are installed or in the current folder.
        where: beginning of a message.

    Raises:
        ConfigError: there is no such module.
    """
    from lightning_idc.utils.errors import ConfigError
    from lightning_idc.utils.names import MODULES, source_of

    if not modules:
        return
    os.environ[IMPORTS] = ",".join(dict.fromkeys([*os.environ.get(IMPORTS, "").split(","), *modules])).strip(",")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in dict.fromkeys(modules):
        if source_of(name) is None and name not in sys.modules:
            raise ConfigError(f"{where}: there is no module {name!r}; expected one that is installed or in this folder")
        if name not in MODULES:
            MODULES.append(name)


def lightning_command() -> NoReturn:
    """The `lightning` script."""
    collect_rarely()
    leave(lightning())


def lightning(argv: Sequence[str] | None = None) -> int:
    """Run `run RECIPE` and the verbs of this library, forward others to lightning-sdk, and return the exit status."""
    from lightning_idc.cli.recipes.shipped import shipped

    argv = list(sys.argv[1:] if argv is None else argv)
    recipe = len(argv) > 1 and argv[0] == "run" and (argv[1].endswith((".yaml", ".yml")) or argv[1] in shipped())
    if recipe or not argv or argv[0] in (*(verb for verb in VERBS if verb != "run"), "-h", "--help", "--version"):
        return main(argv)
    try:
        from lightning_sdk.cli.entrypoint import main_cli
    except ImportError:
        if argv in (["run"], ["run", "-h"], ["run", "--help"]):
            return main(argv)
        print(
            f"error: `lightning {' '.join(argv)}` is not a command of lightning_idc (run RECIPE.yaml, "
            f"{', '.join(list(VERBS)[1:])}), and lightning-sdk, which may know it, is not installed",
            file=sys.stderr,
        )
        return 2
    sys.argv = ["lightning", *argv]
    return int(main_cli() or 0)


def _usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items()]
    head = ["Image difference captioning with PyTorch Lightning.", "", "usage: lightning-idc VERB ...", ""]
    return "\n".join(
        [
            *head,
            *lines,
            "",
            "`lightning-idc VERB --help` lists the options of a command; --traceback shows where an error occurred.",
        ]
    )
