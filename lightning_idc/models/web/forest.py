"""Forest: extremely randomised trees as buffers of a module, which several hundred pairs suffice to grow.

Each node draws some measures and one threshold for each, between the smallest and the largest value of its pairs, and
splits by the one that leaves the labels most alike (Geurts, Ernst and Wehenkel, 2006). Labels are vectors, so that one
forest answers several questions; the answer of a leaf is the mean of the labels of its pairs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

SHARE = 0.3
"""Fraction of the measures that a node draws."""
MIN_PAIRS = 2
"""Smallest number of pairs of a leaf."""


class Forest(nn.Module):
    """Trees of at most ``nodes`` nodes each; :meth:`grow` makes them from pairs, once.

    Args:
        trees: number of trees.
        nodes: largest number of nodes of a tree, which is always odd: growing ends there, the largest leaves first.
        outputs: length of a label.
    """

    measure: Tensor
    threshold: Tensor
    child: Tensor
    answers: Tensor

    def __init__(self, trees: int, nodes: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("measure", torch.zeros(trees, nodes, dtype=torch.int16))
        self.register_buffer("threshold", torch.zeros(trees, nodes))
        # the left child, which is followed by the right one; minus the number of the leaf for leaves
        self.register_buffer("child", torch.zeros(trees, nodes, dtype=torch.int16))
        self.register_buffer("answers", torch.zeros(trees, nodes // 2 + 1, outputs, dtype=torch.uint8))  # in 1 / 255

    @property
    def is_grown(self) -> bool:
        """Whether there are trees."""
        return bool((self.child > 0).any())

    def grow(self, measures: np.ndarray, labels: np.ndarray, weights: np.ndarray, seed: int) -> None:
        """Grow all trees.

        Args:
            measures: ``(N, F)``.
            labels: ``(N, outputs)``, from 0 to 1.
            weights: weight of each output in the choice of splits ``(outputs,)``.
            seed: seed of all draws.
        """
        for tree in range(len(self.child)):
            self._grow_tree(tree, measures, labels, labels * weights, np.random.default_rng((seed, tree)))

    def _grow_tree(
        self,
        tree: int,
        measures: np.ndarray,
        labels: np.ndarray,
        weighted: np.ndarray,
        random: np.random.Generator,
    ) -> None:
        limit = self.child.shape[1]
        open_nodes, used, leaves = [(0, np.arange(len(measures)))], 1, 0
        while open_nodes:
            open_nodes.sort(key=lambda item: len(item[1]))
            node, pairs = open_nodes.pop()
            split = None
            if used + 2 <= limit and len(pairs) >= 2 * MIN_PAIRS:
                split = _split(measures[pairs], weighted[pairs], random)
            if split is None:
                answer = np.rint(255 * labels[pairs].mean(0)).astype(np.uint8)
                self.answers[tree, leaves], self.child[tree, node] = torch.from_numpy(answer), -leaves
                leaves += 1
                continue
            column, value = split
            is_left = measures[pairs, column] <= value
            self.measure[tree, node], self.threshold[tree, node], self.child[tree, node] = column, value, used
            open_nodes += [(used, pairs[is_left]), (used + 1, pairs[~is_left])]
            used += 2

    def forward(self, measures: Tensor) -> Tensor:
        """Mean answer of the trees ``(B, outputs)`` for measures ``(B, F)``."""
        trees = torch.arange(len(self.child), device=measures.device)[:, None]  # (T, 1)
        nodes = torch.zeros(len(self.child), len(measures), dtype=torch.long, device=measures.device)  # (T, B)
        rows = torch.arange(len(measures), device=measures.device)
        while True:
            child = self.child[trees, nodes].long()
            if not (child > 0).any():
                return self.answers[trees, -child].float().mean(0) / 255
            is_right = measures[rows, self.measure[trees, nodes].long()] > self.threshold[trees, nodes]
            nodes = torch.where(child > 0, child + is_right, nodes)


def _split(measures: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> tuple[int, float] | None:
    """Measure and threshold of the best random split; None if the labels are equal or nothing splits them."""
    if np.ptp(labels, 0).max() == 0:
        return None
    low, high = measures.min(0), measures.max(0)
    varied = np.flatnonzero(high > low)
    if not len(varied):
        return None
    columns = random.permutation(varied)[: max(1, round(SHARE * measures.shape[1]))]
    # the thresholds are stored in 32 bits
    values = (low[columns] + (high - low)[columns] * random.random(len(columns))).astype(np.float32)
    is_left = (measures[:, columns] <= values).astype(np.float32)  # (N, K)
    counts = is_left.sum(0)
    sums, total = is_left.T @ labels, labels.sum(0)
    others = len(labels) - counts
    with np.errstate(divide="ignore", invalid="ignore"):
        gain = (sums**2).sum(1) / counts + ((total - sums) ** 2).sum(1) / others
    gain[(counts < MIN_PAIRS) | (others < MIN_PAIRS)] = -1
    best = int(gain.argmax())
    return None if gain[best] < 0 else (int(columns[best]), float(values[best]))
