"""The verbs fit, validate, test and predict: configuration keys are checked before torch is imported."""

from __future__ import annotations

from lightning_idc.cli.configuration import gather
from lightning_idc.cli.signatures import check_config
from lightning_idc.utils.names import full_name

_HELP = """usage: lightning-idc {verb} --config FILE [--config FILE ...] [--key value ...]

A later file is merged over an earlier one, `callbacks+:` appends to a list, and --key value wins over both:
  --model CLASS_PATH   --model.width 64      arguments of the captioner
  --data CLASS_PATH    --data.batch_size 16  arguments of the data module
  --trainer.max_epochs 2                     arguments of Lightning's Trainer
  --ckpt_path FILE                           checkpoint to start from, which also sets model and data by default
  --print_config                             show what would be run
  --model.help CLASS_PATH                    arguments of a class
  --help_all                                 every key; takes some seconds
  --import MODULE                            a module with classes of your own, installed or in this folder
  --traceback                                where an error came from"""


def run(verb: str, arguments: list[str]) -> int:
    """Run a LightningCLI verb with the keys of a configuration."""
    if arguments in (["-h"], ["--help"]):
        print(_HELP.format(verb=verb))
        return 0
    if any(name == "--help_all" or name.partition("=")[0].endswith(".help") for name in arguments):
        from lightning_idc.cli.stage import PairCLI

        PairCLI(verb, _for_help(arguments))
        return 0
    config = gather([name for name in arguments if name != "--print_config"])
    check_config(config)
    from lightning_idc.cli.stage import run_verb

    return run_verb(verb, config, "--print_config" in arguments)


def _for_help(arguments: list[str]) -> list[str]:
    """Arguments of --help_all and --model.help NAME, with the full name of the class."""
    for number, name in enumerate(arguments):
        flag, equals, value = name.partition("=")
        if flag.endswith(".help"):
            value = value if equals else next(iter(arguments[number + 1 :]), "")
            return [f"{flag}={full_name(value)}" if value else flag]
    return ["--help"]
