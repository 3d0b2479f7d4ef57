"""The tokenizer against Stanford's Java program, on real captions and on the cases that trip line-based tools."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_idc.metrics.tokenizer import ptb_tokenize

REMOVED = {"''", "'", "``", "`", "-LRB-", "-RRB-", "-LCB-", "-RCB-", ".", "?", "!", ",", ":", "-", "--", "...", ";"}


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("A man's dog isn't here.", "a man 's dog is n't here"),
        ("The car (red) moved", "the car -lrb- red -rrb- moved"),
        ("We cannot see it...", "we can not see it"),
        ("It's 5:30 on St. Mary's Rd.", "it 's 5:30 on st. mary 's rd."),
        ('He said "stop!" -- twice', "he said stop twice"),
        ("a two-story building and/or a barn", "a two-story building and/or a barn"),
        ("first line\rsecond\u2028third\nfourth", "first line second third fourth"),
        ("", ""),
        ("...", ""),
        ("the T.V. set", "the t.v. set"),
        ("$5 for 3,000 at 12:55PM", "$ 5 for 3,000 at 12:55 pm"),
    ],
)
def test_known_cases(text: str, tokens: str) -> None:
    assert ptb_tokenize(text) == tokens.split()


def real_captions(count: int) -> list[str]:
    pycocoevalcap = pytest.importorskip("pycocoevalcap")
    jar = Path(next(iter(pycocoevalcap.__path__))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        annotations = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    captions = [" ".join(record["caption"].split()) for record in annotations]
    random.Random(0).shuffle(captions)
    return captions[:count]


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java, the oracle")
def test_forty_thousand_real_captions(tmp_path: Path) -> None:
    captions = real_captions(40_000)
    (tmp_path / "captions.txt").write_text("\n".join(captions), encoding="utf-8")
    import pycocoevalcap

    jar = Path(next(iter(pycocoevalcap.__path__))) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = [
        "java",
        "-cp",
        str(jar),
        "edu.stanford.nlp.process.PTBTokenizer",
        "-preserveLines",
        "-lowerCase",
        "captions.txt",
    ]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True, timeout=120).stdout.decode()
    expected = [[w for w in line.split() if w not in REMOVED] for line in output.split("\n")]
    different = [c for c, tokens in zip(captions, expected, strict=False) if ptb_tokenize(c) != tokens]
    assert len(different) <= 4, different  # 99.99 %


@given(st.text(max_size=80))
def test_any_text_gives_plain_tokens(text: str) -> None:
    for token in ptb_tokenize(text):
        assert token and not any(c.isspace() for c in token)
