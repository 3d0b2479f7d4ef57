"""The tokenizer against Stanford's Java program, on real captions and on cases that break line-based tools."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_idc.metrics.tokenizer import ptb_tokenize

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="needs Java, the oracle")

CASES = {
    "A man's dog isn't here.": "a man 's dog is n't here",
    "The car (red) moved": "the car -lrb- red -rrb- moved",
    "[a] {b} ((c))": "-lsb- a -rsb- -lcb- b -rcb- -lrb- -lrb- c -rrb- -rrb-",
    "We cannot see it...": "we can not see it",
    "It's 5:30 on St. Mary's Rd. now": "it 's 5:30 on st. mary 's rd. now",
    'He said "stop!" -- twice': "he said stop twice",
    "a two-story building and/or a barn": "a two-story building and/or a barn",
    "": "",
    "...": "",
    "the T.V. set, the t.v.on": "the t.v. set the t.v.on",
    "$5 for 3,000 at 12:55PM": "$ 5 for 3,000 at 12:55 pm",
    "£5 €5 5¢ ½ ¾-inch US$5": "# 5 $ 5 5 cents 1/2 3/4 inch us$ 5",
    "a walk/don't walk sign": "a walk/don t walk sign",
    "C++ and c# but f++": "c++ and c# but f + +",
    "M&Ms at AT&T's R&B bar, m&m": "m&m s at at&t 's r&b bar m & m",
    "graffiti'ed Ho'ohu ma'am o'clock O'Brien y'all": "graffiti'ed ho'ohu ma'am o'clock o'brien y' all",
    "'tis rock 'n' roll 'til the '90s, get 'em": "'t is rock 'n' roll 'til the '90s get 'em",
    "the 'no turn on red' sign": "the no turn on red sign",
    "it''s dogs' 6' 5\" n't": "it s dogs 6 5 n't",
    "I. The step, near a. catcher, letter S. The end of no. 5 or no. five": (
        "i the step near a. catcher letter s the end of no. 5 or no five"
    ),
    "from 6-8:30 am, oranges,2 b -3 +3 x-1.2": "from 6-8 :30 am oranges ,2 b -3 +3 x-1 .2",
    "city :-) and :D but label:Done": "city :--rrb- and :d but label done",
    "@me #tag foo@bar.com www.foo.com http://a.com/b?c=1 lo_": (
        "@me #tag foo@bar.com www.foo.com http://a.com/b?c=1 lo _"
    ),
    "wow!! really?! <b>so</b> <<": "wow !! really ?! <b> so </b> <<",
    "a “b” ‘c’ d’s isn’t e–f g—h i…": "a b c d 's is n't e f g h i",
    "naïve café 日本 5°C 5×5 ★ 😀 «x»": "naïve café 日本 5 ° c 5 × 5 ★ x",
    "gonna gotta Lemme wanna": "gon na got ta lem me wan na",
    "x---y ----- z": "x y ----- z",
    "images/a_b/c.png pair/img1.png": "images/a _ b/c png pair/img1 png",
}


@pytest.mark.parametrize("text", CASES)
def test_known_cases(text: str) -> None:
    assert ptb_tokenize(text) == CASES[text].split()


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\u2028", "\u2029", "\x85", "\x0b", "\t", "\u00a0"])
def test_line_breaks_are_white_space(end: str) -> None:
    """pycocoevalcap passes one caption per line; all of these but a line feed would shift every later caption."""
    assert ptb_tokenize(f"first{end}second {end}. third{end}") == ["first", "second", "third"]


def oracle(texts: list[str], folder: Path) -> list[list[str]]:
    """Return the tokens of Java, as seen by the scorers of pycocoevalcap."""
    import pycocoevalcap
    from pycocoevalcap.tokenizer.ptbtokenizer import PUNCTUATIONS

    (folder / "captions.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    jar = Path(next(iter(pycocoevalcap.__path__))) / "tokenizer" / "stanford-corenlp-3.4.1.jar"
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", str(jar), "edu.stanford.nlp.process.PTBTokenizer"]
    command += ["-preserveLines", "-lowerCase", "captions.txt"]
    output = subprocess.run(command, cwd=folder, capture_output=True, check=True, timeout=120).stdout.decode()
    lines = output.split("\n")[: len(texts)]
    removed = set(PUNCTUATIONS)
    # scorers split at any white space, and Java writes some tokens with a non-breaking space
    return [" ".join(word for word in line.rstrip().split(" ") if word not in removed).split() for line in lines]


@pytest.mark.slow
@needs_java
def test_known_cases_equal_java(tmp_path: Path) -> None:
    assert dict(zip(CASES, oracle(list(CASES), tmp_path), strict=True)) == {c: t.split() for c, t in CASES.items()}


@pytest.fixture(scope="module")
def captions() -> list[str]:
    """Return 40,000 real captions."""
    pycocoevalcap = pytest.importorskip("pycocoevalcap")
    jar = Path(next(iter(pycocoevalcap.__path__))) / "spice" / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive:
        annotations = json.loads(archive.read("coco/annotations/captions_val2014.json"))["annotations"]
    texts = [" ".join(record["caption"].split()) for record in annotations]
    random.Random(0).shuffle(texts)
    return texts[:40_000]


@pytest.mark.slow
@needs_java
def test_forty_thousand_real_captions(captions: list[str], tmp_path: Path) -> None:
    expected = oracle(captions, tmp_path)
    different = [c for c, tokens in zip(captions, expected, strict=True) if ptb_tokenize(c) != tokens]
    assert len(different) <= 4, different  # 99.99 %


@pytest.mark.slow
@needs_java
def test_mutilated_captions(captions: list[str], tmp_path: Path) -> None:
    """Characters inserted into words reach code that real captions do not; 99.9 % must be equal."""
    generator = random.Random(0)
    signs = [
        *".,:;!?'\"-()/&$#@%*+_=[]’“”–—é°£½",
        "...",
        "''",
        "'s",
        "n't",
        "1",
        "10",
        "pm",
        "St.",
        "U.S.",
        "no.",
        "C++",
    ]
    mutilated = []
    for text in captions[:5000]:
        words = text.split()
        for _ in range(generator.randint(1, 2)):
            place = generator.randrange(len(words))
            cut = generator.choice([0, len(words[place]), generator.randint(0, len(words[place]))])
            words[place] = words[place][:cut] + generator.choice(signs) + words[place][cut:]
        # in Java, the next line affects a final "S.", but here it is another caption
        mutilated.append(" ".join(words) + " end")
    expected = oracle(mutilated, tmp_path)
    different = [c for c, tokens in zip(mutilated, expected, strict=True) if ptb_tokenize(c) != tokens]
    assert len(different) <= 5, different


@given(st.text(max_size=80) | st.text(alphabet="aA1 .,'’-_/&<>@:;()n\u00ad\u200b", max_size=60))
def test_any_text_gives_plain_tokens(text: str) -> None:
    for token in ptb_tokenize(text):
        assert token and token == token.strip() and not any(c.isspace() for c in token)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.text(alphabet="aZ1.,'’-_/&<>@:;()n€#", min_size=1, max_size=6))
def test_long_garbage_takes_linear_time(piece: str) -> None:
    """On 10,000 characters without a space, a rule with backtracking would take minutes."""
    began = time.process_time()
    ptb_tokenize((piece * 10_000)[:10_000])
    assert time.process_time() - began < 5
