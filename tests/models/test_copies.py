"""Copies of a captioner, as made for reference policies and weight averaging."""

from __future__ import annotations

import copy
import functools
import threading
from typing import Any

import torch
from helpers.tiny import TinyCaptioner


def sgd(parameters: Any, cli: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_a_captioner_is_copied_without_the_command_line_that_made_its_optimizer() -> None:
    """LightningCLI's optimizer refers to the CLI, and a trainer that has started other processes holds locks."""
    optimizer = functools.partial(sgd, cli={"processes": [threading.Lock()]})
    captioner = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "red"], optimizer=optimizer)
    captioner.build()
    clone = copy.deepcopy(captioner)
    assert clone.optimizer is optimizer
    weights = dict(captioner.named_parameters())
    assert weights, "the network is built"
    for name, parameter in clone.named_parameters():
        assert torch.equal(parameter, weights[name]) and parameter is not weights[name]
    next(clone.parameters()).data += 1
    assert not torch.equal(next(clone.parameters()), next(captioner.parameters()))
