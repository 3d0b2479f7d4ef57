"""plan: what the stages of a recipe need before anything is loaded."""

from __future__ import annotations

from lightning_idc.utils.errors import ConfigError


def run(given: list[str]) -> int:
    """The verb `plan`."""
    from lightning_idc.cli import parser

    about = "Memory of a recipe's stages that train a published vision-language model, computed; of all entries of its "
    arguments = parser("plan", about + "matrix, or of those that --matrix.AXIS ENTRY names.")
    arguments.add_argument("recipe", help="YAML file, or the name of a recipe that comes with the library")
    arguments.add_argument("--memory", type=float, metavar="GIB", help="of a device; fail where a stage needs more")
    options, rest = arguments.parse_known_args(given[1:])
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.cli.recipe import choices, load
    from lightning_idc.cli.recipes import file_of
    from lightning_idc.models.vlm.plan import GIB, plan_of_stage

    path, planned, overrides = file_of(options.recipe), 0, parse_overrides(rest)
    for key in overrides:
        if not key.startswith("matrix."):
            raise ConfigError(f"plan takes --memory and --matrix.AXIS, found --{key}; change the recipe instead")
    chosen = {key.removeprefix("matrix."): str(entry) for key, entry in overrides.items()}
    for choice in choices(path, chosen):
        name = "/".join(choice.values())
        for stage in load(path, choice).stages:
            if stage.run != "fit":
                continue
            title = f"{name}/{stage.name}" if name else stage.name
            try:
                plan = plan_of_stage(stage.config)
            except ConfigError as error:
                print(f"{title}: {error}")
                continue
            print(f"{title}\n{plan.table()}")
            planned += 1
            needed = (plan.states + plan.activations) / GIB
            if options.memory is not None and needed > options.memory:
                raise ConfigError(
                    f"{title} needs about {needed:.1f} GiB on a device, more than {options.memory:g}: set quantize: "
                    "4bit, activation_checkpointing: true, a smaller batch_size or max_pixels, or ShardedStrategy"
                )
    return 0 if planned else 1
