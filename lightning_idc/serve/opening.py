"""load: a captioner by the name of a shipped one, a checkpoint, a folder or a hub id.

torch is imported when a captioner is opened, since the command-line help also reads this file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lightning_idc.checkpoints.shipped import DEFAULT, shipped_models
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest

if TYPE_CHECKING:
    from lightning_idc.images.options import ImageOptions
    from lightning_idc.models.captioner import PairCaptioner
    from lightning_idc.serve.describer import Describer

SAMPLES = Path(__file__).parent / "samples"


def list_models() -> list[str]:
    """Names of the shipped captioners, for :func:`load`."""
    return list(shipped_models())


def sample_pair(name: str = DEFAULT) -> tuple[Path, Path]:
    """Paths of two sample images, before and after, of the domain that a shipped captioner was trained on.

    Args:
        name: name of the captioner.

    Raises:
        ConfigError: there is no sample of this name.
    """
    names = sorted(path.name for path in SAMPLES.iterdir() if path.is_dir())
    if name not in names:
        raise ConfigError(f"there is no sample {name!r}; {nearest(name, names)}")
    return SAMPLES / name / "before.png", SAMPLES / name / "after.png"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options of the captioner and for reading images.

    Args:
        model: name of `lightning-idc list models`, .ckpt file, folder of save_pretrained or of a vision-language model,
            or hub id; rules without a network by default.
        device: device, such as cuda:1; auto selects a GPU if there is one.
        dtype: dtype of the weights of a vision-language model, such as bfloat16; auto selects that of the files on a
            GPU.
        prompt: prompt of a vision-language model about the pair.
        revision: branch, tag or commit of a hub id.
        quantize: bits of the weights of a published model: 4bit, 8bit, int4 or int8.
        attn: attention implementation of a published model, such as flash_attention_2.
        image: options for images with more than 8 bits or 3 bands, such as value_range=[0,4095] bands=[3,2,1] page=0,
            if they differ from those of the training.
        ocr: quote the words of texts that changed, were added or removed, as RapidOCR reads them (extra [ocr]); of
            images at their own size, which `web` and the rules describe.
    """

    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    prompt: str | None = None
    revision: str | None = None
    quantize: Literal["4bit", "8bit", "int4", "int8"] | None = None
    attn: str | None = None
    image: Sequence[str] = ()
    ocr: bool = False

    def files(self) -> list[Path]:
        """The file of the captioner, or the files of its folder; empty for a name or hub id."""
        if self.model is None:
            return []
        path = Path(self.model).expanduser()
        return [file for file in (path.iterdir() if path.is_dir() else [path]) if file.is_file()]

    def open(self) -> PairCaptioner:
        """Open the captioner, in eval mode.

        Raises:
            ConfigError: ``model`` is not set or unknown, or an image option is unknown.
            CheckpointError: a file or folder cannot be read.
        """
        if self.model is None:
            raise ConfigError(
                f"expected --model, such as one of {', '.join(shipped_models())}, a checkpoint or a hub id"
            )
        option_names = ("device", "dtype", "prompt", "revision", "quantize", "attn")
        captioner = open_model(self.model, **{option: getattr(self, option) for option in option_names})
        if self.image:
            spec = captioner.hparams["input_spec"] or {}
            captioner.store_hparams(input_spec={**spec, **_image_options(self.image)})
        return captioner

    def open_describer(self) -> Describer:
        """Open the captioner, or rules without a network if ``model`` is None.

        Raises:
            ConfigError: see :meth:`open`, an option of a captioner is set without a model, or ``ocr`` without RapidOCR.
            CheckpointError: a file or folder cannot be read.
        """
        if self.ocr:
            from lightning_idc.serve.quoting import QuotingDescriber, TextReader

            return QuotingDescriber(replace(self, ocr=False).open_describer(), TextReader())
        if self.model is not None:
            from lightning_idc.serve.describer import CaptionerDescriber

            return CaptionerDescriber(self.open())
        from lightning_idc.serve.rules_captioner import RulesCaptioner

        self.check_rules()
        return RulesCaptioner(self.image_options())

    def image_options(self) -> ImageOptions | None:
        """Parsed options of ``image``; None if there are none."""
        from lightning_idc.images.options import ImageOptions

        return ImageOptions(**_image_options(self.image)) if self.image else None

    def check_rules(self) -> None:
        """Check that no option of a captioner is set, since rules ignore them.

        Raises:
            ConfigError: an option of a captioner is set.
        """
        unused = [name for name in ("prompt", "revision", "quantize", "attn") if getattr(self, name) is not None]
        unused += [name for name in ("device", "dtype") if getattr(self, name) != "auto"]
        if unused:
            raise ConfigError(f"--{unused[0]} is an option of a captioner; expected --model with it")


def open_model(name: str, **options: Any) -> PairCaptioner:
    """Open a captioner by name, in eval mode, in the order of :func:`~lightning_idc.checkpoints.resolve.local_path`.

    Args:
        name: see ``model`` of :class:`ModelOptions`.
        options: arguments of :func:`~lightning_idc.models.vlm.opening.open_captioner`.

    Raises:
        ConfigError: there is no model of this name.
        CheckpointError: a file or folder cannot be read.
    """
    from lightning_idc.checkpoints.resolve import (
        hub_file,
        is_captioner_folder,
        is_captioner_on_hub,
        is_hub_id,
        local_path,
        resolve,
    )
    from lightning_idc.models.adapters import RECORDS
    from lightning_idc.models.vlm.opening import open_captioner
    from lightning_idc.models.vlm.peft_folder import CONFIG, lora_folder, read_peft_folder

    path = local_path(name)
    if path.is_file() or path.suffix == ".ckpt" or is_captioner_folder(path):
        return open_captioner(checkpoint=path, **options)
    if is_hub_id(name):
        revision = options.get("revision")
        if is_captioner_on_hub(name, revision):
            return open_captioner(checkpoint=resolve(name, revision), **{**options, "revision": None})
        if any(hub_file(name, file, revision) is not None for file in (CONFIG, RECORDS)):
            path, options = resolve(name, revision), {**options, "revision": None}
    if path.is_dir() and (folder := lora_folder(path)) is not None:
        lora = read_peft_folder(folder)
        if options.get("revision") is None:
            options = {**options, "revision": lora.config.get("revision")}
        captioner = open_captioner(model=lora.base, **options)
        captioner.load_adapters(path)
        return captioner.eval()
    if path.is_dir() or is_hub_id(name):
        return open_captioner(model=name, **options)
    raise ConfigError(
        f"there is no model {name!r}: expected a .ckpt file, a folder of save_pretrained, of a LoRA or of a "
        "vision-language model, a hub id such as org/name, or a captioner that comes with the library; "
        f"{nearest(name, shipped_models())}"
    )


def load(model: str | Path, device: str = "auto", **options: Any) -> PairCaptioner:
    """Open a captioner by name, in eval mode.

    Args:
        model: name of a shipped captioner (see ``lightning-idc list models``), ``.ckpt`` file, folder
            of ``save_pretrained``, of a vision-language model or of a LoRA, or hub id of one of these.
        device: device, for example ``cuda:1``; ``auto`` selects a GPU if there is one.
        options: further options of :class:`ModelOptions`.

    Raises:
        ConfigError: there is no model of this name.
        CheckpointError: a file or folder cannot be read.
    """
    return ModelOptions(str(model), device, **options).open()


def _image_options(texts: Sequence[str]) -> dict[str, Any]:
    """Parse ``name=value`` options for reading images."""
    import yaml

    from lightning_idc.images.options import ImageOptions
    from lightning_idc.utils.arguments import accepted_arguments

    names = accepted_arguments(ImageOptions) or ()
    options: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in names:
            raise ConfigError(f"--image {text!r}: expected NAME=VALUE; {nearest(name, names)}")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--image {text!r} is not valid YAML: {' '.join(str(error).split())}") from None
    return ImageOptions(**options).to_dict()
