"""SPICE's launcher against a small Java program that has the interface of SPICE's own, since CoreNLP is the user's."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lightning_idc.metrics import spice
from lightning_idc.metrics.meteor import NotComputed
from lightning_idc.metrics.spice import JARS, spice_scores

CANDIDATES = [["red", "cube"], [], ["café"]]
REFERENCES = [[["red", "cube", "moved"], ["a", "cube"]], [["gone"]], [["café"]]]
# names, visibilities and output of edu.anu.spice; the score is the share of a caption's words in its references
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


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(spice.CORENLP, raising=False)
    assert "no folder with stanford-corenlp-3.6.0.jar" in str(spice_scores(CANDIDATES, REFERENCES))
    (tmp_path / JARS[0]).touch()
    assert str(spice_scores(CANDIDATES, REFERENCES, tmp_path)).endswith(f"has no {JARS[1]}")
    monkeypatch.setenv(spice.CORENLP, str(tmp_path / "elsewhere"))
    assert "elsewhere has no stanford" in str(spice_scores(CANDIDATES, REFERENCES))
    (tmp_path / JARS[1]).touch()
    monkeypatch.setattr(spice.shutil, "which", lambda name: None)
    assert spice_scores(CANDIDATES, REFERENCES, tmp_path) == NotComputed("no Java")


def test_an_old_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'java version \"1.8.0_292\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    assert spice._version(str(java)) == 8
    for name in JARS:
        (tmp_path / name).touch()
    monkeypatch.setattr(spice.shutil, "which", lambda name: str(java))
    assert "Java 8 cannot start a single source file" in str(spice_scores(CANDIDATES, REFERENCES, tmp_path))


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


@pytest.mark.skipif(shutil.which("javac") is None, reason="needs a JDK")
def test_the_real_program_starts_and_misses_corenlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in JARS:
        zipfile.ZipFile(tmp_path / name, "w").close()
    monkeypatch.setattr(spice, "MEMORY", "-Xmx256M")
    outcome = spice_scores(CANDIDATES, REFERENCES, tmp_path)
    assert isinstance(outcome, NotComputed)
    assert "NoClassDefFoundError: edu/stanford/nlp" in outcome.reason
