"""check_family: the conditions that a family of vision-language models must meet, for use in a test."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from lightning_idc.images.types import PairSample
from lightning_idc.models.vlm.checking import scoring_errors
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.net import VLMNet
from lightning_idc.utils.errors import ConfigError

MAX_TOKENS = 6
"""Number of generated tokens."""
SIZES = ((64, 64), (96, 64), (64, 96))
CELL_SIZES = ((64, 64), (48, 80), (80, 48), (32, 96))
"""Height and width of the images of which each cell must be visible."""
CELLS = 4
"""Cells along each side of an image."""
ROUNDING = 1e-5
"""Difference of features below which they are equal; features have a standard deviation of about 1."""


def check_family(model: str | Path, tolerance: float = 1e-4) -> dict[str, float]:
    """Check a model with the family that :func:`~lightning_idc.models.vlm.families.register_family` gave its type.

    Scores must equal those of the stock model, batches of pairs of several sizes must equal single pairs, greedy
    decoding must equal ``generate`` of transformers, and every part of both images must be visible: the features change
    when one of 4 x 4 cells of either image is inverted.

    Args:
        model: folder or hub id, for example of a tiny random model of the type.
        tolerance: largest difference in log-probability, in float32.

    Returns:
        Largest difference to the stock model by scoring method; infinity for a method that the model cannot run.

    Raises:
        ConfigError: one of these conditions does not hold.
    """
    captioner = VLMCaptioner(model=str(model), dtype="float32", max_length=MAX_TOKENS)
    captioner.build()
    net: VLMNet = captioner.eval().built_net
    errors = scoring_errors(net)
    if errors["plain"] > tolerance:
        raise _broken(net, f"log-probabilities of `plain` differ from the stock model's by {errors['plain']:.2g} nats")
    net.scoring = next(method for method, error in errors.items() if error <= tolerance)
    pairs = _pairs()
    with torch.no_grad():
        together = _scores(captioner, pairs)
        alone = torch.cat([_scores(captioner, [pair]) for pair in pairs])
        if not torch.allclose(together, alone, rtol=0, atol=tolerance * MAX_TOKENS):
            raise _broken(
                net, f"pairs of several sizes in one batch score {together.tolist()}, one by one {alone.tolist()}"
            )
        captions = [caption.text for caption in captioner.generate(captioner.encode(captioner.collate(pairs)))]
        expected = [_generated(captioner, pair) for pair in pairs]
    if captions != expected:
        raise _broken(net, f"greedy decoding returns {captions}, the model's generate {expected}")
    for size in CELL_SIZES:
        hidden = hidden_cells(captioner, size)
        if hidden:
            raise _broken(
                net,
                f"of images of {size[0]}x{size[1]}, {len(hidden)} of {2 * CELLS**2} cells do not reach the features, "
                f"such as row {hidden[0][1]}, column {hidden[0][2]} of the {hidden[0][0]} image; the image processor "
                "may crop",
            )
    return errors


@torch.no_grad()
def hidden_cells(captioner: VLMCaptioner, size: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Cells of a random pair that can be inverted without a change of the features: image, row and column.

    Args:
        captioner: a captioner whose network is built.
        size: height and width of the images.
    """
    generator = torch.Generator().manual_seed(0)
    pair = torch.randint(0, 256, (2, 3, *size), generator=generator, dtype=torch.uint8)
    height, width = size[0] // CELLS, size[1] // CELLS
    cells = list(product(range(2), range(CELLS), range(CELLS)))
    pairs = [pair.clone() for _ in range(1 + len(cells))]  # the first stays as it is
    for inverted, (image, row, column) in zip(pairs[1:], cells, strict=True):
        inverted[image, :, row * height : (row + 1) * height, column * width : (column + 1) * width].bitwise_not_()
    samples = [PairSample(str(i), pair[0], pair[1], ["a"]) for i, pair in enumerate(pairs)]
    memory = captioner.encode(captioner.collate(samples)).memory.float()
    changes = (memory[1:] - memory[:1]).abs().flatten(1).amax(1)
    return [
        (("before", "after")[image], row, column)
        for (image, row, column), change in zip(cells, changes.tolist(), strict=True)
        if change < ROUNDING
    ]


def _broken(net: VLMNet, problem: str) -> ConfigError:
    return ConfigError(
        f"{type(net.family).__name__} does not fit {net.model.config.model_type}: {problem}; families/base.py "
        "documents what a family may override"
    )


def _pairs() -> list[PairSample]:
    generator = torch.Generator().manual_seed(0)
    pairs = []
    for height, width in SIZES:
        images = torch.randint(0, 256, (2, 3, height, width), generator=generator, dtype=torch.uint8)
        pairs.append(PairSample(f"{height}x{width}", images[0], images[1], ["one is gone"]))
    return pairs


def _scores(captioner: VLMCaptioner, pairs: list[PairSample]) -> Tensor:
    batch = captioner.collate(pairs)
    return captioner.score(captioner.encode(batch), batch.tokens, batch.caption_mask)[:, 0]


def _generated(captioner: VLMCaptioner, pair: PairSample) -> str:
    """Caption of one pair by ``generate`` of transformers."""
    net, vocabulary = captioner.built_net, captioner.built_vocabulary
    images = torch.stack([pair.before, pair.after])
    inputs = net.family.inputs(net.processor, [captioner.hparams["prompt"]], [images])
    inputs.pop("labels", None)
    special = vocabulary.special
    out: Tensor = net.model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=list(special.ends),
        pad_token_id=special.pad,
        suppress_tokens=list(special.suppress_tokens),
    )
    return vocabulary.decode(out[0, inputs["input_ids"].shape[1] :].tolist())
