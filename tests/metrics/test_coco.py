"""The drop-in for pycocoevalcap against pycocoevalcap itself, called as in published evaluation scripts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pycocoevalcap
import pytest
from pycocotools.coco import COCO

from lightning_idc.metrics import coco
from lightning_idc.utils.errors import ConfigError, DataError

REFERENCES = {
    "000000.png": ["The large red cube has moved.", "someone moved the big red block"],
    "000001.png": ["the small ball that is left of the cube is gone", "A sphere's missing (the gray one)."],
    "000002.png": ["there is no change", "no difference, the scene is the same"],
    "000003.png": ["the cylinder turned brown"],
    "000004.png": ["a tiny cyan shiny cube appeared behind the sphere", "A cube was added.", "there's a new cube"],
    "000005.png": ["the other small yellow matte thing changed its location"],
}
CAPTIONS = {
    "000000.png": "the big red cube was moved",
    "000001.png": "the small gray balls are missing",
    "000002.png": "There is no change.",
    "000003.png": "",
    "000004.png": "someone added a new tiny cube behind the ball, it seems",
    "000005.png": "the small yellow thing changed location",
}
TYPES = {"moved": ["000000.png", "000005.png"], "added": ["000004.png", "000003.png", "absent.png"]}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Annotations and results in COCO's format, under the names of pycocoevalcap's example."""
    monkeypatch.chdir(tmp_path)
    pairs = [(id, text) for id, texts in REFERENCES.items() for text in texts]
    annotations = [{"id": number, "image_id": id, "caption": text} for number, (id, text) in enumerate(pairs)]
    images = [{"id": id, "filename": id} for id in REFERENCES]
    header = {"info": {}, "licenses": {}, "type": "captions"}
    contents = {**header, "images": images, "annotations": annotations}
    (tmp_path / "captions_val2014.json").write_text(json.dumps(contents))
    results = [{"image_id": id, "caption": text} for id, text in CAPTIONS.items()]
    (tmp_path / "captions_val2014_fakecap_results.json").write_text(json.dumps(results))
    return "captions_val2014.json", "captions_val2014_fakecap_results.json"


def evaluate_four(module: Any, files: tuple[str, str], ids: Iterable[str] | None = None) -> tuple[dict, dict, list]:
    """Return scores without SPICE from a subclass with its own `evaluate`, as in CLIP4IDC's script."""

    class FourScores(module.COCOEvalCap):  # type: ignore[misc]
        def evaluate(self) -> None:
            tokenizer = module.PTBTokenizer()
            ids = self.params["image_id"]
            gts = tokenizer.tokenize({id: self.coco.imgToAnns[id] for id in ids})
            res = tokenizer.tokenize({id: self.cocoRes.imgToAnns[id] for id in ids})
            scorers = [
                (module.Bleu(4), ["Bleu_1", "Bleu_2", "Bleu_3", "Bleu_4"]),
                (module.Meteor(), "METEOR"),
                (module.Rouge(), "ROUGE_L"),
                (module.Cider(), "CIDEr"),
            ]
            for scorer, names in scorers:
                assert scorer.method() in ("Bleu", "METEOR", "Rouge", "CIDEr")
                score, scores = scorer.compute_score(gts, res)
                if type(names) is str:
                    score, scores, names = [score], [scores], [names]
                for of_corpus, of_images, name in zip(score, scores, names, strict=True):
                    self.setEval(of_corpus, name)
                    self.setImgToEvalImgs(of_images, gts.keys(), name)
            self.setEvalImgs()

    annotations = COCO(files[0])
    evaluation = FourScores(annotations, annotations.loadRes(files[1]))
    if ids is not None:
        evaluation.params["image_id"] = list(ids)
    evaluation.evaluate()
    return evaluation.eval, evaluation.imgToEval, evaluation.evalImgs


@pytest.fixture
def oracle() -> ModuleType:
    if shutil.which("java") is None:
        pytest.skip("pycocoevalcap needs Java")
    import pycocoevalcap.eval

    return pycocoevalcap.eval


@pytest.mark.slow
def test_a_subclass_with_its_own_evaluation_equals_pycocoevalcap(files: tuple[str, str], oracle: ModuleType) -> None:
    expected, expected_images, expected_list = evaluate_four(oracle, files)
    scores, images, as_list = evaluate_four(coco, files)
    assert list(scores) == list(expected) and scores == pytest.approx(expected, abs=1e-9)
    assert list(images) == list(expected_images)
    for id, values in images.items():
        assert values.pop("image_id") == expected_images[id].pop("image_id")
        assert values == pytest.approx(expected_images[id], abs=1e-9)
    assert len(as_list) == len(expected_list) == len(CAPTIONS)


def test_the_example_of_pycocoevalcap_runs_with_another_import(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LIGHTNING_IDC_CORENLP", raising=False)
    example = Path(next(iter(pycocoevalcap.__path__))) / "example" / "coco_eval_example.py"
    source, line = example.read_text(), "from pycocoevalcap.eval import"
    assert line in source
    namespace: dict[str, Any] = {}
    exec(source.replace(line, "from lightning_idc.metrics.coco import"), namespace)
    assert namespace["coco_eval"].eval == evaluate_four(coco, files)[0]
    printed = capsys.readouterr().out
    assert f"CIDEr: {namespace['coco_eval'].eval['CIDEr']:.3f}" in printed
    assert "SPICE not computed: the folder" in printed


def test_one_evaluation_scores_several_subsets(files: tuple[str, str]) -> None:
    """Score each change type as the scripts of the CLEVR-Change family do."""
    annotations = COCO(files[0])
    results = annotations.loadRes(files[1])
    evaluation = coco.COCOEvalCap(annotations, results)
    for ids in TYPES.values():
        subset = set(results.getImgIds()).intersection(ids)
        evaluation.params["image_id"] = list(subset)
        evaluation.evaluate()
        assert evaluation.eval == evaluate_four(coco, files, subset)[0]


def test_scorers_take_the_arguments_of_pycocoevalcap() -> None:
    texts = {1: ["the cube moved"], 2: ["a ball is gone"]}
    assert coco.Bleu(2).compute_score(gts=texts, res=texts, verbose=0)[0] == pytest.approx([1.0, 1.0])
    assert len(coco.Bleu(2).compute_score(texts, texts)[1][0]) == 2
    with pytest.raises(ConfigError, match="n is 5; expected 1 to 4"):
        coco.Bleu(5)
    with pytest.raises(ConfigError, match="sigma 15"):
        coco.Cider(sigma=15)


@pytest.mark.parametrize(
    ("gts", "res", "message"),
    [
        ({1: ["a"]}, {2: ["a"]}, "2 ids are only in gts or only in res: 1, 2"),
        ({1: ["a"]}, {1: ["a", "b"]}, "image 1: res holds .*; expected a list of one caption"),
        ({1: ["a"]}, {1: "a"}, "image 1: res holds 'a'; expected a list of one caption"),
        ({1: []}, {1: ["a"]}, "image 1: gts holds .*; expected a list of at least one reference"),
        ({}, {}, "gts and res are empty"),
    ],
)
def test_rejects_what_pycocoevalcap_asserts(gts: Any, res: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        coco.Rouge().compute_score(gts, res)
