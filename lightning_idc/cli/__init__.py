"""The command line: `lightning-idc`, `lightning run recipe.yaml` and `python -m lightning_idc`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

# verb -> (module with `run(arguments) -> int`, what it does); modules are imported when their verb is used
VERBS = {
    "run": ("run", "run a recipe: lightning-idc run recipes/quickstart.yaml [--key value ...]"),
    "fit": ("training", "train: --config FILE [--key value ...]"),
    "validate": ("training", "measure on the validation split"),
    "test": ("training", "measure on the test split"),
    "predict": ("pairs", "caption without references: PAIRS --out FILE | --config FILE"),
    "stream": ("streams", "make records with Ray, several stages at the same time: STAGE.yaml STAGE.yaml ..."),
    "describe": ("describe", "say what changed between two images, and where"),
    "compare": ("pairs", "compare two folders of images: BEFORE AFTER [--fail-on changed]"),
    "caption-pairs": ("pairs", "write a caption beside every second image of a folder"),
    "serve": ("serve", "answer over HTTP, with a page to drop two images on"),
    "mcp": ("mcp", "answer coding agents over stdio (Model Context Protocol)"),
    "export": ("export", "onnx | torch | hf OUT: a captioner for programs without this library"),
    "models": ("models", "ls | show NAME: captioners that come with the library"),
    "score": ("score", "score captions of any file: PREDICTIONS [--references FILE] [--protocol NAME]"),
    "leaderboard": ("leaderboard", "one table of many results: FOLDER [--out FILE]"),
    "questions": ("questions", "ask about pairs and score as MMVP does: ask FILE --out FILE | score FILE"),
    "relevance": ("relevance", "draw which patches and words of a pair belong together"),
    "case-study": ("case_study", "the negatives that stages of a run trained on: case-study RUN [--rows 5]"),
    "data": ("data", "ls | check, prepare or count NAME --root DIR"),
    "store": ("store", "verify | refilter | export | push what is kept on disk"),
    "plan": ("plan", "memory that a recipe takes, computed: plan RECIPE"),
    "recipes": ("recipes", "ls | show NAME | cp NAME [FOLDER]"),
    "import": ("import_", "bring an official checkpoint: METHOD CHECKPOINT OUT"),
    "doctor": ("doctor", "look at this installation"),
}


OTHER_STATUS = {"compare": 2}
"""Exit status of an error by verb where it is not 1, by which `compare` says that something changed."""

TRACEBACK = "LIGHTNING_IDC_TRACEBACK"
"""Environment variable that shows where an error came from, as ``--traceback`` does."""

IMPORTS = "LIGHTNING_IDC_IMPORT"
"""Environment variable with the modules, separated by commas, that ``--import`` names."""

_TRAINING_HELP = """usage: lightning-idc {verb} --config FILE [--config FILE ...] [--key value ...]

A later file is merged over an earlier one, `callbacks+:` appends to a list, and --key value wins over both:
  --model CLASS_PATH   --model.width 64      arguments of the captioner
  --data CLASS_PATH    --data.batch_size 16  arguments of the data module
  --trainer.max_epochs 2                     arguments of Lightning's Trainer
  --ckpt_path FILE                           checkpoint to start from; model and data that are not given are its own
  --print_config                             show what would be run
  --model.help CLASS_PATH                    arguments of a class
  --help_all                                 every key; takes some seconds
  --import MODULE                            a module with classes of your own, installed or in this folder
  --traceback                                where an error came from"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = _dispatch(given)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # the reader of a pipe, such as `head`, has seen enough; Python would complain once more when it flushes
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _dispatch(given: list[str]) -> int:
    from lightning_idc import __version__

    if given[:1] == ["--version"]:
        print(__version__)
        return 0
    if not given or given[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if given[0] not in VERBS:
        import difflib

        near = difflib.get_close_matches(given[0], VERBS, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        print(f"error: there is no verb {given[0]!r}{hint}\n\n{_usage()}", file=sys.stderr)
        return 2
    if given[0] in ("fit", "validate", "test", "predict") and given[1:] in (["-h"], ["--help"]):
        print(_TRAINING_HELP.format(verb=given[0]))
        if given[0] != "predict":
            return 0
        print("\nor, for files:\n")
    return guarded(given)


def guarded(given: list[str]) -> int:
    """Run a verb; what the user can fix is one message, without a traceback."""
    if "--traceback" in given:
        given = [argument for argument in given if argument != "--traceback"]
        os.environ[TRACEBACK] = "1"  # for the processes of the stages, too
    try:
        given = import_named(given)
        module = importlib.import_module(f"lightning_idc.cli.{VERBS[given[0]][0]}")
        return int(module.run(given))
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except SystemExit as stop:
        if isinstance(stop.__context__, KeyboardInterrupt):
            return 130  # Lightning has shut down already and would leave with 1
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            # before Python 3.12 what interrupts the body of a class is a RuntimeError with that cause
            print("\nstopped", file=sys.stderr)
            return 130
        from lightning_idc.cli.errors import readable
        from lightning_idc.utils.text import printable

        message, status = readable(error), OTHER_STATUS.get(given[0], 1)
        if message is not None and not os.environ.get(TRACEBACK):
            print(f"error: {printable(message)}", file=sys.stderr)
            return status
        if status == 1:
            raise  # which Python ends with 1
        import traceback

        traceback.print_exc()
        return status


def import_named(given: list[str]) -> list[str]:
    """Import the modules that ``--import`` names, in this process and in those of the stages; the other arguments.

    Only then may a module come from the current folder: what lies beside a downloaded checkpoint is never imported.
    The verb ``run`` imports them itself, once it knows whether this process may be forked.

    Raises:
        ConfigError: a module cannot be imported.
    """
    from lightning_idc.utils.errors import ConfigError

    rest, named = [], [name for name in os.environ.get(IMPORTS, "").split(",") if name]
    arguments = iter(given)
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if flag != "--import":
            rest.append(argument)
        elif name := value if equals else next(arguments, ""):
            named.append(name)
        else:
            raise ConfigError("--import needs the name of a module, as in --import mine")
    if named and rest[:1] == ["run"]:
        os.environ[IMPORTS] = ",".join(dict.fromkeys(named))
    else:
        import_modules(named, "--import")
    return rest


def import_modules(named: Sequence[str], where: str) -> None:
    """Import modules with classes of the user, in this process and in those of the stages.

    Raises:
        ConfigError: a module cannot be imported.
    """
    from lightning_idc.utils.errors import ConfigError

    if not named:
        return
    from lightning_idc.utils.names import MODULES

    os.environ[IMPORTS] = ",".join(dict.fromkeys([*os.environ.get(IMPORTS, "").split(","), *named])).strip(",")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in dict.fromkeys(named):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(f"{where} {name}: {error}; name a module that is installed or in this folder") from error
        if name not in MODULES:
            MODULES.append(name)


def lightning(arguments: Sequence[str] | None = None) -> int:
    """The `lightning` script: ours for `run RECIPE` and our verbs, otherwise lightning-sdk's where installed."""
    from lightning_idc.cli.recipes import shipped

    given = list(sys.argv[1:] if arguments is None else arguments)
    recipe = len(given) > 1 and given[0] == "run" and (given[1].endswith((".yaml", ".yml")) or given[1] in shipped())
    if recipe or not given or given[0] in (*(verb for verb in VERBS if verb != "run"), "-h", "--help", "--version"):
        return main(given)
    try:
        from lightning_sdk.cli.entrypoint import main_cli
    except ImportError:
        if given in (["run"], ["run", "-h"], ["run", "--help"]):
            return main(given)
        print(
            f"error: `lightning {' '.join(given)}` is not a command of lightning_idc (run RECIPE.yaml, "
            f"{', '.join(list(VERBS)[1:])}), and lightning-sdk, which may know it, is not installed",
            file=sys.stderr,
        )
        return 2
    sys.argv = ["lightning", *given]
    return int(main_cli() or 0)


def _usage() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, (_, text) in VERBS.items()]
    head = ["Image difference captioning with PyTorch Lightning.", "", "usage: lightning-idc VERB ...", ""]
    return "\n".join(
        [*head, *lines, "", "`lightning-idc VERB --help` says more; --traceback shows where an error came from."]
    )


def parser(verb: str, description: str) -> argparse.ArgumentParser:
    """Argument parser of one verb."""
    return argparse.ArgumentParser(prog=f"lightning-idc {verb}", description=description)
