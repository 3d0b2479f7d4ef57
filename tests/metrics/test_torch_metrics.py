"""The torchmetrics classes, tested like torchmetrics tests its text metrics; test_gathering uses two processes."""

from __future__ import annotations

import pickle
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader
from torchmetrics import MetricCollection
from torchmetrics.text import BLEUScore

from lightning_idc.metrics import BLEU, METEOR, ROUGEL, SPICE, ChangeAUC, CIDEr, CIDErD, score_captions
from lightning_idc.metrics.captions import References, ScoringResources
from lightning_idc.metrics.torch_metrics import CorpusMetric
from lightning_idc.utils.errors import ConfigError, DataError

PREDS = [["the red cube moved", "a ball is gone"], ["nothing changed at all", "", "the blue cylinder turned brown"]]
TARGET = [
    [["the red cube has moved", "a cube moved"], ["the small ball is gone"]],
    [["nothing changed", "no change was made"], ["the ball is gone"], ["the cylinder turned brown"]],
]
ALL_PREDS, ALL_TARGET = [*PREDS[0], *PREDS[1]], [*TARGET[0], *TARGET[1]]
FREQUENCIES = References({"1": ["the cube moved"], "2": ["a ball is gone", "the ball vanished"]})
CASES = [
    (BLEU, {}, "BLEU-4"),
    (BLEU, {"n_gram": 2}, "BLEU-2"),
    (METEOR, {}, "METEOR"),
    (ROUGEL, {}, "ROUGE-L"),
    (CIDErD, {}, "CIDEr-D"),
    (CIDErD, {"frequencies": FREQUENCIES}, "CIDEr-D"),
    (CIDEr, {}, "CIDEr"),
]


def expected(preds: list[str], target: list[list[str]], name: str, frequencies: References | None = None) -> float:
    metric = name.split("-")[0] if name.startswith("BLEU") else name
    captions = {str(number): text for number, text in enumerate(preds)}
    references = {str(number): texts for number, texts in enumerate(target)}
    return score_captions(captions, references, [metric], ScoringResources(frequencies=frequencies)).values[name]


@pytest.mark.parametrize(("metric_class", "arguments", "name"), CASES)
def test_interface_of_torchmetrics(metric_class: type[CorpusMetric], arguments: dict[str, Any], name: str) -> None:
    metric = pickle.loads(pickle.dumps(metric_class(**arguments)))
    metric.set_dtype(torch.float64)
    frequencies = arguments.get("frequencies")
    for preds, target in zip(PREDS, TARGET, strict=True):
        # forward returns the value of the batch
        assert float(metric(preds, target)) == pytest.approx(expected(preds, target, name, frequencies), abs=1e-9)
    value = metric.compute()
    assert isinstance(value, torch.Tensor) and value.shape == () and value.dtype == torch.float64
    assert float(value) == pytest.approx(expected(ALL_PREDS, ALL_TARGET, name, frequencies), abs=1e-9)
    assert hash(metric) and metric.higher_is_better and not metric.is_differentiable
    assert value <= metric.plot_upper_bound
    metric.reset()
    metric.update(PREDS[0], TARGET[0])
    assert metric.compute() == pytest.approx(expected(PREDS[0], TARGET[0], name, frequencies), abs=1e-9)
    if find_spec("matplotlib"):
        assert metric.plot() is not None
    else:
        with pytest.raises(ModuleNotFoundError, match="matplotlib"):
            metric.plot()


def test_works_in_a_collection_with_torchmetrics() -> None:
    collection = MetricCollection([BLEU(), ROUGEL(), CIDErD(), BLEUScore()])
    for preds, target in zip(PREDS, TARGET, strict=True):
        collection.update(preds, target)
    values = collection.compute()
    assert values.keys() == {"BLEU", "BLEUScore", "CIDErD", "ROUGEL"}
    assert all(value.shape == () for value in values.values())
    for name, key in (("BLEU-4", "BLEU"), ("ROUGE-L", "ROUGEL"), ("CIDEr-D", "CIDErD")):
        assert float(values[key]) == pytest.approx(expected(ALL_PREDS, ALL_TARGET, name), rel=1e-6)


class Logged(LightningModule):
    """A module that logs metrics as in Lightning's documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.cider, self.rouge = CIDErD(), ROUGEL()

    def validation_step(self, batch: tuple[list[str], list[list[str]]], batch_idx: int) -> None:
        for metric in (self.cider, self.rouge):
            metric.update(*batch)
        self.log("val/CIDEr-D", self.cider)
        self.log("val/ROUGE-L", self.rouge)


def test_lightning_logs_the_score_of_the_epoch() -> None:
    data = DataLoader(list(zip(PREDS, TARGET, strict=True)), batch_size=None)
    trainer = Trainer(logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
    trainer.validate(Logged(), data, verbose=False)
    for name in ("CIDEr-D", "ROUGE-L"):
        value = expected(ALL_PREDS, ALL_TARGET, name)
        assert float(trainer.callback_metrics[f"val/{name}"]) == pytest.approx(value, rel=1e-6)


def test_pairs_with_the_same_id_count_once() -> None:
    metric = ROUGEL()
    metric.update(["a", "the ball"], [["a"], ["the ball is gone"]], ids=[1, 2])
    once = metric.compute()
    metric.update(["a"], [["a"]], ids=[1])
    assert metric.compute() == once
    metric.update(["a"], ["a"])
    assert metric.compute() > once, "without an id every caption counts; one reference may stand without a list"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", ["a"]), "preds or target is one text"),
        ((["a", "b"], [["a"]]), r"preds, target and ids have \[2, 1\] entries"),
        ((["a"], [["a"]], []), r"have \[1, 1, 0\] entries"),
        ((["a"], [[]]), "entry 0 has caption 'a' and references \\[\\]"),
        (([None], [["a"]]), "entry 0 has caption None"),
    ],
)
def test_rejects_malformed_updates(arguments: Any, message: str) -> None:
    metric = CIDErD()
    with pytest.raises(DataError, match=message):
        metric.update(*arguments)


def test_scores_that_cannot_be_computed_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTNING_IDC_CORENLP", raising=False)
    metric = SPICE()
    metric.update(["a"], [["a"]])
    with pytest.raises(ConfigError, match="SPICE not computed: the folder"):
        metric.compute()
    with pytest.raises(ConfigError, match="n_gram is 5; expected one of 1, 2, 3, 4"):
        BLEU(n_gram=5)


def test_change_auc_is_a_hundred_times_the_area() -> None:
    metric = ChangeAUC()
    metric.update(torch.tensor([0.9, 0.8, 0.3]), torch.tensor([1, 0, 0]))
    assert metric.compute() == 100
