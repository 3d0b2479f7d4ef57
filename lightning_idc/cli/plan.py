"""The verb plan: memory and time of the stages of a recipe, computed without loading weights."""

from __future__ import annotations

from typing import Any

from lightning_idc.utils.bounds import PositiveFloat, PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError


def plan(recipe: str, *, memory: PositiveFloat | None = None, pairs: PositiveInt = 10_000, **keys: Any) -> int:
    """Compute memory and time of a recipe's stages that train a published vision-language model.

    All entries of its matrix are computed, or those selected by --matrix.AXIS ENTRY. The models that recipes of the
    library name need neither files nor a network.

    Args:
        recipe: YAML file, or a name of `lightning-idc list recipes`.
        memory: GiB of a device; it is an error if a stage needs more.
        pairs: number of training pairs, for the hours.
    """
    check_arguments(plan, locals())
    from lightning_idc.cli.recipes.compose import choices, load
    from lightning_idc.cli.recipes.shipped import file_of
    from lightning_idc.models.vlm.plan import GIB, plan_of_stage

    path, planned = file_of(recipe), 0
    for key in keys:
        if not key.startswith("matrix."):
            raise ConfigError(f"plan takes --memory and --matrix.AXIS, found --{key}; change the recipe instead")
    chosen = {key.removeprefix("matrix."): str(entry) for key, entry in keys.items()}
    skipped: dict[str, list[str]] = {}
    for choice in choices(path, chosen):
        name = "/".join(choice.values())
        for stage in load(path, choice).stages:
            if stage.run != "fit":
                continue
            title = f"{name}/{stage.name}" if name else stage.name
            try:
                computed = plan_of_stage(stage.config)
            except ConfigError as error:
                skipped.setdefault(str(error), []).append(title)
                continue
            print("\n".join([title, computed.table(), *computed.time_table(pairs)]))
            planned += 1
            needed = (computed.states + computed.activations) / GIB
            if memory is not None and needed > memory:
                raise ConfigError(
                    f"{title} needs about {needed:.1f} GiB on a device, more than {memory:g}: set quantize: "
                    "4bit, activation_checkpointing: true, a smaller batch_size or max_pixels, or ShardedStrategy"
                )
    for message, titles in skipped.items():
        print(f"{', '.join(titles)}: {message}")
    return 0 if planned else 1
