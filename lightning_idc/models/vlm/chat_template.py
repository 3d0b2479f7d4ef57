"""Prompts in the chat template of a model, checked.

A prompt that differs from those of the model's training changes its answers, and no score shows why; so the rendered
text is checked here, the one function through which all prompts go.
"""

from __future__ import annotations

from typing import Any

from lightning_idc.utils.answers import MARKERS
from lightning_idc.utils.errors import ConfigError

SWITCH = "enable_thinking"
"""Variable by which templates of models that think turn it off."""


def template_of(processor: Any) -> str | None:
    """Chat template of a processor, or of its tokenizer where the processor has none."""
    template: Any = processor.chat_template or getattr(processor.tokenizer, "chat_template", None)
    text: str | None = template.get("default") if isinstance(template, dict) else template
    return text


def render(processor: Any, question: str, num_images: int) -> str:
    """Prompt of a question about images in the model's chat template, with the turn of the model begun.

    A model that thinks before it answers is made to answer at once: by the switch of its template, or by an empty
    thought, which ends the one that the template begins.

    Args:
        processor: processor with a chat template.
        question: instruction after the images.
        num_images: number of images before the question.

    Raises:
        ConfigError: the rendered prompt lacks the question.
    """
    template = template_of(processor)
    assert template is not None
    content = [{"type": "image"}] * num_images + [{"type": "text", "text": question}]
    options = {SWITCH: False} if SWITCH in template else {}
    text: str = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        chat_template=template,
        add_generation_prompt=True,
        tokenize=False,
        **options,
    )
    if question.strip() not in text:
        raise ConfigError(
            f"the chat template of the model leaves out the question {question!r}; give the model's processor a "
            "template that takes contents as lists of images and texts, or none"
        )
    return close_thought(text)


def close_thought(prompt: str) -> str:
    """Prompt in which a thought that is begun at the end is ended.

    Example:
        >>> close_thought("assistant\\n<think>\\n")
        'assistant\\n<think>\\n\\n</think>\\n\\n'
    """
    for begin, end in MARKERS:
        _, begun, thought = prompt.rpartition(begin)
        if begun and end not in thought:
            return f"{prompt.rstrip()}\n\n{end}\n\n"
    return prompt
