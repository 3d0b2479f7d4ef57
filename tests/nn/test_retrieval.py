"""Contrastive loss and recall. Oracles: the definitions in float64 loops, and values by hand."""

from __future__ import annotations

import math

import pytest
import torch

from lightning_idc.nn.retrieval import ranks, recall_at, recall_of_pairs, symmetric_cross_entropy
from lightning_idc.utils.errors import ConfigError, DataError


def test_symmetric_cross_entropy_equals_definition() -> None:
    logits = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    rows = [-math.log(math.exp(logits[i, i]) / sum(math.exp(logits[i, j]) for j in range(5))) for i in range(5)]
    columns = [-math.log(math.exp(logits[i, i]) / sum(math.exp(logits[j, i]) for j in range(5))) for i in range(5)]
    assert symmetric_cross_entropy(logits).item() == pytest.approx((sum(rows) + sum(columns)) / 10, abs=1e-12)


def test_symmetric_cross_entropy_rejects_non_square_logits() -> None:
    with pytest.raises(ConfigError, match="one caption per pair"):
        symmetric_cross_entropy(torch.zeros(3, 4))


def test_ranks_equal_sorted_order() -> None:
    generator = torch.Generator().manual_seed(1)
    similarity = torch.randn(40, 30, generator=generator)
    relevant = torch.rand(40, 30, generator=generator) < 0.1
    relevant[:, 0] = True
    expected = []
    for row, is_relevant in zip(similarity.tolist(), relevant.tolist(), strict=True):
        order = sorted(range(30), key=lambda column: -row[column])
        expected.append(next(rank for rank, column in enumerate(order, 1) if is_relevant[column]))
    assert ranks(similarity, relevant).tolist() == expected


def test_recall_at_equals_values_by_hand() -> None:
    similarity = torch.tensor([[0.9, 0.5, 0.1], [0.9, 0.5, 0.1], [0.2, 0.1, 0.3], [0.3, 0.2, 0.1]])
    relevant = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 0, 1]]).bool()
    assert recall_at(similarity, relevant, ks=(1, 2, 3)) == {"R@1": 50.0, "R@2": 75.0, "R@3": 100.0}


def test_recall_of_constant_similarity_is_zero() -> None:
    assert recall_at(torch.zeros(12, 12), torch.eye(12).bool()) == {"R@1": 0.0, "R@5": 0.0, "R@10": 0.0}


def test_recall_rejects_query_without_relevant_candidate() -> None:
    with pytest.raises(DataError, match=r"\[1\]"):
        recall_at(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))


def test_recall_in_blocks_equals_whole_matrix() -> None:
    generator = torch.Generator().manual_seed(2)
    pairs, captions = torch.randn(23, 6, generator=generator), torch.randn(31, 6, generator=generator)
    relevant = torch.rand(23, 31, generator=generator) < 0.1
    relevant[torch.arange(23), torch.arange(23)] = True
    relevant[0, 23:] = True
    similarity = pairs @ captions.T
    assert recall_of_pairs(pairs, captions, relevant, rows=7) == {
        "pair_to_text": recall_at(similarity, relevant),
        "text_to_pair": recall_at(similarity.T, relevant.T),
    }
