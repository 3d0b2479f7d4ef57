"""relevance: draw which patches and words of a pair belong together."""

from __future__ import annotations

import json
from pathlib import Path

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import check_file, write_file

KINDS = (".png", ".jpg", ".jpeg", ".webp")
"""Endings of pictures that are written."""


def run(given: list[str]) -> int:
    """The verb `relevance`."""
    from lightning_idc.cli import parser

    arguments = parser(
        "relevance", "Draw which patches and words of a pair belong together, and print it for the words."
    )
    arguments.add_argument("before", help="image file")
    arguments.add_argument("after", help="image file")
    arguments.add_argument("caption", help="an implicit-change description, or any other caption of the pair")
    judges = arguments.add_mutually_exclusive_group(required=True)
    judges.add_argument("--model", help="checkpoint of RelevancePretraining")
    judges.add_argument("--clip", metavar="NAME[/WEIGHTS]", help="of open_clip, such as ViT-B-16-quickgelu/openai")
    arguments.add_argument("--out", default="relevance.png", help="picture to write (default: relevance.png)")
    arguments.add_argument("--overwrite", action="store_true", help="replace a picture that this command did not write")
    options = arguments.parse_args(given[1:])
    target, inputs = Path(options.out), [options.before, options.after, options.model or options.before]
    if target.suffix.lower() not in KINDS:
        raise ConfigError(f"--out {str(target)!r}: expected a name that ends with {' or '.join(KINDS)}")
    check_file("--out", target, inputs, options.overwrite)
    from lightning_idc.images.read import read_pair
    from lightning_idc.images.resize import resize
    from lightning_idc.methods.namc.dual_encoder import ClipDualEncoder, DualEncoder, load_dual_encoder
    from lightning_idc.methods.namc.relevance_maps import judge, relevance_map
    from lightning_idc.nn.vocabulary import words_of

    if not words_of(options.caption):
        raise ConfigError("the caption has no words to judge")
    encoder: DualEncoder
    if options.model is not None:
        encoder = load_dual_encoder(options.model)
    else:
        name, _, weights = options.clip.partition("/")
        encoder = ClipDualEncoder(name, weights or "openai").eval()
    import torch

    pair = read_pair(options.before, options.after)
    images = torch.stack([resize(image, encoder.size) for image in pair])
    judged = judge(encoder, images, options.caption)
    for side, found in zip(("before", "after"), judged, strict=True):
        print(json.dumps({"side": side, "words": found.words, "relevance": [round(v, 4) for v in found.of_words]}))
    picture = relevance_map([(images, judged)])
    try:
        write_file(target, lambda path: picture.save(path), options.overwrite, inputs)
    except OSError as error:
        raise ConfigError(f"--out {str(target)!r} cannot be written ({error})") from error
    print(target)
    return 0
