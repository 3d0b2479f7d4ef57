"""A drop-in for pycocoevalcap: the same classes, methods and scales (0 to 1; CIDEr-D 0 to 10) without Java.

A script or notebook written for pycocoevalcap only needs another import::

    from lightning_idc.metrics.coco import COCOEvalCap, PTBTokenizer, Bleu, Meteor, Rouge, Cider, Spice

Scores equal pycocoevalcap's to 1e-9. SPICE still needs Java and the CoreNLP jars (``LIGHTNING_IDC_CORENLP``); where
these are missing, :class:`COCOEvalCap` leaves it out, while pycocoevalcap would download them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.metrics.bleu import bleu
from lightning_idc.metrics.cider import cider_d
from lightning_idc.metrics.corpus import MAX_ORDER, Corpus, Floats
from lightning_idc.metrics.meteor import Backend, NotComputed, meteor_scores
from lightning_idc.metrics.rouge import rouge_l
from lightning_idc.metrics.spice import spice_by_category
from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import ConfigError, DataError

Texts = Mapping[Any, Sequence[str]]
"""Tokenised captions by image id, words separated by spaces."""


class PTBTokenizer:
    """Penn Treebank words in lower case without punctuation.

    Example:
        >>> PTBTokenizer().tokenize({7: [{"caption": "The cube's gone, I think."}]})
        {7: ["the cube 's gone i think"]}
    """

    def tokenize(self, captions_for_image: Mapping[Any, Sequence[Mapping[str, Any]]]) -> dict[Any, list[str]]:
        """Tokenised captions by image id; images without captions are left out."""
        return {
            id: [" ".join(ptb_tokenize(caption["caption"])) for caption in captions]
            for id, captions in captions_for_image.items()
            if captions
        }


class Bleu:
    """BLEU-1 to BLEU-n.

    Args:
        n: longest n-gram, at most 4.

    Raises:
        ConfigError: ``n`` is not 1 to 4.

    Example:
        >>> score, per_image = Bleu(2).compute_score({1: ["the red cube moved"]}, {1: ["the cube moved"]})
        >>> [round(value, 3) for value in score]
        [0.717, 0.507]
    """

    def __init__(self, n: int = 4) -> None:
        if not 1 <= n <= MAX_ORDER:
            raise ConfigError(f"n is {n!r}; expected 1 to {MAX_ORDER}")
        self.n = n

    def compute_score(self, gts: Texts, res: Texts, verbose: int = 0) -> tuple[list[float], list[list[float]]]:
        """Scores of the corpus, and of every image, by n.

        Args:
            gts: references.
            res: one caption per image.
            verbose: accepted for compatibility; nothing is printed.
        """
        corpus_scores, image_scores = bleu(_corpus(gts, res, str.split))
        return corpus_scores[: self.n].tolist(), image_scores[: self.n].tolist()

    def method(self) -> str:
        """Name in messages."""
        return "Bleu"


class Meteor:
    """METEOR 1.5.

    Args:
        backend: ``python`` or ``java``; see :func:`~lightning_idc.metrics.meteor.backend_named`.

    Example:
        >>> round(Meteor().compute_score({1: ["the red cube moved"]}, {1: ["a red cube moved"]})[0], 4)
        0.84
    """

    def __init__(self, backend: Backend | None = None) -> None:
        self.backend = backend

    def compute_score(self, gts: Texts, res: Texts) -> tuple[float, list[float]]:
        """Score of the corpus, and of every image.

        Raises:
            ConfigError: METEOR's tables are not installed.
        """
        # METEOR has its own tokenizer, so each text is passed as a single token
        corpus = _corpus(gts, res, lambda text: [text])
        outcome = meteor_scores(corpus.candidates, corpus.references.tokens, self.backend)
        if isinstance(outcome, NotComputed):
            raise ConfigError(f"METEOR {outcome}")
        return outcome.corpus, outcome.per_pair.tolist()

    def method(self) -> str:
        """Name in messages."""
        return "METEOR"


class Rouge:
    """ROUGE-L.

    Example:
        >>> round(Rouge().compute_score({1: ["the red cube moved"]}, {1: ["the cube moved"]})[0], 4)
        0.8356
    """

    def compute_score(self, gts: Texts, res: Texts) -> tuple[float, Floats]:
        """Mean over images, and the score of every image."""
        return rouge_l(_corpus(gts, res, lambda text: text.split(" ")))

    def method(self) -> str:
        """Name in messages."""
        return "Rouge"


class Cider:
    """CIDEr-D, which pycocoevalcap calls CIDEr.

    Args:
        test: accepted for compatibility and ignored, as in pycocoevalcap.
        refs: likewise.
        n: longest n-gram; only 4 is supported.
        sigma: width of the length penalty; only 6 is supported.

    Raises:
        ConfigError: ``n`` or ``sigma`` has another value.

    Example:
        >>> texts = {1: ["the cube moved to the left"], 2: ["a small ball is gone now"]}
        >>> round(Cider().compute_score(texts, texts)[0], 4)
        10.0
    """

    def __init__(self, test: Any = None, refs: Any = None, n: int = 4, sigma: float = 6.0) -> None:
        if n != 4 or sigma != 6.0:
            raise ConfigError(f"n is {n!r} and sigma {sigma!r}; expected 4 and 6.0, with which CIDEr-D is defined")

    def compute_score(self, gts: Texts, res: Texts) -> tuple[float, Floats]:
        """Mean over images, and the score of every image."""
        return cider_d(_corpus(gts, res, str.split))

    def method(self) -> str:
        """Name in messages."""
        return "CIDEr"


class Spice:
    """SPICE, by pycocoevalcap's Java program.

    Args:
        corenlp: folder with the jars of CoreNLP 3.6.0; None reads the environment variable ``LIGHTNING_IDC_CORENLP``.

    Example:
        >>> Spice().method()
        'SPICE'
    """

    def __init__(self, corenlp: Path | None = None) -> None:
        self.corenlp = corenlp

    def compute_score(self, gts: Texts, res: Texts) -> tuple[float, list[dict[str, dict[str, float]]]]:
        """Mean over images, and counts, precision, recall and F-score of every image by category.

        Raises:
            ConfigError: Java or CoreNLP is missing, or the program failed.
        """
        corpus = _corpus(gts, res, lambda text: [text])
        outcome = spice_by_category(corpus.candidates, corpus.references.tokens, self.corenlp)
        if isinstance(outcome, NotComputed):
            raise ConfigError(f"SPICE {outcome}")
        return sum(categories["All"]["f"] for categories in outcome) / len(outcome), outcome

    def method(self) -> str:
        """Name in messages."""
        return "SPICE"


class COCOEvalCap:
    """Scores of a results file against COCO annotations.

    Args:
        coco: annotations, a ``pycocotools.coco.COCO``.
        cocoRes: captions, as ``coco.loadRes`` reads them.

    Attributes:
        params: ``image_id`` holds the ids of the images to score; all of the annotations' at first.
        eval: score of the corpus by metric, filled by :meth:`evaluate`.
        imgToEval: scores by image id.
        evalImgs: the same as a list.
    """

    def __init__(self, coco: Any, cocoRes: Any) -> None:
        self.coco, self.cocoRes = coco, cocoRes
        self.params: dict[str, Any] = {"image_id": coco.getImgIds()}
        self.eval: dict[str, float] = {}
        self.imgToEval: dict[Hashable, dict[str, Any]] = {}
        self.evalImgs: list[dict[str, Any]] = []

    def evaluate(self) -> None:
        """Compute every metric, print its score and store it; SPICE only where it can be computed."""
        ids = self.params["image_id"]
        tokenizer = PTBTokenizer()
        gts = tokenizer.tokenize({id: self.coco.imgToAnns[id] for id in ids})
        res = tokenizer.tokenize({id: self.cocoRes.imgToAnns[id] for id in ids})
        corpus_scores, image_scores = Bleu(4).compute_score(gts, res)
        for n, (score, scores) in enumerate(zip(corpus_scores, image_scores, strict=True), 1):
            self._store(f"Bleu_{n}", score, gts, scores)
        # scores of images are a list or an array, and dicts for SPICE
        scorers: dict[str, Any] = {"METEOR": Meteor(), "ROUGE_L": Rouge(), "CIDEr": Cider(), "SPICE": Spice()}
        for name, scorer in scorers.items():
            try:
                score, scores = scorer.compute_score(gts, res)
            except ConfigError as error:
                if name != "SPICE":
                    raise
                print(error)
            else:
                self._store(name, score, gts, scores)
        self.setEvalImgs()

    def setEval(self, score: float, method: str) -> None:
        """Store the score of the corpus."""
        self.eval[method] = score

    def setImgToEvalImgs(self, scores: Sequence[Any], imgIds: Any, method: str) -> None:
        """Store the scores of images, in the order of ``imgIds``."""
        for id, score in zip(imgIds, scores, strict=True):
            self.imgToEval.setdefault(id, {"image_id": id})[method] = score

    def setEvalImgs(self) -> None:
        """Store the scores of all images as a list."""
        self.evalImgs = list(self.imgToEval.values())

    def _store(self, name: str, score: float, ids: Mapping[Any, Any], scores: Sequence[Any]) -> None:
        self.setEval(score, name)
        self.setImgToEvalImgs(scores, ids, name)
        print(f"{name}: {score:.3f}")


def _corpus(gts: Texts, res: Texts, split: Callable[[str], list[str]]) -> Corpus:
    """Tokens of captions and references, in the order of the references.

    Raises:
        DataError: the ids differ, an image has not exactly one caption or no reference, or there is no image.
    """
    if gts.keys() != res.keys():
        odd = sorted(map(repr, gts.keys() ^ res.keys()))
        raise DataError(f"{len(odd)} ids are only in gts or only in res: {', '.join(odd[:5])}")
    if not gts:
        raise DataError("gts and res are empty; expected at least one image")
    for id, references in gts.items():
        if isinstance(res[id], str) or len(res[id]) != 1:
            raise DataError(f"image {id!r}: res holds {res[id]!r}; expected a list of one caption")
        if isinstance(references, str) or not len(references):
            raise DataError(f"image {id!r}: gts holds {references!r}; expected a list of at least one reference")
    return Corpus([split(res[id][0]) for id in gts], [[split(text) for text in gts[id]] for id in gts])
