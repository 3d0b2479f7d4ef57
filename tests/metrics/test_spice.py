"""SPICE's launcher with a small Java program that has SPICE's interface, since users install CoreNLP themselves."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lightning_idc.cli import main
from lightning_idc.metrics import spice
from lightning_idc.metrics.meteor import NotComputed
from lightning_idc.metrics.spice import JARS, spice_scores

CANDIDATES = [["red", "cube"], [], ["café"]]
REFERENCES = [[["red", "cube", "moved"], ["a", "cube"]], [["gone"]], [["café"]]]
# names, visibilities and output of edu.anu.spice; the score is the fraction of a caption's words in its references
ARGUMENTS = """
package edu.anu.spice;
public class SpiceArguments {
    public String inputPath, outputPath;
    public int numThreads;
    SpiceArguments(String[] given) {
        inputPath = given[0];
        for (int i = 1; i < given.length; i++) {
            if (given[i].equals("-threads")) numThreads = Integer.parseInt(given[++i]);
            else if (given[i].equals("-out")) outputPath = given[++i];
            else if (!given[i].equals("-silent")) System.exit(1);
        }
    }
}
"""
SCORER = """
package edu.anu.spice;
import java.nio.file.*;
import java.util.*;
import java.util.regex.*;
public class SpiceScorer {
    public Stats stats;
    SpiceScorer() {}
    public static class Stats {
        String text;
        public String toJSONString() { return text; }
    }
    public void scoreBatch(SpiceArguments arguments) throws java.io.IOException {
        String input = new String(Files.readAllBytes(Paths.get(arguments.inputPath)), "UTF-8");
        if (input.contains("explode")) throw new IllegalStateException("as asked");
        Matcher pairs = Pattern.compile(
            "\\"image_id\\": (\\\\d+), \\"test\\": \\"(.*?)\\", \\"refs\\": \\\\[(.*?)\\\\]").matcher(input);
        List<String> found = new ArrayList<>();
        while (pairs.find()) {
            List<String> words = new ArrayList<>(Arrays.asList(pairs.group(2).split(" ")));
            Set<String> known = new HashSet<>(Arrays.asList(pairs.group(3).replace("\\"", "").split("[ ,]+")));
            double hits = words.stream().filter(known::contains).count();
            String score = "{\\"All\\":{\\"f\\":" + hits / words.size() + "}}";
            found.add(0, "{\\"image_id\\":" + pairs.group(1) + ",\\"scores\\":" + score + "}");
        }
        stats = new Stats();
        stats.text = found.toString();
    }
}
"""


def test_missing_requirements_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spice.CORENLP, raising=False)
    assert "the folder with stanford-corenlp-3.6.0.jar" in str(spice_scores(CANDIDATES, REFERENCES))
    (tmp_path / JARS[0]).touch()
    assert str(spice_scores(CANDIDATES, REFERENCES, tmp_path)).endswith(f"has no {JARS[1]}")
    monkeypatch.setenv(spice.CORENLP, str(tmp_path / "elsewhere"))
    assert "elsewhere has no stanford" in str(spice_scores(CANDIDATES, REFERENCES))
    (tmp_path / JARS[1]).touch()
    monkeypatch.setattr(spice.shutil, "which", lambda name: None)
    assert spice_scores(CANDIDATES, REFERENCES, tmp_path) == NotComputed("no Java")


def test_rejects_an_old_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_292\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    assert spice._version(str(java)) == 8
    for name in JARS:
        (tmp_path / name).touch()
    monkeypatch.setattr(spice.shutil, "which", lambda name: str(java))
    assert "Java 8 cannot start a single source file" in str(spice_scores(CANDIDATES, REFERENCES, tmp_path))


def fake_java(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Write a `java` that reports version 17 and otherwise runs a script, and empty jars next to it."""
    for name in JARS:
        (folder / name).touch()
    java = folder / "java"
    version = """if [ "$1" = -version ]; then echo 'openjdk version "17.0.9" 2023-10-17' >&2; exit 0; fi"""
    java.write_text(f"#!/bin/sh\n{version}\n{body}\n", encoding="utf-8")
    java.chmod(0o755)
    monkeypatch.setattr(spice.shutil, "which", lambda name: str(java))


def test_input_and_output_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = tmp_path / "answer.json"
    scores = [{"image_id": n, "scores": {"All": {"f": f}}} for n, f in ((2, 0.5), (0, 1.0), (1, 0.0))]
    answer.write_text(json.dumps(scores))
    # the last three arguments are the pairs, the answer and the threads
    keep = f'''
echo "$@" > "{tmp_path}/command"; pwd > "{tmp_path}/place"
while [ $# -gt 3 ]; do shift; done
cp "$1" "{tmp_path}/pairs.json"; cp "{answer}" "$2"; echo "$3" > "{tmp_path}/threads"'''
    fake_java(tmp_path, monkeypatch, keep)
    outcome = spice_scores(CANDIDATES, REFERENCES, tmp_path, threads=3)
    assert not isinstance(outcome, NotComputed), outcome
    assert outcome[1].tolist() == [1.0, 0.0, 0.5] and outcome[0] == 0.5, "by number, not by place"
    command = (tmp_path / "command").read_text()
    assert "--add-opens=java.base/java.lang=ALL-UNNAMED" in command and "-Duser.language=en" in command
    assert all(str(tmp_path / name) in command for name in JARS)
    assert (tmp_path / "threads").read_text().strip() == "3"
    pairs = json.loads((tmp_path / "pairs.json").read_text(encoding="ascii"))
    assert pairs[2] == {"image_id": 2, "test": "café", "refs": ["café"]}
    assert not Path((tmp_path / "place").read_text().strip()).exists(), "nothing is left behind"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("echo 'x' >&2; echo 'java.lang.OutOfMemoryError: Java heap space' >&2; exit 1", "code 1: java.lang.OutOfMem"),
        ("exit 137", "code 137: no output"),
        ("exit 0", "code 0: no output"),
        ('while [ $# -gt 3 ]; do shift; done; echo "no json" > "$2"', "SPICE's program failed"),
        ('while [ $# -gt 3 ]; do shift; done; echo "[]" > "$2"', "SPICE's program failed"),
    ],
)
def test_failing_program_gives_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, told: str) -> None:
    fake_java(tmp_path, monkeypatch, body)
    outcome = spice_scores(CANDIDATES, REFERENCES, tmp_path)
    assert isinstance(outcome, NotComputed) and told in str(outcome)


@pytest.mark.parametrize("body", ["exec sleep 60", 'if [ "$1" = -version ]; then exec sleep 60; fi'])
def test_hanging_program_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    fake_java(tmp_path, monkeypatch, body)
    if "-version" in body:
        (tmp_path / "java").write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    monkeypatch.setattr(spice, "DEADLINE", 0.5)
    monkeypatch.setattr(spice, "DEADLINE_PER_TEXT", 0.0)
    assert spice_scores(CANDIDATES, REFERENCES, tmp_path) == NotComputed("SPICE's program did not answer in 0.5 s")


def test_command_line_gives_the_reason_for_missing_spice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, references = tmp_path / "said.json", tmp_path / "truth.json"
    captions.write_text(json.dumps({"a": "the cube", "b": "score"}))
    references.write_text(json.dumps({"a": ["the cube"], "b": ["the cube"]}))
    inputs = ["score", str(captions), "--references", str(references), "--metrics", "BLEU", "--corenlp", str(tmp_path)]
    assert main(inputs) == 0
    assert f"has no {JARS[0]}" in " ".join(capsys.readouterr().out.split())
    assert main([*inputs, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert "SPICE" in result["not_computed"] and "SPICE" not in result["scores"]["all"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_the_launcher_speaks_to_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "with blanks"
    source = folder / "edu" / "anu" / "spice"
    source.mkdir(parents=True)
    (source / "SpiceArguments.java").write_text(ARGUMENTS, encoding="utf-8")
    (source / "SpiceScorer.java").write_text(SCORER, encoding="utf-8")
    subprocess.run(["javac", "-nowarn", *map(str, source.glob("*.java"))], check=True, capture_output=True)
    for name in JARS:
        zipfile.ZipFile(folder / name, "w").close()
    subprocess.run(["jar", "cf", str(folder / "spice.jar"), "-C", str(folder), "edu"], check=True)
    monkeypatch.setattr(spice, "_program", lambda: folder / "spice.jar")
    monkeypatch.setattr(spice, "MEMORY", "-Xmx256M")
    outcome = spice_scores(CANDIDATES, REFERENCES, folder)
    assert not isinstance(outcome, NotComputed), outcome
    np.testing.assert_array_equal(outcome[1], [1, 0, 1])
    assert outcome[0] == pytest.approx(2 / 3)
    failed = spice_scores([["explode"]], [[["x"]]], folder)
    assert isinstance(failed, NotComputed)
    assert "as asked" in str(failed) and "code 1" in str(failed)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_the_real_program_starts_and_misses_corenlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JARS:
        zipfile.ZipFile(tmp_path / name, "w").close()
    monkeypatch.setattr(spice, "MEMORY", "-Xmx256M")
    outcome = spice_scores(CANDIDATES, REFERENCES, tmp_path)
    assert isinstance(outcome, NotComputed)
    assert "NoClassDefFoundError: edu/stanford/nlp" in outcome.reason
