"""For which of the 616,767 COCO captions do the tokens differ from those of pycocoevalcap's Java tokenizer?

    python -m benchmarks.studies.tokens [--out FILE]

The captions are in pycocoevalcap's SPICE jar. Line breaks inside a caption become spaces for both, since they would
shift all later captions of the Java tokenizer, which has a timeout of two minutes and needs seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
import zipfile
from pathlib import Path

import pycocoevalcap
from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

from benchmarks.harness import report
from lightning_idc.metrics.tokenizer import ptb_tokenize

FOLDER = Path(next(iter(pycocoevalcap.__path__)))


def captions() -> list[str]:
    """All captions of both splits."""
    texts: list[str] = []
    with zipfile.ZipFile(FOLDER / "spice" / "spice-1.0.jar") as archive:
        for split in ("train", "val"):
            records = json.loads(archive.read(f"coco/annotations/captions_{split}2014.json"))["annotations"]
            texts += [" ".join(record["caption"].splitlines()) for record in records]
    return texts


def java_tokens(texts: list[str]) -> list[list[str]]:
    """Tokens as pycocoevalcap's scorers see them."""
    jar = FOLDER / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "captions.txt").write_text("\n".join(texts), encoding="utf-8")
        command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
        command += ["-preserveLines", "-lowerCase", "captions.txt"]
        output = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=120).stdout.decode()
    lines = output.split("\n")[: len(texts)]
    removed = set(PUNCTUATIONS)
    # scorers split at any white space, and Java writes some tokens with a space that does not break
    return [" ".join(word for word in line.rstrip().split(" ") if word not in removed).split() for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    texts = captions()
    expected = java_tokens(texts)
    began = time.process_time()
    results = [ptb_tokenize(text) for text in texts]
    seconds = time.process_time() - began
    different = [
        {"caption": text, "ours": " ".join(ours), "java": " ".join(java)}
        for text, ours, java in zip(texts, results, expected, strict=True)
        if ours != java
    ]
    result = {
        "captions": len(texts),
        "different": len(different),
        "equal_percent": round(100 * (1 - len(different) / len(texts)), 4),
        "cpu_s": round(seconds, 2),
        "examples": different[:40],
    }
    report(result, options.out, "pycocoevalcap", seeds=[], java=True)


if __name__ == "__main__":
    main()
