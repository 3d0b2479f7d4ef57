"""ForcedChoice: does a captioner find the truth likelier than a planted counterfactual of it?"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.images.types import PairBatch
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.captions import pad_captions
from lightning_idc.models.distributed import all_gather_dict
from lightning_idc.utils.errors import ConfigError

WORDINGS = 5
"""Templates of every kind of change."""


class ForcedChoice(Callback):
    """At the test logs ``test/forced_choice``: percent of comparisons that the true sentence wins.

    Truth and counterfactuals are told with the same template, so that wording decides nothing, and compared by summed
    log-probability. Needs the ground truth of `SyntheticPairs`.

    Args:
        rivals: counterfactuals per pair.
    """

    def __init__(self, rivals: int = 4) -> None:
        if rivals < 1:
            raise ConfigError(f"ForcedChoice is to compare with {rivals} counterfactuals; give it at least one")
        self.rivals = rivals
        self._found: dict[str, tuple[int, int]] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        from lightning_idc.data.synthetic.datamodule import SyntheticPairs

        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, SyntheticPairs) or not isinstance(pl_module, PairCaptioner):
            raise ConfigError(
                "ForcedChoice asks a PairCaptioner about SyntheticPairs, whose truth is known; leave it out"
            )
        self.data = data

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._found = {}

    @torch.no_grad()
    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: PairBatch, *unused: Any
    ) -> None:
        from lightning_idc.data.synthetic.counterfactual import counterfactuals, true_sentence

        assert isinstance(pl_module, PairCaptioner)
        source = self.data.source("test")
        rows = []
        for id in batch.ids:
            number = int(id.rpartition("-")[2])
            truth, generator = source.truth(number), torch.Generator().manual_seed(number)
            wording = int(torch.randint(WORDINGS, (), generator=generator))
            rivals = counterfactuals(truth, self.rivals, generator, wording)
            rows.append(pl_module.tokenize([true_sentence(truth, wording), *rivals]))
        tokens, mask = (part.to(pl_module.device) for part in pad_captions(rows, 1 + self.rivals))
        scores = pl_module.score(pl_module.encode(batch), tokens, mask)
        there = mask[:, 1:].any(-1)
        won = ((scores[:, :1] > scores[:, 1:]) & there).sum(1)
        self._found |= dict(zip(batch.ids, zip(won.tolist(), there.sum(1).tolist(), strict=True), strict=True))

    def on_test_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        won, asked = (sum(counts) for counts in zip(*all_gather_dict(self._found).values(), strict=True))
        if asked:
            pl_module.log("test/forced_choice", 100 * won / asked, sync_dist=True)
