"""How similar are the two images of a pair, as rated by a vision-language model (Figure 3 of ADPO, its GPT-4o half)?

    python -m benchmarks.studies.pair_similarity FOLDER --url https://api.openai.com/v1 --model gpt-4o [--out FILE]

100 random pairs of Spot-the-Diff's training split, in FOLDER, are rated from 1 (completely different) to 5 (almost
identical). The paper has a mean of 4.58 and more than 88 % of the pairs at 4 or 5; it gives the scale and not the
prompt, which is ours. The ratings of people in the same figure are not published. The key is read from OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness import report
from lightning_idc.data import SpotTheDiff
from lightning_idc.data.source import PairSource
from lightning_idc.metrics.judge import Rubric, ask_with_retries
from lightning_idc.synthesis import Endpoint, EndpointVision
from lightning_idc.synthesis.models.base import VisionLanguageModel

SIMILARITY = Rubric(
    "adpo-figure-3",
    "Rate how similar these two images are on a scale from 1 to 5: 1 completely different, 2 mostly different, 3 "
    "somewhat similar, 4 very similar, 5 almost identical. Answer with 'Score:' and the number.",
    5,
)


def rate(source: PairSource, model: VisionLanguageModel, pairs: int = 100, seed: int = 0) -> dict[str, Any]:
    """Distribution of the ratings of random pairs.

    Args:
        source: pairs of images.
        model: rates them.
        pairs: number of pairs.
        seed: seed of their choice.
    """
    order = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:pairs].tolist()
    prompt = SIMILARITY.format_prompt("", "")

    def ask(images: Sequence[list[Tensor]], attempt: int) -> list[str]:
        return model.answer(images, [prompt] * len(images))

    def read(index: int, answer: str) -> int | None:
        score = SIMILARITY.read(answer)
        return int(score) if score in (1, 2, 3, 4, 5) else None

    images = [[sample.before, sample.after] for sample in map(source.load, order)]
    scores, _, _ = ask_with_retries(ask, images, read, retries=2, batch_size=8)
    rated = [score for score in scores if score is not None]
    counts = Counter(rated)
    return {
        "pairs": len(images),
        "unparsed": len(images) - len(rated),
        "counts": {str(score): counts[score] for score in range(1, 6)},
        "mean": round(sum(rated) / len(rated), 2) if rated else None,
        "percent_4_or_5": round(100 * (counts[4] + counts[5]) / len(rated), 1) if rated else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, help="folder of Spot-the-Diff")
    parser.add_argument("--url", required=True, help="OpenAI-compatible endpoint, up to /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    model = EndpointVision(Endpoint(arguments.url, arguments.model))
    source = SpotTheDiff(arguments.root, on_missing="skip").pairs_of("train")
    result = rate(source, model, arguments.pairs, arguments.seed)
    report({**result, "model": arguments.model}, arguments.out, seeds=[arguments.seed])


if __name__ == "__main__":
    main()
