"""One torchmetrics class per score, with the interface of ``torchmetrics.text``.

``update(preds, target)`` takes captions and the references of each; ``compute()`` returns a tensor. The classes work in
a ``MetricCollection``, with ``self.log`` and with ``plot()``, and score the captions of all processes as one corpus::

    scores = MetricCollection([CIDErD(), METEOR(), BLEU(), ROUGEL()])
    scores.update(captions, references)

Values are on the scale that papers print, pycocoevalcap's times 100: 0 to 100, and 0 to 1000 for CIDEr and CIDEr-D.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torchmetrics.classification import BinaryAUROC
from torchmetrics.utilities.plot import _AX_TYPE, _PLOT_OUT_TYPE

from lightning_idc.metrics.captions import References, ScoringResources, score_captions
from lightning_idc.metrics.gathering import RecordMetric
from lightning_idc.metrics.meteor import Backend
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError


class CorpusMetric(RecordMetric):
    """Base class of the metrics, which map captions and references to one number.

    Args:
        options: keyword arguments of ``torchmetrics.Metric``.
    """

    is_differentiable = False
    higher_is_better = True
    plot_lower_bound = 0.0
    plot_upper_bound = 100.0
    metric: ClassVar[str]
    """Name of the metric in :func:`~lightning_idc.metrics.captions.score_captions`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.resources = ScoringResources()

    @property
    def value_name(self) -> str:
        """Name of the value among the scores of the metric."""
        return self.metric

    def update(
        self,
        preds: Sequence[str],
        target: Sequence[str | Sequence[str]],
        ids: Sequence[str | int] | None = None,
    ) -> None:
        """Add captions.

        Args:
            preds: captions.
            target: references of each caption, several or one.
            ids: ids of the pairs; only the first caption with an id counts, since a distributed sampler repeats pairs
                to fill the last batch. Without ids every caption counts.

        Raises:
            DataError: the lengths differ, or an entry is not text.
        """
        if isinstance(preds, str) or isinstance(target, str):
            raise DataError("preds or target is one text; expected a list of captions, and references for each")
        lengths = [len(preds), len(target), *([] if ids is None else [len(ids)])]
        if len(set(lengths)) > 1:
            raise DataError(f"preds, target and ids have {lengths} entries; expected equal lengths")
        references = [[texts] if isinstance(texts, str) else list(texts) for texts in target]
        for number, (caption, texts) in enumerate(zip(preds, references, strict=True)):
            if not texts or not all(isinstance(text, str) for text in (caption, *texts)):
                raise DataError(
                    f"entry {number} has caption {caption!r} and references {texts!r}; "
                    "expected a text and a list of at least one text"
                )
        keys = [None] * len(preds) if ids is None else ids
        self.append(map(json.dumps, zip(keys, preds, references, strict=True)))

    def compute(self) -> Tensor:
        """Score of the corpus.

        Raises:
            ConfigError: the metric cannot be computed, because tables, Java or CoreNLP are missing.
            DataError: there are no captions.
        """
        pairs: dict[tuple[Any, ...], tuple[str, list[str]]] = {}
        for number, (id, caption, references) in enumerate(self.collected()):
            pairs.setdefault((True, number) if id is None else (False, isinstance(id, str), id), (caption, references))
        # with ids, sorted: one process and several then add up in the same order
        ordered = {str(number): pairs[key] for number, key in enumerate(sorted(pairs))}
        captions = {key: caption for key, (caption, _) in ordered.items()}
        references = {key: texts for key, (_, texts) in ordered.items()}
        value = self.once(lambda: self._score(captions, references))
        return torch.tensor(value, dtype=self.dtype, device=self.device)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: _AX_TYPE | None = None) -> _PLOT_OUT_TYPE:
        """Plot one or several values with matplotlib.

        Args:
            val: values of ``forward`` or ``compute``; None calls ``compute``.
            ax: axes to draw on.
        """
        return self._plot(val, ax)

    def _score(self, captions: dict[str, str], references: dict[str, list[str]]) -> float:
        if not captions:
            raise DataError("there are no captions to score")
        scores = score_captions(captions, self.prepare(references), [self.metric], self.resources)
        if self.metric in scores.missing:
            raise ConfigError(f"{self.metric} {scores.missing[self.metric]}")
        return scores.values[self.value_name]


class BLEU(CorpusMetric):
    """BLEU as COCO's evaluation computes it, 0 to 100.

    Args:
        n_gram: length of the longest n-gram.
        options: keyword arguments of ``torchmetrics.Metric``.

    Raises:
        ConfigError: ``n_gram`` is not 1 to 4.

    Example:
        >>> metric = BLEU()
        >>> metric(["the red cube moved left"], [["the red cube moved to the left", "the red cube moved"]])
        tensor(70.7107)
    """

    metric = "BLEU"

    def __init__(self, n_gram: Literal[1, 2, 3, 4] = 4, **options: Any) -> None:
        check_arguments(BLEU.__init__, locals())
        super().__init__(**options)
        self.n_gram = n_gram

    @property
    def value_name(self) -> str:
        return f"BLEU-{self.n_gram}"


class METEOR(CorpusMetric):
    """METEOR 1.5, 0 to 100, without Java.

    Args:
        backend: ``python`` or ``java``; see :func:`~lightning_idc.metrics.meteor.backend_named`.
        options: keyword arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = METEOR()
        >>> metric(["a red cube moved"], [["the red cube has moved"]])
        tensor(36.9809)
    """

    metric = "METEOR"

    def __init__(self, backend: Backend | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.resources = ScoringResources(meteor_backend=backend)


class ROUGEL(CorpusMetric):
    """ROUGE-L as COCO's evaluation computes it, 0 to 100.

    Args:
        options: keyword arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = ROUGEL()
        >>> metric(["the cube moved"], [["the red cube moved"]])
        tensor(83.5616)
    """

    metric = "ROUGE-L"


class CIDErD(CorpusMetric):
    """CIDEr-D, 0 to 1000: what papers call CIDEr, as COCO's evaluation computes it.

    N-grams are weighted by their inverse document frequency. Document frequencies come from the scored references, so a
    single pair scores 0.

    Args:
        frequencies: references of another corpus that define the document frequencies; the scored ones when None.
        options: keyword arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = CIDErD()
        >>> metric(["the red cube moved", "a ball is gone"], [["the red cube moved"], ["the small ball is gone"]])
        tensor(713.9575)
    """

    metric = "CIDEr-D"
    plot_upper_bound = 1000.0

    def __init__(self, frequencies: References | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.resources = ScoringResources(frequencies=frequencies)


class CIDEr(CIDErD):
    """CIDEr of the paper, 0 to 1000: without the clipping and the length penalty of CIDEr-D.

    Args:
        frequencies: references of another corpus that define the document frequencies; the scored ones when None.
        options: keyword arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = CIDEr()
        >>> metric(["the red cube moved", "a ball is gone"], [["the red cube moved"], ["the small ball is gone"]])
        tensor(716.9498)
    """

    metric = "CIDEr"


class SPICE(CorpusMetric):
    """SPICE, 0 to 100; needs Java and the jars of CoreNLP 3.6.0.

    Args:
        corenlp: folder with the jars; None reads the environment variable ``LIGHTNING_IDC_CORENLP``.
        options: keyword arguments of ``torchmetrics.Metric``.

    Example:
        >>> metric = SPICE(corenlp="corenlp")
        >>> metric.update(["the cube moved"], [["the red cube moved"]])
    """

    metric = "SPICE"

    def __init__(self, corenlp: str | Path | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.resources = ScoringResources(corenlp=None if corenlp is None else Path(corenlp))


class ChangeAUC(BinaryAUROC):
    """Area under the ROC curve of change scores, 0 to 100: whether changed pairs score higher than unchanged ones.

    ``preds`` are change scores ``(N,)``, ``target`` is 1 where the pair changed. Chance is 50.

    Example:
        >>> metric = ChangeAUC()
        >>> metric(torch.tensor([0.9, 0.4, 0.6, 0.1]), torch.tensor([1, 1, 0, 0]))
        tensor(75.)
    """

    plot_upper_bound = 100.0

    def compute(self) -> Tensor:  # type: ignore[override]  # as BinaryAUROC's, whose parent returns curves
        """Area times 100."""
        return 100 * super().compute()
