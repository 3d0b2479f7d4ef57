"""The box that WebCaptioner chooses. Oracles: boxes with known centres and overlaps."""

from __future__ import annotations

import pytest
import torch

from lightning_idc.models import WebCaptioner
from lightning_idc.models.web.candidates import CANDIDATES
from lightning_idc.models.web.module import box_labels
from lightning_idc.models.web.net import NUM_LABELS

torch.set_num_threads(1)
GONE = [float("nan")] * 4


def test_a_box_is_in_the_element_or_is_the_element_before_or_after_the_change() -> None:
    candidates = torch.tensor([[[20, 20, 30, 30], [0, 0, 100, 36], [104, 0, 112, 8], [110, 0, 130, 40]]]).float()
    element = [0.0, 0.0, 100.0, 40.0]
    expected = [[1, 0], [1, 1], [1, 0], [0, 0]]  # a centre up to 8 pixels outside the element counts as inside
    labels, has_box = box_labels(candidates, [torch.tensor([[element, GONE]])])
    assert labels.tolist() == [expected] and has_box.tolist() == [True]
    after = [110.0, 0.0, 130.0, 40.0]
    assert box_labels(candidates, [torch.tensor([[element, after]])])[0].tolist() == [[*expected[:2], [1, 0], [1, 1]]]
    labels, has_box = box_labels(candidates, [None])
    assert not labels.any() and not has_box.any()


def test_the_box_with_the_largest_sum_of_both_probabilities_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    captioner = WebCaptioner(width=4, members=1)
    captioner.build()
    probabilities = torch.zeros(1, len(CANDIDATES), NUM_LABELS)
    probabilities[0, 1] = torch.tensor([0.9, 0.4])  # its centre is in the element
    probabilities[0, 2] = torch.tensor([0.4, 0.5])  # the most probable element box, but elsewhere
    log_probs = torch.zeros(1, len(captioner.built_net.table))
    monkeypatch.setattr(captioner.built_net, "forward", lambda *_: (log_probs, probabilities))
    boxes = torch.arange(len(CANDIDATES) * 4.0).view(1, -1, 4)
    inputs = {"values": torch.zeros(1, 1), "details": torch.zeros(1, 1, 1), "is_same": torch.tensor([False])}
    monkeypatch.setattr(captioner, "_inputs", lambda batch: inputs | {"boxes": boxes})
    assert captioner.encode(None).extras["boxes"].tolist() == [[4.0, 5.0, 6.0, 7.0]]  # type: ignore[arg-type]
