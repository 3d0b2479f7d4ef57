"""plan: what the stages of a recipe need before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.errors import ConfigError


def run(given: list[str]) -> int:
    """The verb `plan`."""
    from lightning_idc.cli import parser

    arguments = parser("plan", "Memory of a recipe's stages that train a published vision-language model, computed.")
    arguments.add_argument("recipe", help="YAML file")
    options = arguments.parse_args(given[1:])
    from lightning_idc.cli.recipe import load
    from lightning_idc.methods.vlm.plan import plan_of_stage

    planned = 0
    for stage in load(Path(options.recipe)).stages:
        if stage.run != "fit":
            continue
        try:
            plan = plan_of_stage(stage.config)
        except ConfigError as error:
            print(f"{stage.name}: {error}")
            continue
        print(f"{stage.name}\n{plan.table()}")
        planned += 1
    return 0 if planned else 1
