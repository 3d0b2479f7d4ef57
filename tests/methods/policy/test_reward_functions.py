"""Rewards called through the interfaces of TRL and ms-swift equal the rewards of this library."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from helpers.tiny import TinyPairs
from torch import Tensor

from lightning_idc.data import SyntheticPairs
from lightning_idc.images.types import PairBatch
from lightning_idc.methods import (
    BoxReward,
    CiderReward,
    FactsReward,
    LengthReward,
    MetricReward,
    Reward,
    WeightedRewards,
    as_swift_orm,
    as_trl_reward,
)
from lightning_idc.utils.errors import ConfigError, DataError

torch.set_num_threads(1)
TEXTS = ["it turned red", "now everything is blue", "it turned red", "it moved"]
REFERENCES = [["it turned red", "red paint was used here"]] * 2 + [["now everything is blue"]] * 2
MESSAGES = [[{"role": "assistant", "content": text}] for text in TEXTS]


def batch(references: list[list[str]], meta: list[dict[str, Any]] | None = None) -> PairBatch:
    empty = torch.zeros(len(references), 0, 0, dtype=torch.long)
    images = torch.zeros(len(references), 2, 3, 4, 4, dtype=torch.uint8)
    ids = [str(index) for index in range(len(references))]
    return PairBatch(images, empty, empty.bool(), ids, references, [None] * len(references), meta=meta or [])


@pytest.mark.parametrize("completions", [TEXTS, MESSAGES])
def test_a_metric_equals_the_reward_of_the_library(completions: list[Any]) -> None:
    expected = MetricReward("ROUGE-L")(batch(REFERENCES[::2]), [TEXTS[:2], TEXTS[2:]]).flatten().tolist()
    function = as_trl_reward(MetricReward("ROUGE-L"))
    columns = {"captions": REFERENCES, "id": ["a", "a", "b", "b"], "prompts": [], "trainer_state": None}
    assert function(completions=completions, completion_ids=[], **columns) == pytest.approx(expected)
    assert as_swift_orm(MetricReward("ROUGE-L"))(args=None)(completions, **columns) == pytest.approx(expected)
    assert function.__name__ == "MetricReward"


def test_cider_takes_its_document_frequencies_from_training_data() -> None:
    with pytest.raises(ConfigError, match="CiderReward reads the training captions; expected data="):
        as_trl_reward(CiderReward())
    reward, data = CiderReward(), TinyPairs()
    reward.setup(data)
    expected = reward(batch(REFERENCES), [[text] for text in TEXTS]).flatten().tolist()
    found = as_trl_reward(WeightedRewards([CiderReward(), LengthReward(8, 9)]), data)(TEXTS, captions=REFERENCES)
    assert found == pytest.approx(expected) and found[0] > 1


def test_groups_are_the_completions_of_one_pair() -> None:
    reward = WeightedRewards([MetricReward("ROUGE-L"), LengthReward(3, 4)], normalise="group")
    expected = reward(batch(REFERENCES[::2]), [TEXTS[:2], TEXTS[2:]]).flatten().tolist()
    columns = {"captions": REFERENCES, "id": ["a", "a", "b", "b"]}
    assert as_trl_reward(reward)(TEXTS, **columns) == pytest.approx(expected)


def test_facts_are_read_from_json(tmp_path: Any) -> None:
    data = SyntheticPairs(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, cache_dir=tmp_path, progress=False)
    pair = data.pairs_of("train").load(0)
    texts = [pair.captions[0], data.pairs_of("train").captions(1)[0]]
    expected = FactsReward()(batch([pair.captions], [pair.meta]), [texts]).flatten().tolist()
    facts = [json.dumps(pair.meta)] * 2
    assert as_trl_reward(FactsReward())(texts, facts=facts) == expected and expected[0] == 1.0
    with pytest.raises(DataError, match="facts is 'no JSON'; expected the text of a JSON object"):
        as_trl_reward(FactsReward())(texts, facts=["no JSON"] * 2)
    with pytest.raises(DataError, match="FactsReward needs rendered pairs"):
        as_trl_reward(FactsReward())(texts)


class Brightness(Reward):
    def __call__(self, pairs: PairBatch, texts: Any) -> Tensor:
        return pairs.images.float().mean((1, 2, 3, 4))[:, None].expand(-1, len(texts[0]))


def test_boxes_are_those_of_the_column() -> None:
    from PIL import Image

    images = [[Image.new("RGB", (8, 8))] * 2] * 2
    boxes = [[[[1, 1, 4, 4], [None] * 4]], []]
    texts = ["moved: [1, 1, 4, 4]", "moved: [1, 1, 4, 4]"]
    assert as_trl_reward(BoxReward())(texts, images=images, boxes=boxes) == [1.0, 0.0]
    with pytest.raises(DataError, match=r"boxes is \[1, 2\]; expected for each change two boxes"):
        as_trl_reward(BoxReward())(texts, images=images, boxes=[[1, 2], []])


def test_a_reward_of_ones_own_gets_the_images() -> None:
    from PIL import Image

    images = [[Image.new("RGB", (4, 4), (value,) * 3) for value in pair] for pair in ((0, 10), (20, 30))]
    assert as_trl_reward(Brightness())(["a", "b"], images=images) == [5.0, 25.0]
    with pytest.raises(DataError, match="Brightness has reads_images True and there is no column images"):
        as_trl_reward(Brightness())(["a", "b"])
