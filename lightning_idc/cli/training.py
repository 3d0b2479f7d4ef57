"""The verbs fit, validate, test and predict: keys and names are checked before torch is imported."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from lightning_idc.cli.configuration import gather
from lightning_idc.cli.signatures import check_config
from lightning_idc.utils.names import full_name


def run(argv: list[str]) -> int:
    """Run a LightningCLI verb with its own arguments."""
    verb, arguments = argv[0], argv[1:]
    if any(name == "--help_all" or name.partition("=")[0].endswith(".help") for name in arguments):
        from lightning_idc.cli.stage import PairCLI

        PairCLI(verb, _for_help(arguments))
        return 0
    config = gather([name for name in arguments if name != "--print_config"])
    check_config(config)
    files = [Path(value) for flag, value in pairwise(arguments) if flag in ("--config", "-c")]
    from lightning_idc.cli.stage import run_verb

    return run_verb(verb, config, files, "--print_config" in arguments)


def _for_help(arguments: list[str]) -> list[str]:
    """Arguments of --help_all and --model.help NAME, with the full name of the class."""
    for number, name in enumerate(arguments):
        flag, equals, value = name.partition("=")
        if flag.endswith(".help"):
            value = value if equals else next(iter(arguments[number + 1 :]), "")
            return [f"{flag}={full_name(value)}" if value else flag]
    return ["--help"]
