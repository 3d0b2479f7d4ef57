"""WebNet: measures of a pair to a distribution over the sentences of a closed language, and to one of several boxes.

1. ``norm``: signed logarithms of the measures (B, F), standardised by the training pairs;
2. ``members``: an ensemble of small networks, (B, F) -> (members, B, outputs): operator, value, kind;
3. ``member_log_probs``: log P(operator) + log P(value | operator) + log P(kind), (M, B, S), for each sentence;
   ``forward`` takes the mean of the probabilities over the members, and mixes it with the answer of ``forest``, trees
   on the same measures, once they are grown;
4. ``choosers`` and ``choice_forest``: the details of a box (B, N, D), and what step 2 says of the change, to whether
   its centre is in the element, and whether it is the element (B, N, 2); the same networks and trees for all boxes,
   which also read its number. The box with the largest sum of both is the answer: where a page wraps anew, the box that
   most probably is the element is often one of several at other places, of which none is probable;
5. ``logits`` and ``step``: log-probability of the next word, summed over the sentences that begin with the words
   so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures
from lightning_idc.metrics.page_sentences import KINDS, VALUES, all_sentences
from lightning_idc.models.web.forest import Forest
from lightning_idc.models.web.members import Members, standardised
from lightning_idc.nn.vocabulary import EOS, PAD, Vocabulary

FLOOR = 1e-6
"""Probability of words that continue no sentence."""
SURE = 1 - 1e-3
"""Probability of an unchanged page where no pixel, or only noise, differs; one minus it elsewhere."""
FOREST_SHARE = 0.7
"""Weight of the forest where there is one; the networks have the rest."""
OUTPUT_WEIGHTS = (1.0, 0.2, 0.1)
"""Weights of operator, value and kind in the splits of the forest."""
CHOOSER_WIDTH = 32
"""Hidden width of the networks that choose a box."""
NUM_LABELS = 2
"""Labels of a box: whether its centre is in the element, and whether it overlaps it by more than one half."""
CHOICE_NODES = 2
"""Largest size of a tree that chooses a box, relative to the others: there are 24 boxes for each pair."""


def _choices(details: Tensor, answers: Tensor) -> Tensor:
    """Details, number and answers of each box ``(B, N, inputs)``.

    Args:
        details: of each box ``(B, N, D)``.
        answers: what is said of the pair ``(B, A)``.
    """
    count, boxes = details.shape[:2]
    numbers = torch.eye(boxes, dtype=details.dtype, device=details.device).expand(count, -1, -1)
    repeated = answers.to(details.dtype)[:, None].expand(-1, boxes, -1)
    return torch.cat([details, numbers, repeated], -1)


@dataclass
class SentenceState:
    """Sentences that are still possible, ``(N, S)`` log-probabilities, and the position of the next word."""

    log_probs: Tensor
    position: int = 0

    def select(self, rows: Tensor) -> SentenceState:
        """State of selected rows."""
        return SentenceState(self.log_probs[rows], self.position)


class WebNet(nn.Module):
    """Describes a page from measures of its change.

    Args:
        vocabulary: words of the closed language.
        measures: number of measures.
        boxes: number of boxes to choose from, and of the details of each.
        width: hidden width of a member.
        members: number of networks of the ensemble.
        dropout: dropout probability.
        trees: number of trees; 0 for networks only. Half as many choose the box, with up to twice as many nodes.
        nodes: largest number of nodes of a tree.
    """

    table: Tensor
    choices: Tensor
    allowed: Tensor

    def __init__(
        self,
        vocabulary: Vocabulary,
        measures: int,
        boxes: tuple[int, int],
        width: int,
        members: int,
        dropout: float,
        trees: int = 0,
        nodes: int = 1,
    ) -> None:
        super().__init__()
        self.words = len(vocabulary)
        self.operators = list(VALUES)
        self.values = sorted({value for values in VALUES.values() for value in values})
        self.sections = [len(self.operators), len(self.values), len(KINDS)]
        self.members = Members(members, measures, width, sum(self.sections), dropout)
        self.forest = Forest(trees, nodes, sum(self.sections))
        self.norm = nn.BatchNorm1d(measures, affine=False)
        self.choosers = Members(members, sum(boxes) + sum(self.sections[:2]), CHOOSER_WIDTH, NUM_LABELS, dropout)
        self.choice_forest = Forest((trees + 1) // 2, CHOICE_NODES * (nodes - 1) + 1, NUM_LABELS)
        self.choice_norm = nn.BatchNorm1d(boxes[1], affine=False)
        rows = [
            (operator, value, kind)
            for operator, name in enumerate(self.operators)
            for value in map(self.values.index, VALUES[name])
            for kind in range(len(KINDS))
        ]
        texts = all_sentences()  # in the same order, and the last one says that nothing changed
        encoded = [vocabulary.encode(text)[1:] for text in texts]  # words and the end token
        length = max(map(len, encoded))
        padded = [[*ids, *[ids[-1]] * (length - len(ids))] for ids in encoded]
        self.register_buffer("table", torch.tensor(padded), persistent=False)  # (S, T)
        self.register_buffer("choices", torch.tensor(rows), persistent=False)  # (S - 1, 3)
        is_allowed = [[value in VALUES[name] for value in self.values] for name in self.operators]
        self.register_buffer("allowed", torch.tensor(is_allowed), persistent=False)

    def member_log_probs(self, measures: Tensor, details: Tensor, is_same: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities ``(M, B, S)`` of the sentences, and logits ``(M, B, N, 2)`` of the boxes, for each member.

        Args:
            measures: ``(B, F)``.
            details: of each box ``(B, N, D)``.
            is_same: bool ``(B,)``, pairs without a difference beyond noise.
        """
        outputs = self.members(standardised(measures, ~is_same, self.norm))  # (M, B, sections)
        operators, values, _ = outputs.detach().split(self.sections, -1)
        answers = torch.cat([operators.softmax(-1), values.softmax(-1)], -1).mean(0)
        is_changed = (~is_same).repeat_interleave(details.shape[1])
        standard = standardised(details.flatten(0, 1), is_changed, self.choice_norm).view_as(details)
        boxes = self.choosers(_choices(standard, answers).flatten(0, 1))
        boxes = boxes.view(len(outputs), *details.shape[:2], NUM_LABELS)
        return self._log_probs(outputs, is_same), boxes

    def _log_probs(self, outputs: Tensor, is_same: Tensor) -> Tensor:
        """Log-probabilities ``(M, B, S)`` of the sentences from logits ``(M, B, sections)``."""
        operators, values, kinds = outputs.split(self.sections, -1)
        by_operator = values[:, :, None].masked_fill(~self.allowed, float("-inf")).log_softmax(-1)  # (M, B, O, V)
        operator, value, kind = self.choices.unbind(1)
        changes = (
            operators.log_softmax(-1)[..., operator]
            + by_operator[..., operator, value]
            + kinds.log_softmax(-1)[..., kind]
        )
        same = torch.where(is_same, SURE, 1 - SURE)[:, None].expand(len(outputs), -1, 1)
        return torch.cat([changes + (1 - same).log(), same.log()], -1)

    def grow(self, measures: Tensor, details: Tensor, sentences: Tensor, boxes: Tensor, seed: int) -> None:
        """Grow the forests from changed pairs.

        What the forest says of the pairs that it was grown from is too good for the second forest to learn from; it
        reads what trees of the other half of the pairs say.

        Args:
            measures: ``(P, F)``.
            details: of each box ``(P, N, D)``.
            sentences: index of the sentence of each pair ``(P,)``.
            boxes: whether the centre of each box is in the element, and whether it is the element ``(P, N, 2)``.
            seed: seed of the trees.
        """
        operator, value, kind = self.choices[sentences.to(self.choices.device)].cpu().unbind(1)
        parts = [
            nn.functional.one_hot(index, size)
            for index, size in zip((operator, value, kind), self.sections, strict=True)
        ]
        labels = torch.cat(parts, 1).float().numpy()
        weights = np.repeat(np.array(OUTPUT_WEIGHTS, np.float32), self.sections)
        measures = measures.float().cpu()
        self.forest.grow(measures.numpy(), labels, weights, seed)
        answers = torch.zeros(labels.shape)
        is_first = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed)) % 2 == 0
        for half in (is_first, ~is_first):
            other = Forest(len(self.choice_forest.child), self.forest.child.shape[1], labels.shape[1])
            if bool(half.any()) and not bool(half.all()):
                other.grow(measures[~half].numpy(), labels[~half.numpy()], weights, seed)
                answers[half] = other(measures[half])
        choices = _choices(details.float().cpu(), answers[:, : sum(self.sections[:2])])
        box_labels = boxes.float().cpu().flatten(0, 1).numpy()
        self.choice_forest.grow(choices.flatten(0, 1).numpy(), box_labels, np.ones(NUM_LABELS, np.float32), seed)

    def forward(self, measures: Tensor, details: Tensor, is_same: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities ``(B, S)`` and probabilities of boxes ``(B, N, 2)`` of the ensemble; arguments as above."""
        log_probs, logits = self.member_log_probs(measures, details, is_same)
        mean, boxes = log_probs.logsumexp(0) - math.log(len(log_probs)), logits.sigmoid().mean(0)
        if not self.forest.is_grown:
            return mean, boxes
        answers = self.forest(measures).to(mean.dtype)  # (B, sections)
        trees = self._log_probs(answers.clamp(min=FLOOR).log()[None], is_same)[0]
        shares = math.log(FOREST_SHARE), math.log(1 - FOREST_SHARE)
        choices = _choices(details, answers[:, : sum(self.sections[:2])])
        chosen = self.choice_forest(choices.flatten(0, 1)).to(boxes.dtype).view_as(boxes)
        boxes = FOREST_SHARE * chosen + (1 - FOREST_SHARE) * boxes
        return torch.logaddexp(trees + shares[0], mean + shares[1]), boxes

    def sentence_index(self, tokens: Tensor) -> Tensor:
        """Index of the sentence of each caption ``(B, T)``, begin token first; -1 for other captions."""
        length = self.table.shape[1]
        words = tokens[:, 1 : length + 1]
        words = nn.functional.pad(words, (0, length - words.shape[1]), value=PAD)
        after_end = (words == EOS).cumsum(1) > 0
        is_equal = (words.masked_fill(after_end, EOS)[:, None] == self.table).all(-1)  # (B, S)
        return torch.where(is_equal.any(1), is_equal.int().argmax(1), -1)

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        """Log-probabilities ``(B, K, T, V)`` of the word after each of ``tokens (B, K, T)``."""
        log_probs = features.memory[:, 0, : len(self.table)]  # (B, S)
        words = tokens[..., 1:]
        columns = []
        possible = log_probs[:, None].expand(-1, tokens.shape[1], -1)  # (B, K, S)
        for position in range(tokens.shape[2]):
            if position:
                is_equal = self._words_at(position - 1) == words[..., position - 1, None]
                possible = possible.masked_fill(~is_equal, float("-inf"))
            columns.append(self._next_word(possible, position))
        return torch.stack(columns, 2)

    def start(self, features: PairFeatures) -> SentenceState:
        """State before the first token."""
        return SentenceState(features.memory[:, 0, : len(self.table)])

    def step(self, state: SentenceState, tokens: Tensor) -> Tensor:
        """Log-probabilities ``(N, V)`` after tokens ``(N,)``; advances the state."""
        if state.position:
            is_equal = self._words_at(state.position - 1) == tokens[:, None]
            state.log_probs = state.log_probs.masked_fill(~is_equal, float("-inf"))
        state.position += 1
        return self._next_word(state.log_probs, state.position - 1)

    def _words_at(self, position: int) -> Tensor:
        """Word of each sentence ``(S,)``; the end token after the end."""
        return self.table[:, min(position, self.table.shape[1] - 1)]

    def _next_word(self, log_probs: Tensor, position: int) -> Tensor:
        """Log-probabilities ``(..., V)`` of the next word, over the possible sentences ``(..., S)``."""
        highest = log_probs.detach().amax(-1, keepdim=True)
        is_open = highest.isfinite()
        probs = (log_probs - highest.where(is_open, 0)).exp()
        total = torch.zeros(*log_probs.shape[:-1], self.words, device=log_probs.device, dtype=log_probs.dtype)
        total = total.index_add(-1, self._words_at(position), probs)
        share = total / total.sum(-1, keepdim=True).clamp(min=FLOOR)
        return (share * (1 - FLOOR) + FLOOR / self.words).log()
