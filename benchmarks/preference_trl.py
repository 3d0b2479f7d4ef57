"""DPO on a two-image vision-language model: PreferenceOptimization and TRL's DPOTrainer with equal model and batch.

    pip install trl accelerate datasets
    python -m benchmarks.preference_trl [--steps 5] [--size prototype] [--out FILE]
    python -m benchmarks.preference_trl --size qwen2_5_vl_3b --steps 10  # needs a GPU of 80 GB

``prototype`` is a random LLaVA-OneVision of 26 M parameters (vision 6 x 256, language 6 x 256, 32,000 words), two
images of 224 px with 256 tokens each, answers of about 50 tokens, 2 pairs a batch, float32, one thread, AdamW, a
separate frozen copy as the reference on both sides, each timed inside its own trainer. ``qwen2_5_vl_3b`` has full
shapes, random weights in bf16 and LoRA on the language model; the reference on both sides is the model without LoRA.
The small sizes are for testing the script. The log-probabilities of the answers under the same weights are compared
first. Each side runs in a separate process; memory is the peak of that process (or of the GPU), and its growth after
the model was loaded.

The sources of the speedup are switched off in turn: ``own prompt`` processes the prompt again for every answer; ``own
look`` also encodes the pair again for every answer. Both sides evaluate the reference in one pass without gradient;
``kept scores`` reads its log-probabilities from CachedScores, which TRL does not support for images.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import torch  # noqa: E402 - after the number of threads is set

from benchmarks import vlm_scoring  # noqa: E402
from benchmarks.harness import give_back, measure_apart, report  # noqa: E402
from benchmarks.steps import MadeUp, MadeUpPairs, Stopwatch, forget_peak, matrix_rate, now, peak, time_steps  # noqa: E402

SMALLER = 0.5
"""Target: at most this share of TRL's memory."""
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PROMPT = "What changed from the first image to the second?"
SIDES: dict[str, frozenset[str]] = {
    "trl": frozenset(),
    "ours": frozenset(),
    "ours, own prompt": frozenset({"prompt"}),
    "ours, own look": frozenset({"prompt", "look"}),
    "ours, kept scores": frozenset({"reference"}),
}
"""What each side does without."""


LANGUAGE = r".*language_model.*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"


@dataclass(frozen=True)
class Size:
    """A model and how it is trained.

    Args:
        architecture: configuration of the random model.
        side: side of the images in pixels.
        lora: train LoRA on the language model in bf16 instead of all weights in float32.
        device: device of the training.
        faster: target speed, as a multiple of TRL's.
        equal: maximum relative difference of the log-probabilities.
    """

    architecture: dict[str, Any]
    side: int = 224
    lora: bool = False
    device: str = "cpu"
    faster: float = 5.0
    equal: float = 1e-5

    @property
    def dtype(self) -> str:
        return "bfloat16" if self.lora else "float32"


def llava(width: int, layers: int, words: int) -> dict[str, Any]:
    """LLaVA-OneVision with towers of one width."""
    tower = {"image_size": 224, "patch_size": 14, "num_attention_heads": 4, "model_type": "siglip_vision_model"}
    sized = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return {
        "model_type": "llava_onevision",
        "vision_config": {**tower, **sized, "vision_use_head": False},
        "text_config": {"model_type": "qwen2", **sized, **heads, "vocab_size": words},
    }


SMALL_QWEN: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "vision_config": {
        "depth": 2,
        "hidden_size": 64,
        "num_heads": 2,
        "intermediate_size": 64,
        "out_hidden_size": 64,
        "fullatt_block_indexes": [1],
    },
    "text_config": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 2000,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 1e6},
    },
}
BF16 = {"lora": True, "faster": 2.5, "equal": 1e-3}
SIZES = {
    "prototype": Size(llava(256, 6, 32000)),
    "small": Size(llava(64, 2, 2000)),
    "small_qwen": Size(SMALL_QWEN, **BF16),
    "qwen2_5_vl_3b": Size(vlm_scoring.SIZES["qwen2_5_vl_3b"][1], side=448, device="cuda", **BF16),
}


def answers(count: int) -> list[tuple[str, str]]:
    """Chosen and rejected answers of about fifty tokens."""
    words = [
        "the",
        "large",
        "red",
        "metal",
        "cube",
        "left",
        "of",
        "small",
        "blue",
        "rubber",
        "sphere",
        "moved",
        "to",
        "right",
        "and",
        "is",
        "now",
        "behind",
        "green",
    ]
    generator = torch.Generator().manual_seed(0)

    def sentence() -> str:
        return " ".join(words[i] for i in torch.randint(len(words), (48,), generator=generator).tolist())

    return [(sentence(), sentence()) for _ in range(count)]


def make(folder: Path, size: Size) -> None:
    """Write a random model with its processor."""
    from lightning_idc.models.vlm.families import family_of
    from lightning_idc.models.vlm.loading import make_model, train_tokenizer

    torch.manual_seed(0)
    family = family_of(size.architecture["model_type"])
    special = [*family.special_tokens.values(), "<|user|>", "<|assistant|>"]
    texts = [PROMPT, *(text for pair in answers(8) for text in pair)]
    with torch.device(size.device):
        model, processor, _ = make_model(size.architecture, train_tokenizer(texts, 600, special))
    processor.chat_template = CHAT.replace("IMAGE", family.image_text)
    model.to(getattr(torch, size.dtype)).save_pretrained(folder)
    processor.save_pretrained(folder)


def prompt_columns(pair: torch.Tensor) -> dict[str, Any]:
    """Images ``(2, 3, H, W)`` and question in the format of TRL's data sets."""
    from PIL import Image

    content = [{"type": "image"}, {"type": "image"}, {"type": "text", "text": PROMPT}]
    return {
        "images": [Image.fromarray(side.permute(1, 2, 0).numpy()) for side in pair],
        "prompt": [{"role": "user", "content": content}],
    }


def assistant_message(text: str) -> list[dict[str, Any]]:
    """Answer in the format of TRL's data sets."""
    return [{"role": "assistant", "content": [{"type": "text", "text": text}]}]


def trl_clock(watch: Stopwatch) -> Any:
    """A callback of TRL's trainers that times every step."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_begin(self, *unused: Any, **more: Any) -> None:
            watch.begin()

        def on_step_end(self, *unused: Any, **more: Any) -> None:
            watch.end()

    return Clock()


def trl_options(folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """Settings shared by TRL's trainers, equal to ours."""
    return {
        "output_dir": str(folder / "trl"),
        "per_device_train_batch_size": batch,
        "max_steps": steps,
        "use_cpu": size.device == "cpu",
        "report_to": [],
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "max_length": None,
        "learning_rate": 1e-6,
        "disable_tqdm": True,
        "model_init_kwargs": {"dtype": size.dtype},
        "optim": "adamw_torch_fused",
        "max_grad_norm": 1.0,
    }


def of_trl(folder: Path, size: Size, steps: int, batch: int) -> dict[str, Any]:
    """Seconds of TRL's training steps and its log-probabilities before the first."""
    from datasets import Dataset
    from peft import LoraConfig
    from trl import DPOConfig, DPOTrainer

    answer_pairs = answers(batch * 2)
    rows = [
        {"chosen": assistant_message(chosen), "rejected": assistant_message(rejected), **prompt_columns(pair)}
        for pair, (chosen, rejected) in zip(MadeUp(size.side, answer_pairs).images, answer_pairs, strict=True)
    ]
    watch = Stopwatch(partial(now, size.device))
    config = DPOConfig(**trl_options(folder, size, steps, batch), bf16=size.lora)
    # a data set of twice the batch repeats from the first step on
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=LANGUAGE) if size.lora else None
    data = Dataset.from_list(rows)
    trainer = DPOTrainer(str(folder), args=config, train_dataset=data, callbacks=[trl_clock(watch)], peft_config=lora)
    inputs = trainer.data_collator([dict(trainer.train_dataset[i]) for i in range(batch)])
    inputs = {name: value.to(trainer.model.device) for name, value in inputs.items()}
    mask = inputs.pop("completion_mask")[:, 1:]
    with torch.no_grad():
        logits = trainer.model.eval()(**inputs).logits[:, :-1].float()
    picked = logits.log_softmax(-1).gather(-1, inputs["input_ids"][:, 1:, None])[..., 0]
    before = forget_peak(size.device)
    trainer.train()
    return {
        **watch.measurements(),
        "bytes": peak(size.device),
        "growth": peak(size.device) - before,
        "log_probs": (picked * mask).sum(1).tolist(),
    }


def of_ours(folder: Path, size: Size, steps: int, batch: int, without: frozenset[str]) -> dict[str, Any]:
    """Seconds of this library's training steps and its log-probabilities before the first."""
    from lightning_idc.methods.adpo.negatives import NegativeSource, RejectedCaptions
    from lightning_idc.methods.adpo.preference import PreferenceOptimization
    from lightning_idc.methods.policy.cached_scores import CachedScores
    from lightning_idc.methods.policy.references import AdaptersOff, FrozenCopy, ReferencePolicy
    from lightning_idc.models.captions import pad_captions
    from lightning_idc.models.vlm.lora import LoRA
    from lightning_idc.models.vlm.module import VLMCaptioner
    from lightning_idc.models.vlm.net import VLMNet

    answer_pairs = answers(batch * 2)
    data = MadeUpPairs(size.side, [[chosen] for chosen, _ in answer_pairs], batch_size=batch)

    class Rejected(NegativeSource):
        def draw(self, step: Any, count: int, generator: torch.Generator) -> RejectedCaptions:
            return RejectedCaptions([[answer_pairs[int(id)][1]] for id in step.batch.ids])

    class Captioner(VLMCaptioner):
        seen: Any = None

        def encode(self, batch: Any) -> Any:
            self.__dict__["seen"] = batch
            return super().encode(batch)

        def score(self, features: Any, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            if "prompt" not in without:
                return super().score(features, tokens, mask)
            looks = []
            for k, (ids, kept) in enumerate(zip(tokens.split(1, 1), mask.split(1, 1), strict=True)):
                again = k > 0 and "look" in without
                looks.append(super().score(self.encode(self.seen) if again else features, ids, kept))
            return torch.cat(looks, 1)

    captioner = Captioner(
        model=str(folder),
        prompt=PROMPT,
        captions_per_pair=1,
        max_length=64,
        dtype=size.dtype,
        optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-6),
    )
    captioner.build()
    assert isinstance(captioner.net, VLMNet)
    captioner.eval().to(size.device)
    first = captioner.collate([data.made_up.load(i) for i in range(batch)]).to(captioner.device)
    results = []
    for side in (0, 1):
        tokens, mask = pad_captions(
            [[ids] for ids in captioner.tokenize([answer_pairs[i][side] for i in range(batch)])], 1
        )
        with torch.no_grad():
            scores = captioner.score(captioner.encode(first), tokens.to(size.device), mask.to(size.device))
            results += scores[:, 0].tolist()
    captioner.train()
    reference: ReferencePolicy = AdaptersOff() if size.lora else FrozenCopy()
    if "reference" in without:
        reference = CachedScores(reference)
    callbacks: list[Any] = [PreferenceOptimization(negatives=Rejected(), reference=reference)]
    if size.lora:
        callbacks = [LoRA(rank=16, alpha=32, targets=LANGUAGE, freeze=["model", "lm_head"]), *callbacks]
    precision = "bf16-mixed" if size.lora else "32-true"
    return {"log_probs": results, **time_steps(captioner, data, steps, size.device, precision, callbacks, folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", choices=list(SIZES), default="prototype")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=list(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = SIZES[arguments.size]
    if arguments.side:
        common = arguments.folder, size, arguments.steps, arguments.batch
        row = of_trl(*common) if arguments.side == "trl" else of_ours(*common, SIDES[arguments.side])
        give_back(row)
        return
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), size)
        for side in SIDES:
            shared = (
                "--folder",
                name,
                "--size",
                arguments.size,
                "--steps",
                arguments.steps,
                "--batch",
                arguments.batch,
            )
            results[side] = measure_apart("--side", side, *shared)
            row = results[side]
            times = row["seconds_per_step"] / results.get("ours", row)["seconds_per_step"]
            print(
                f"{side:<20} {row['seconds_per_step']:7.2f} s a step, peak {row['bytes'] / 2**30:5.2f} GB, "
                f"{row['growth'] / 2**30:5.2f} GB of it for training" + (f", {times:.2f} x ours" if times != 1 else ""),
                flush=True,
            )
    trl, ours = results["trl"], results["ours"]
    apart = {
        side: max(abs(a - b) / abs(a) for a, b in zip(trl["log_probs"], row["log_probs"], strict=True))
        for side, row in results.items()
        if side != "trl"
    }
    ratios = {
        "faster": trl["seconds_per_step"] / ours["seconds_per_step"],
        "memory": ours["bytes"] / trl["bytes"],
        "memory_growth": ours["growth"] / max(1, trl["growth"]),
        "log_probs_apart": max(apart.values()),
    }
    print(
        f"log-probabilities apart by {ratios['log_probs_apart']:.1e} at most (target: {size.equal}), "
        f"{ratios['faster']:.2f} times as fast (target: {size.faster}), {ratios['memory']:.2f} of the memory "
        f"(target: {SMALLER})"
    )
    if size.device == "cpu":
        rate = matrix_rate()
        limit = ours["flops"] / rate
        ratios["limit"] = {
            "gflop_a_step": {"trl": trl["flops"] / 1e9, "ours": ours["flops"] / 1e9},
            "gflops_of_a_large_product": rate / 1e9,
            "seconds_at_that_rate": limit,
            "faster_at_that_rate": trl["seconds_per_step"] / limit,
        }
        print(
            f"a step is {trl['flops'] / 1e9:.0f} GFLOP of TRL's and {ours['flops'] / 1e9:.0f} of ours, which takes "
            f"{limit:.2f} s at the {rate / 1e9:.0f} GFLOP/s of a large product: "
            f"{ratios['limit']['faster_at_that_rate']:.1f} times as fast"
        )
    packages = ("lightning", "transformers", "trl", "accelerate")
    report({"sides": results, "ours_beside_trl": ratios}, arguments.out, *packages, seeds=[0, 1], quiet=True)


if __name__ == "__main__":
    main()
