"""Texts of chat messages, in the forms that TRL, ms-swift, LLaMA-Factory and MMPR store them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def message_text(value: Any) -> str:
    """Text of a string, a message or a list of message parts, with single spaces; empty for any other value.

    Example:
        >>> message_text({"role": "assistant", "content": [{"type": "text", "text": "it  moved"}]})
        'it moved'
    """
    if isinstance(value, Mapping):
        value = value.get("content", value.get("value"))
    if isinstance(value, list):
        value = " ".join(str(part.get("text")) for part in value if isinstance(part, Mapping) and part.get("text"))
    return " ".join(value.split()) if isinstance(value, str) else ""


def last_text(value: Any) -> str:
    """Text of a string or message, or of the last message of a conversation; empty for any other value.

    Example:
        >>> last_text([{"role": "user", "content": "what changed?"}, {"role": "assistant", "content": "it moved"}])
        'it moved'
    """
    return message_text(value[-1] if isinstance(value, list) and value else value)


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, each with a role and a content."""
    names = ("content", "value")
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and any(name in turn for name in names) for turn in value)
    )
