"""Prompts in chat templates, answers without reasoning text, and tokenizers and heads of different sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples

from lightning_idc.methods.namc.noise_masking import ParsedCaption
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.tokens import TokenizerVocabulary, unused_settings
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    + IMAGE
    + "{% else %}{{ c['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
)
BEGIN = "{% if add_generation_prompt %}<|im_start|>assistant\n"
PLAIN = TURNS + BEGIN + "{% endif %}"
OPEN = TURNS + BEGIN + "<think>\n{% endif %}"
SWITCHED = (
    TURNS + BEGIN + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
ASKED = f"<|im_start|>user\n{IMAGE * 2}what changed?<|im_end|>\n<|im_start|>assistant\n"


def model(template: str | None, of_tokenizer: bool = False) -> VLMCaptioner:
    made = captioner("qwen3_vl")
    owner: Any = made.built_net.processor
    (owner.tokenizer if of_tokenizer else owner).chat_template = template
    return made


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (PLAIN, ASKED),
        (OPEN, ASKED + "<think>\n\n</think>\n\n"),
        (SWITCHED, ASKED + "<think>\n\n</think>\n\n"),
        (None, f"{IMAGE * 2}\nwhat changed?\n"),
    ],
)
def test_a_prompt_leaves_no_thought_open(template: str | None, expected: str) -> None:
    net: Any = model(template).net
    assert net.family.prompt(net.processor, "what changed?") == expected


def test_a_template_of_the_tokenizer_is_used() -> None:
    net: Any = model(PLAIN, of_tokenizer=True).net
    assert net.processor.chat_template is None
    assert net.family.prompt(net.processor, "what changed?") == ASKED


def test_a_template_that_drops_the_question_is_refused() -> None:
    net: Any = model(PLAIN.replace("{{ c['text'] }}", "")).net
    with pytest.raises(ConfigError, match="leaves out the question 'what changed"):
        net.family.prompt(net.processor, "what changed?")


@pytest.mark.parametrize(
    ("answer", "caption"),
    [
        ("the cube is small, so it moved.\n</think>\n\nthe cylinder is gone", "the cylinder is gone"),
        ("<think>it moved</think>the cylinder is gone", "the cylinder is gone"),
        ("[THINK]it moved[/THINK]the cylinder is gone", "the cylinder is gone"),
        ("<think>the cube is small, so", ""),
        ("the cylinder is gone", "the cylinder is gone"),
    ],
)
@pytest.mark.parametrize("special", [False, True])
def test_a_caption_has_no_thought(answer: str, caption: str, special: bool) -> None:
    made = captioner("qwen3_vl")
    processor: Any = made.built_net.processor
    if special:
        processor.tokenizer.add_special_tokens(
            {"additional_special_tokens": ["<think>", "</think>", "[THINK]", "[/THINK]"]}
        )
    vocabulary = TokenizerVocabulary(processor)
    assert vocabulary.decode(vocabulary.encode(answer)[1:]) == caption


def test_ids_beyond_the_tokenizer_are_never_generated() -> None:
    made = captioner("qwen2_5_vl")
    net: Any = made.net
    size = len(net.processor.tokenizer)
    net.model.resize_token_embeddings(size + 60)
    head = net.model.get_output_embeddings().weight
    head.data[size:] = 10 * head.data[:60]
    vocabulary = TokenizerVocabulary(
        net.processor, None, net.media_tokens, net.model.config.get_text_config().vocab_size
    )
    made.use_vocabulary(vocabulary)
    features = made.encode(made.collate(samples(2)))
    with torch.no_grad():
        drawn = made.decoder.sample(features, 64, generator=torch.Generator().manual_seed(0)).ids
        greedy = made.decoder.search(features).ids
    assert all(index < size for ids in [*drawn, *greedy] for index in ids)


def test_a_tokenizer_larger_than_the_head_is_refused() -> None:
    net: Any = captioner("qwen2_5_vl").net
    size = len(net.processor.tokenizer)
    net.processor.tokenizer.add_tokens(["<new>", "<newer>"])
    with pytest.raises(ConfigError, match=f"has {size + 2} tokens and its head {size}"):
        TokenizerVocabulary(net.processor, head_size=size)


def test_settings_of_generation_that_are_not_used_are_named() -> None:
    from transformers import GenerationConfig

    config = GenerationConfig(repetition_penalty=1.05, eos_token_id=[1, 2], do_sample=True, temperature=1e-6)
    settings = unused_settings(config)
    assert settings.items() >= {"repetition_penalty": 1.05, "do_sample": True, "temperature": 1e-6}.items()
    assert not settings.keys() & {"eos_token_id", "transformers_version"}
    assert unused_settings(GenerationConfig(eos_token_id=1)) == {} == unused_settings(None)


TEMPLATE = "The difference between the two images is that the first image {}, while the second image {}."
SENTENCES = [
    TEMPLATE.format("shows a metallic-looking cube (it's big)", "shows 3.5 rubber spheres..."),
    "Someone's café moved: 10% of it — gone!",
    "nothing changed",
]


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava", "idefics3"])
def test_pieces_are_grouped_into_words(kind: str) -> None:
    made = captioner(kind)
    vocabulary = made.built_vocabulary
    for sentence in SENTENCES:
        ids = vocabulary.encode(sentence)[1:-1]
        groups = vocabulary.grouped(ids)
        assert [word for word, _ in groups] == words_of(sentence)
        assert sum(count for _, count in groups) == len(ids)
    parsed = ParsedCaption.from_tokens(vocabulary.encode(SENTENCES[0])[1:-1], vocabulary)
    assert parsed.follows_template
    assert parsed.description(1) == words_of("3.5 rubber spheres...")[: len(parsed.description(1))]
    mask = vocabulary.special.mask
    assert mask not in made.built_net.media_tokens and mask not in vocabulary.special.ends
    assert vocabulary.words[mask] == "_"


def test_a_word_that_shares_a_token_with_the_next_is_one_word() -> None:
    class Joined:
        words = ("the", " cube", "s.", " gone")

        def decode(self, ids: list[int], **options: Any) -> str:
            return "".join(self.words[index] for index in ids)

    vocabulary = TokenizerVocabulary.__new__(TokenizerVocabulary)
    vocabulary.tokenizer = Joined()
    assert vocabulary.grouped([0, 1, 2, 3]) == [("the", 1), ("cubes.", 2), ("gone", 1)]
