"""TRL's own trainers on exported data, with rewards of this library. TRL is installed by the extra ``trl``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from helpers.vlm_tiny import CAPTIONS, architecture

from lightning_idc.data import SyntheticPairs
from lightning_idc.data.export.files import export_pairs
from lightning_idc.methods import FactsReward, LengthReward, RandomCaption, as_trl_reward
from lightning_idc.methods.adpo.drawing import draw_all
from lightning_idc.models.vlm.families import family_of
from lightning_idc.models.vlm.loading import make_model, train_tokenizer

trl = pytest.importorskip("trl", reason="pip install 'lightning_idc[trl]'")
torch.set_num_threads(1)
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Save a tiny Qwen2-VL with random weights and its processor; return the folder."""
    torch.manual_seed(0)
    family = family_of("qwen2_vl")
    special = [*family.special_tokens.values(), "<|user|>", "<|assistant|>"]
    folder = tmp_path_factory.mktemp("model")
    net, processor, _ = make_model(architecture("qwen2_vl"), train_tokenizer(CAPTIONS, 320, special))
    processor.chat_template = TEMPLATE.replace("IMAGE", family.image_text)
    net.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> SyntheticPairs:
    cache = tmp_path_factory.mktemp("pairs")
    return SyntheticPairs(
        train_pairs=4, val_pairs=1, test_pairs=1, render_size=32, image_size=32, cache_dir=cache, progress=False
    )


def rows(folder: Path) -> Any:
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(folder / "cache"))


def options(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "run"),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "max_steps": 2,
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "learning_rate": 1e-3,
    }


@pytest.mark.slow
def test_dpo_trains_on_exported_preferences(model: str, pairs: SyntheticPairs, tmp_path: Path) -> None:
    export_pairs(pairs, tmp_path / "out", "trl", ["train"], {"train": draw_all(RandomCaption(), pairs, "train")})
    config = trl.DPOConfig(per_device_train_batch_size=2, max_length=None, **options(tmp_path))
    trainer = trl.DPOTrainer(model, args=config, train_dataset=rows(tmp_path / "out"))
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3), "the policy starts at its reference: log 2"
    assert len(losses) == 2 and losses[1] != losses[0]


@pytest.mark.slow
def test_grpo_trains_with_the_rewards_of_this_library(model: str, pairs: SyntheticPairs, tmp_path: Path) -> None:
    export_pairs(pairs, tmp_path / "out", "trl", ["train"])
    rewards = [as_trl_reward(FactsReward()), as_trl_reward(LengthReward(1, 8))]
    seen: list[tuple[list[Any], list[float]]] = []

    def watched(completions: list[Any], **columns: Any) -> list[float]:
        values = rewards[1](completions, **columns)
        seen.append((completions, values))
        return values

    config = trl.GRPOConfig(
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=6,
        beta=0.0,
        **options(tmp_path),
    )
    trainer = trl.GRPOTrainer(model, [rewards[0], watched], args=config, train_dataset=rows(tmp_path / "out"))
    trainer.train()
    history = [entry for entry in trainer.state.log_history if "rewards/FactsReward/mean" in entry]
    assert len(history) == 2 and all(0 <= entry["rewards/FactsReward/mean"] <= 1 for entry in history)
    for entry, (completions, values) in zip(history, seen, strict=True):
        assert entry["rewards/watched/mean"] == pytest.approx(sum(values) / 4)
        assert values == as_trl_reward(LengthReward(1, 8))([turn[-1]["content"] for turn in completions])
