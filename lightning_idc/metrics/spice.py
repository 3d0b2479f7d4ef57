"""SPICE (Anderson et al. 2016) through pycocoevalcap's Java program and CoreNLP jars that the user provides.

pycocoevalcap's launcher downloads CoreNLP, writes into site-packages, and fails on Java 15 and later: its cache cannot
be serialised, and its output needs a JavaScript engine that Java no longer has. Here there is no cache, and a small
Java class writes the output. Without CoreNLP the result is :class:`~lightning_idc.metrics.meteor.NotComputed`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from lightning_idc.metrics.corpus import Floats, Tokens
from lightning_idc.metrics.meteor import NotComputed
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder

MEMORY = "-Xmx8G"
DEADLINE, DEADLINE_PER_TEXT = 600.0, 2.0
"""Time limit in seconds, and its part per text; the parser takes about 0.2 s per text."""
CORENLP = "LIGHTNING_IDC_CORENLP"
"""Environment variable with the default folder of CoreNLP's jars."""
JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_OPEN = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.math", "java.net", "java.text", "java.util.concurrent", "java.io")
]
# the constructors of the program are not public, and its own output needs JavaScript
_LAUNCHER = """
import java.lang.reflect.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;

public class Launcher {
    public static void main(String[] given) throws Throwable {
        Class<?> scorers = Class.forName("edu.anu.spice.SpiceScorer");
        Class<?> options = Class.forName("edu.anu.spice.SpiceArguments");
        Constructor<?> make = scorers.getDeclaredConstructor();
        Constructor<?> parse = options.getDeclaredConstructor(String[].class);
        make.setAccessible(true);
        parse.setAccessible(true);
        Object scorer = make.newInstance();
        Object parsed = parse.newInstance((Object) new String[] {given[0], "-silent", "-threads", given[2]});
        Method score = scorers.getMethod("scoreBatch", options);
        try {
            score.invoke(scorer, parsed);
        } catch (InvocationTargetException failed) {
            throw failed.getCause();
        }
        Field stats = scorers.getField("stats");
        Object answer = stats.get(scorer);
        Method text = answer.getClass().getMethod("toJSONString");
        Files.write(Paths.get(given[1]), ((String) text.invoke(answer)).getBytes(StandardCharsets.UTF_8));
    }
}
"""


Categories = dict[str, dict[str, float]]
"""Counts and scores of one pair by category, such as All, Object or Relation."""


def spice_scores(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]], corenlp: Path | None = None, threads: int = 1
) -> tuple[float, Floats] | NotComputed:
    """SPICE of the corpus, the mean over pairs, and of every pair ``(P,)``, 0 to 1; or the reason for its absence.

    Args:
        candidates: one token list per pair.
        references: token lists per pair.
        corenlp: folder with the two jars of CoreNLP 3.6.0; None reads the environment variable ``CORENLP``.
        threads: number of threads of the parser.
    """
    outcome = spice_by_category(candidates, references, corenlp, threads)
    if isinstance(outcome, NotComputed):
        return outcome
    scores = np.array([categories["All"]["f"] for categories in outcome])
    return float(scores.mean()), scores


def spice_by_category(
    candidates: Sequence[Tokens], references: Sequence[Sequence[Tokens]], corenlp: Path | None = None, threads: int = 1
) -> list[Categories] | NotComputed:
    """Precision (``pr``), recall (``re``), F-score (``f``) and counts of every pair; or the reason for their absence.

    Args:
        candidates: one token list per pair.
        references: token lists per pair.
        corenlp: as in :func:`spice_scores`.
        threads: as in :func:`spice_scores`.
    """
    folder = corenlp or (Path(os.environ[CORENLP]) if os.environ.get(CORENLP) else None)
    if folder is None:
        return NotComputed(f"the folder with {' and '.join(JARS)} is not set (--corenlp DIR, or {CORENLP})")
    absent = [name for name in JARS if not (folder / name).is_file()]
    if absent:
        return NotComputed(f"{folder} has no {' and no '.join(absent)}")
    java, program = shutil.which("java"), _program()
    if java is None:
        return NotComputed("no Java")
    if program is None:
        return NotComputed("pycocoevalcap, which contains SPICE's jar, is not installed")
    num_texts = sum(map(len, references), len(candidates))
    pairs = [
        {"image_id": number, "test": " ".join(candidate), "refs": [" ".join(tokens) for tokens in pair_references]}
        for number, (candidate, pair_references) in enumerate(zip(candidates, references, strict=True))
    ]
    jars = [program, *sorted((program.parent / "lib").glob("*.jar")), *_jars(folder)]
    try:
        return _run(java, jars, pairs, num_texts, threads)
    except subprocess.TimeoutExpired as error:
        return NotComputed(f"SPICE's program did not answer in {error.timeout:g} s")
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
        return NotComputed(f"SPICE's program failed ({error})")


def _program() -> Path | None:
    folder = pycocoevalcap_folder()
    return None if folder is None or not (jar := folder / "spice" / "spice-1.0.jar").is_file() else jar


def _jars(folder: Path) -> list[Path]:
    return [folder / name for name in JARS]


def _run(
    java: str, jars: Sequence[Path], pairs: Sequence[object], num_texts: int, threads: int
) -> list[Categories] | NotComputed:
    version = _version(java)
    if version < 11:
        return NotComputed(f"Java {version} cannot start a single source file; SPICE needs a JDK of Java 11 or later")
    with tempfile.TemporaryDirectory(prefix="spice") as path:
        folder = Path(path)
        input_file, output_file = folder / "pairs.json", folder / "scores.json"
        input_file.write_text(json.dumps(pairs), encoding="ascii")
        (folder / "Launcher.java").write_text(_LAUNCHER, encoding="ascii")
        command = [java, MEMORY, *_OPEN, "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"]
        command += ["-cp", os.pathsep.join(map(str, jars)), str(folder / "Launcher.java")]
        process = subprocess.run(
            [*command, str(input_file), str(output_file), str(threads)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=DEADLINE + DEADLINE_PER_TEXT * num_texts,
        )
        if process.returncode or not output_file.is_file():
            return NotComputed(f"SPICE's program ended with code {process.returncode}: {_reason(process.stderr)}")
        answers = json.loads(output_file.read_text(encoding="utf-8"))
    by_number = {answer["image_id"]: answer["scores"] for answer in answers}
    return [_as_floats(by_number[number]) for number in range(len(pairs))]


def _as_floats(answer: Mapping[str, Mapping[str, float | None]]) -> Categories:
    """An answer of the program with NaN for its nulls.

    Raises:
        KeyError: the answer has no F-score of all categories.
    """
    if "f" not in answer["All"]:
        raise KeyError("f")
    return {
        category: {name: math.nan if value is None else float(value) for name, value in values.items()}
        for category, values in answer.items()
    }


def _version(java: str) -> int:
    """Major version of Java; 8 for "1.8"."""
    process = subprocess.run(
        [java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE
    )
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr)
    return int(match.group(1)) if match else 0


def _reason(stderr: str) -> str:
    """The first line of Java's output that names an error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"Exception|Error|error:", line)]
    return (errors or lines or ["no output"])[0][:300]
