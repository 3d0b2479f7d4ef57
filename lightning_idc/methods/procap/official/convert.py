"""Converts official weights of ProCap and VQGAN into modules of this library.

:func:`convert_tokenizer` reads a VQGAN, :func:`convert_procedure` a first stage, :func:`convert` a second stage.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.checkpoints.restricted import read_state_dict
from lightning_idc.methods.procap.module import ProCap
from lightning_idc.methods.procap.official.encoder import (
    SPECIAL_TOKENS,
    TEXT_SLOTS,
    control_tables,
    renamed,
    trunk_state,
)
from lightning_idc.methods.procap.official.module import OfficialProCap, OfficialProcedureModel
from lightning_idc.methods.procap.procedure import ProcedureModel
from lightning_idc.methods.procap.tokenizer import TokenizerTraining
from lightning_idc.nn.vocabulary import BOS, CLIP, EOS, PAD, SPECIALS, UNK, load_vocabulary
from lightning_idc.utils.errors import CheckpointError, DataError, reads_file

# special words of the authors' code, in its order; in this library a vocabulary begins with four special words
_OFFICIAL_SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]")
_SPECIAL_IDS = {"[PAD]": PAD, "[BOS]": BOS, "[EOS]": EOS, "[UNK]": UNK}

_DECODER_PARTS = (
    (r"^(layers\.\d+)\.selfattn\.layernorm\.", r"\1.norm_self."),
    (r"^(layers\.\d+)\.attention\.layernorm\.", r"\1.norm_cross."),
    (r"^(layers\.\d+)\.feedforward\.layernorm\.", r"\1.norm_feed."),
    (r"^(layers\.\d+)\.selfattn\.layer\.", r"\1.self_attention."),
    (r"^(layers\.\d+)\.attention\.layer\.", r"\1.cross."),
    (r"^(layers\.\d+)\.feedforward\.layer\.linear1\.", r"\1.feed.0."),
    (r"^(layers\.\d+)\.feedforward\.layer\.linear2\.", r"\1.feed.2."),
    (r"\.wq\.", ".query."),
    (r"\.wk\.", ".key."),
    (r"\.wv\.", ".value."),
    (r"\.wo\.", ".out."),
    (r"^out\.", "words."),
)
_TOKENIZER_PARTS = (
    (r"\.nin_shortcut\.", ".shortcut."),
    (r"\.proj_out\.", ".out."),
    (r"\.q\.", ".query."),
    (r"\.k\.", ".key."),
    (r"\.v\.", ".value."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
    (r"^encoder\.conv_in\.", "encoder.0."),
    (r"^encoder\.mid\.", "encoder.2."),
    (r"^encoder\.norm_out\.", "encoder.3."),
    (r"^encoder\.conv_out\.", "encoder.5."),
    (r"^encoder\.down\.(\d+)\.block\.", r"encoder.1.\1."),
    (r"^decoder\.conv_in\.", "decoder.0."),
    (r"^decoder\.mid\.", "decoder.1."),
    (r"^decoder\.norm_out\.", "decoder.3."),
    (r"^decoder\.conv_out\.", "decoder.5."),
    (r"^quantize\.embedding\.", "codebook."),
    (r"^quant_conv\.", "quant_conv."),
    (r"^post_quant_conv\.", "post_quant_conv."),
)


def below(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Entries of a state dict that have a prefix, with the prefix removed."""
    return {key[len(prefix) :]: value for key, value in state.items() if key.startswith(prefix)}


_LEVEL_ATTENTION = re.compile(r"^(encoder\.down|decoder\.up)\.(\d+)\.attn\.")


def tokenizer_state(
    state: Mapping[str, Tensor], drop_attention: bool = False
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration and weights of an :class:`ImageTokenizer`, from a VQGAN of the taming-transformers family.

    Args:
        state: state dict with the official names, such as ``encoder.conv_in.weight``.
        drop_attention: whether the attention of the coarsest level is left out, as in ProCap's code: the code builds
            the model for 224 pixels, where no level has the 16 x 16 cells at which the configuration has attention,
            and ignores weights that it does not need.

    Raises:
        CheckpointError: a level other than the coarsest has attention.
    """
    if drop_attention:
        state = {key: value for key, value in state.items() if not _LEVEL_ATTENTION.match(key)}
    attention_levels = {int(match[2]) for key in state if (match := _LEVEL_ATTENTION.match(key))}
    levels = 1 + max(int(key.split(".")[2]) for key in state if key.startswith("encoder.down."))
    blocks = 1 + max(int(key.split(".")[4]) for key in state if key.startswith("encoder.down.0.block."))
    width = state["encoder.conv_in.weight"].shape[0]
    widths = [state[f"encoder.down.{level}.block.0.conv1.weight"].shape[0] for level in range(levels)]
    codebook_size, latent = state["quantize.embedding.weight"].shape
    config = {
        "codebook_size": codebook_size,
        "latent": latent,
        "width": width,
        "multipliers": [level_width // width for level_width in widths],
        "blocks": blocks,
        "patch_size": 1,
        "attention": bool(attention_levels),
    }
    if attention_levels - {levels - 1}:
        raise CheckpointError(
            f"this VQGAN has attention in the levels {sorted(attention_levels)} of {levels}; expected attention in the "
            "coarsest level or in none"
        )
    weights = {}
    for key, value in state.items():
        if not key.startswith(("encoder.", "decoder.", "quant", "post_quant")):
            continue  # losses and discriminator
        name = renamed(key, _TOKENIZER_PARTS)
        name = re.sub(r"^encoder\.down\.(\d+)\.downsample\.", rf"encoder.1.\1.{blocks}.", name)
        name = _interleaved(name, levels, bool(attention_levels))
        # the official decoder numbers its levels from fine to coarse, this library in order of execution
        for pattern, num_blocks in (
            (r"^decoder\.up\.(\d+)\.block\.", 0),
            (r"^decoder\.up\.(\d+)\.upsample\.", blocks + 1),
        ):
            match = re.match(pattern, name)
            if match:
                prefix = f"decoder.2.{levels - 1 - int(match[1])}."
                index = 2 * num_blocks if attention_levels and int(match[1]) == levels - 1 else num_blocks
                name = prefix + (f"{index}." if index else "") + name[match.end() :]
        weights[name] = value
    return config, weights


def _interleaved(name: str, levels: int, attention: bool) -> str:
    """Number the modules of a coarsest level with attention in their order: block, attention, block, attention, ..."""
    match = re.match(rf"^(encoder\.(?:down|1)|decoder\.up)\.{levels - 1}\.(?:(attn|block)\.)?(\d+)\.", name)
    if not attention or match is None:
        return name
    index = 2 * int(match[3]) + (match[2] == "attn")
    if match[1] == "decoder.up":
        return f"decoder.up.{levels - 1}.block.{index}.{name[match.end() :]}"
    return f"encoder.1.{levels - 1}.{index}.{name[match.end() :]}"


def _trunk(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that the encoders of both stages share."""
    return {
        "norm.weight": state["conv_to_embedding.0.weight"],
        "norm.bias": state["conv_to_embedding.0.bias"],
        "project.weight": state["conv_to_embedding.1.weight"],
        "project.bias": state["conv_to_embedding.1.bias"],
        "mask_embedding": state["image_mask"],
        "frame_embed": state["target_pos_emb.weights.0"][0],
        "row_embed": state["target_pos_emb.weights.1"][0, 0],
        "column_embed": state["target_pos_emb.weights.2"][0, 0, 0],
        **trunk_state(state, "transformer.transformer.resblocks."),
    }


def encoder_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an :class:`OfficialEncoder`, from weights under ``intermediate_generator.`` without this prefix."""
    words, positions = control_tables(
        *(state[f"{name}.weight"] for name in ("text_emb", "special_emb", "text_pos_emb", "special_pos_emb"))
    )
    return {**_trunk(state), "control_words": words, "control_positions": positions}


def procedure_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an :class:`OfficialProcedureNet` without its tokenizer, from an official first stage."""
    return {
        **{f"encoder.{name}": value for name, value in _trunk(state).items()},
        "words.weight": state["text_emb.weight"],
        "word_positions": state["text_pos_emb.weight"][:TEXT_SLOTS],
        "special": state["special_emb.weight"][:SPECIAL_TOKENS],
        "special_positions": state["special_pos_emb.weight"][:SPECIAL_TOKENS],
        **{
            f"{name}.{part}": value
            for official, name in (
                ("to_logits", "code_head"),
                ("to_logits_rel", "align_head"),
                ("to_logits_vid", "consistency_head"),
            )
            for part, value in below(state, f"{official}.").items()
        },
    }


def decoder_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of an :class:`OfficialDecoder`, from weights under ``text_decoder.decoder.`` without this prefix."""
    return {renamed(key, _DECODER_PARTS): value for key, value in state.items() if not key.startswith("loss_func.")}


def word_order(words: Mapping[str, int]) -> tuple[list[str], list[int]]:
    """Vocabulary of this library and, for each of its words, its row in the official tables.

    Args:
        words: official id of each word.

    Raises:
        DataError: the ids are not consecutive, or do not begin with the official special words.
    """
    official_words = sorted(words, key=words.__getitem__)
    has_specials = tuple(official_words[: len(_OFFICIAL_SPECIALS)]) == _OFFICIAL_SPECIALS
    if not has_specials or sorted(words.values()) != list(range(len(words))):
        raise DataError(
            f"the vocabulary begins with {', '.join(official_words[:8])}; expected consecutive ids from 0 that begin "
            f"with {', '.join(_OFFICIAL_SPECIALS)}"
        )
    special_words = sorted(_SPECIAL_IDS, key=_SPECIAL_IDS.__getitem__)
    other_words = [word for word in official_words if word not in _SPECIAL_IDS]
    names = [*SPECIALS, *(f"<{word[1:-1].lower()}>" if word.startswith("[") else word for word in other_words)]
    return names, [words[word] for word in (*special_words, *other_words)]


@reads_file("source")
def convert(source: str | Path, vocabulary: str, decoder_heads: int = 8) -> ProCap:
    """Convert an official second stage into an :class:`OfficialProCap`.

    Args:
        source: checkpoint of the authors' ``train_stage2.py``, as torch or safetensors file.
        vocabulary: the authors' ``*_word2idx.json``, which is not part of the checkpoint.
        decoder_heads: number of attention heads of the decoder, which the weights do not contain.

    Raises:
        CheckpointError: the file is missing, or is not a second stage of ProCap.
        DataError: the vocabulary is missing or invalid.
    """
    state = read_state_dict(source)
    if "intermediate_generator.image_mask" not in state:
        raise CheckpointError(
            f"{str(source)!r} is not a second stage of ProCap: it has no intermediate_generator.image_mask"
        )
    trunk = below(state, "intermediate_generator.")
    config, tokenizer = tokenizer_state(below(trunk, "vae.model."))
    encoder, decoder = encoder_state(trunk), decoder_state(below(state, "text_decoder.decoder."))
    names, rows = word_order(_read_word_ids(Path(vocabulary)))
    if len(rows) != len(decoder["words.bias"]):
        raise CheckpointError(f"the checkpoint has {len(decoder['words.bias'])} words and {vocabulary!r} {len(rows)}")
    for name in ("words.weight", "words.bias"):
        decoder[name] = decoder[name][rows]
    width, stride = encoder["mask_embedding"].shape[0], 2 ** (len(config["multipliers"]) - 1)
    model = OfficialProCap(
        tokenizer=config,
        queries=len(encoder["frame_embed"]) - 2,
        width=width,
        layers=_layers(encoder),
        heads=max(1, width // 64),
        decoder_width=decoder["words.weight"].shape[1],
        decoder_layers=_layers(decoder),
        decoder_heads=decoder_heads,
        vocabulary=names,
        max_length=TEXT_SLOTS - 1,
        image_size=(stride * len(encoder["row_embed"]), stride * len(encoder["column_embed"])),
        captions_per_pair=1,
    )
    model.build()
    assert model.net is not None
    modules = {"tokenizer": tokenizer, "encoder": encoder, "projector": below(state, "mlp."), "decoder": decoder}
    try:
        model.net.load_state_dict(
            {f"{name}.{key}": value for name, weights in modules.items() for key, value in weights.items()}
        )
    except RuntimeError as error:
        raise CheckpointError(f"{str(source)!r} cannot be loaded as a second stage of ProCap: {error}") from error
    return model.eval()


@reads_file("source")
def convert_procedure(source: str | Path, procedures: str) -> ProcedureModel:
    """Convert an official first stage, to continue its training or to initialise a second stage.

    Args:
        source: checkpoint of the authors' ``train_stage1.py``, as torch or safetensors file.
        procedures: folder of ``FrameInterpolator``.

    Raises:
        CheckpointError: the file is missing, or is not a first stage of ProCap.
    """
    state = read_state_dict(source)
    # the file of a second stage contains a first stage, but with a table of 24 words, which is rejected below
    state = below(state, "intermediate_generator.") or state
    words = len(state["text_emb.weight"]) - TEXT_SLOTS - 1 if "text_emb.weight" in state else 0
    if words != len(load_vocabulary(CLIP)):
        raise CheckpointError(
            f"{str(source)!r} is not a first stage of ProCap: it has {max(words, 0)} words in `text_emb.weight`; "
            f"expected the {len(load_vocabulary(CLIP))} of CLIP"
        )
    config, tokenizer = tokenizer_state(below(state, "vae.model."))
    weights = procedure_state(state)
    width, stride = weights["encoder.mask_embedding"].shape[0], 2 ** (len(config["multipliers"]) - 1)
    model = OfficialProcedureModel(
        procedures,
        tokenizer=config,
        keyframes=len(weights["encoder.frame_embed"]) - 2,
        width=width,
        layers=_layers(below(weights, "encoder.")),
        heads=max(1, width // 64),
        vocabulary=CLIP,
        image_size=(stride * len(weights["encoder.row_embed"]), stride * len(weights["encoder.column_embed"])),
    )
    model.build()
    assert model.net is not None
    try:
        model.net.load_state_dict({**weights, **{f"tokenizer.{key}": value for key, value in tokenizer.items()}})
    except RuntimeError as error:
        raise CheckpointError(f"{str(source)!r} cannot be loaded as a first stage of ProCap: {error}") from error
    return model.eval()


@reads_file("source")
def convert_tokenizer(source: str | Path, drop_attention: bool = False) -> TokenizerTraining:
    """Convert a VQGAN of taming-transformers into an image tokenizer, to use or to fine-tune.

    Args:
        source: checkpoint of the VQGAN, as torch or safetensors file.
        drop_attention: whether the attention of the coarsest level is left out, as in ProCap's code at 224 pixels.

    Raises:
        CheckpointError: the file is missing, or is not a VQGAN.
    """
    state = read_state_dict(source)
    if "quantize.embedding.weight" not in state:
        raise CheckpointError(f"{str(source)!r} is not a VQGAN: it has no quantize.embedding.weight")
    config, weights = tokenizer_state(state, drop_attention)
    model = TokenizerTraining(**config)
    try:
        model.tokenizer.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{str(source)!r} cannot be loaded as a VQGAN: {error}") from error
    return model.eval()


def _layers(state: Mapping[str, Tensor]) -> int:
    return 1 + max(int(key.split(".")[1]) for key in state if key.startswith("layers."))


def _read_word_ids(path: Path) -> dict[str, int]:
    try:
        word_ids = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no vocabulary {str(path)!r}; expected the authors' *_word2idx.json") from None
    except ValueError as error:
        raise DataError(f"{str(path)!r} is not valid JSON: {error}") from error
    if not isinstance(word_ids, dict) or not all(isinstance(word_id, int) for word_id in word_ids.values()):
        raise DataError(f"{str(path)!r} does not map words to ids; expected the authors' *_word2idx.json")
    return word_ids
