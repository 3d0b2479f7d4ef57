"""SPICE (Anderson et al. 2016) through pycocoevalcap's Java program and the user's own CoreNLP jars.

pycocoevalcap's own launcher downloads CoreNLP, writes into site-packages, and fails on Java 15 and later in two
places: its cache cannot be serialised, and its output goes through a JavaScript engine that Java no longer has. Here
no cache is used, and a few lines of Java beside the program write its answer. There is no equal without CoreNLP, so
without it the answer is :class:`~lightning_idc.metrics.meteor.NotComputed` and never a number.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightning_idc.metrics.corpus import Floats, Tokens
from lightning_idc.metrics.meteor import NotComputed
from lightning_idc.metrics.meteor.resources import pycocoevalcap_folder

MEMORY = "-Xmx8G"
DEADLINE, DEADLINE_PER_TEXT = 600.0, 2.0
"""Seconds for the program, whose parser takes about a tenth of the second for one text."""
CORENLP = "LIGHTNING_IDC_CORENLP"
"""Environment variable that names the folder with CoreNLP's jars where no option does."""
JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
_OPEN = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in ("java.lang", "java.util", "java.math", "java.net", "java.text", "java.util.concurrent", "java.io")
]
# The program's constructor is not public. It reads one file and would write its answer through JavaScript.
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


def spice_scores(
    candidates: Sequence[Tokens],
    references: Sequence[Sequence[Tokens]],
    corenlp: Path | None = None,
    threads: int = 1,
) -> tuple[float, Floats] | NotComputed:
    """SPICE of the corpus, the mean over pairs, and of every pair ``(P,)``, 0 to 1; why not, where it cannot be had.

    Args:
        candidates: one token list per pair.
        references: token lists per pair.
        corenlp: folder with the two jars of CoreNLP 3.6.0; None asks the environment.
        threads: of the parser.
    """
    folder = corenlp or (Path(os.environ[CORENLP]) if os.environ.get(CORENLP) else None)
    if folder is None:
        return NotComputed(f"no folder with {' and '.join(JARS)} was named (--corenlp DIR, or {CORENLP})")
    absent = [name for name in JARS if not (folder / name).is_file()]
    if absent:
        return NotComputed(f"{folder} has no {' and no '.join(absent)}")
    java, program = shutil.which("java"), _program()
    if java is None:
        return NotComputed("no Java")
    if program is None:
        return NotComputed("pycocoevalcap, which brings SPICE's jar, is not installed")
    texts = sum(map(len, references), len(candidates))
    pairs = [
        {"image_id": number, "test": " ".join(candidate), "refs": [" ".join(tokens) for tokens in of_pair]}
        for number, (candidate, of_pair) in enumerate(zip(candidates, references, strict=True))
    ]
    try:
        return _run(
            java, [program, *sorted((program.parent / "lib").glob("*.jar")), *_jars(folder)], pairs, texts, threads
        )
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
    java: str, jars: Sequence[Path], pairs: Sequence[object], texts: int, threads: int
) -> tuple[float, Floats] | NotComputed:
    version = _version(java)
    if version < 11:
        return NotComputed(f"Java {version} cannot start a single source file; SPICE needs a JDK of Java 11 or later")
    with tempfile.TemporaryDirectory(prefix="spice") as place:
        folder = Path(place)
        asked, answered = folder / "pairs.json", folder / "scores.json"
        asked.write_text(json.dumps(pairs), encoding="ascii")
        (folder / "Launcher.java").write_text(_LAUNCHER, encoding="ascii")
        command = [java, MEMORY, *_OPEN, "-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8"]
        command += ["-cp", os.pathsep.join(map(str, jars)), str(folder / "Launcher.java")]
        ended = subprocess.run(
            [*command, str(asked), str(answered), str(threads)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            timeout=DEADLINE + DEADLINE_PER_TEXT * texts,
        )
        if ended.returncode or not answered.is_file():
            return NotComputed(f"SPICE's program ended with code {ended.returncode}: {_reason(ended.stderr)}")
        answers = json.loads(answered.read_text(encoding="utf-8"))
    by_number = {answer["image_id"]: answer["scores"]["All"]["f"] for answer in answers}
    scores = np.array([by_number[number] for number in range(len(pairs))], dtype=np.float64)
    return float(scores.mean()), scores


def _version(java: str) -> int:
    """Major version; of "1.8" it is 8."""
    asked = subprocess.run(
        [java, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DEADLINE
    )
    said = asked.stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0


def _reason(stderr: str) -> str:
    """The line of Java's many that says what went wrong."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Exception|Error|error:", line)]
    return (telling or lines or ["it said nothing"])[0][:300]
