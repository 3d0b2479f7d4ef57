"""Sampling of a vision-language model. Oracle: transformers' own generate and logits processors."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from torch import Tensor
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor, TemperatureLogitsWarper, TopPLogitsWarper

from lightning_idc.nn.decoding.sampling import sampling_probabilities

COUNT, LENGTH = 3000, 2


def processors(model: Any, temperature: float, top_p: float) -> LogitsProcessorList:
    never = SuppressTokensLogitsProcessor(list(model.vocabulary.special.suppress_tokens), "cpu")
    return LogitsProcessorList([never, TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p)])


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (1.3, 0.4), (1.0, 0.001)])
def test_probabilities_are_those_of_the_logits_processors(temperature: float, top_p: float) -> None:
    logits = 3 * torch.randn(8, 50, generator=torch.Generator().manual_seed(0))
    logits[:, :3] = float("-inf")
    steps = LogitsProcessorList([TemperatureLogitsWarper(temperature), TopPLogitsWarper(top_p)])
    expected = steps(None, logits.clone()).softmax(-1)
    torch.testing.assert_close(sampling_probabilities(logits.log_softmax(-1), temperature, top_p), expected)


@pytest.mark.slow
def test_samples_of_a_prompt_that_is_read_once_have_the_distribution_of_generate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Any = captioner("qwen2_5_vl", max_length=LENGTH)
    net, special = model.net, model.vocabulary.special
    pair = samples(2, size=32)[1]
    temperature, top_p = 0.7, 0.5
    steps = processors(model, temperature, top_p)
    inputs = net.family.inputs(net.processor, [model.hparams["prompt"]], [torch.stack([pair.before, pair.after])])
    length = inputs["input_ids"].shape[1]

    def following(tokens: list[int]) -> dict[int, float]:
        """Probabilities of the next token by the stock model, which recomputes the whole sequence."""
        extended = dict(inputs)
        more = torch.tensor([tokens], dtype=torch.long)
        extended["input_ids"] = torch.cat([inputs["input_ids"], more], 1)
        extended["attention_mask"] = torch.ones_like(extended["input_ids"])
        if "mm_token_type_ids" in inputs:
            extended["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(more)], 1)
        chances = steps(None, net.model(**extended).logits[:, -1]).softmax(-1)[0]
        return {int(token): float(chances[token]) for token in chances.nonzero()[:, 0]}

    with torch.no_grad():
        expected: dict[tuple[int, ...], float] = {}
        for first, chance in following([]).items():
            if first in special.ends:
                expected[(first,)] = chance
            else:
                expected |= {(first, second): chance * other for second, other in following([first]).items()}
        assert len(expected) > 5 and abs(sum(expected.values()) - 1) < 1e-4
        calls = Counter[str]()
        for name in ("encode", "prefill"):
            original = getattr(net, name)
            monkeypatch.setattr(
                net,
                name,
                lambda *args, name=name, original=original, **options: (
                    calls.update([name]) or original(*args, **options)
                ),
            )
        features = model.encode(model.collate([samples(2, size=32)[0], pair]))
        result = model.decoder.sample(features, COUNT, temperature, top_p, torch.Generator().manual_seed(2))
        assert calls == {"encode": 1, "prefill": 1}
        torch.manual_seed(3)
        out: Tensor = net.model.generate(
            **inputs,
            do_sample=True,
            temperature=temperature,
            top_p=top_p,
            top_k=0,
            num_return_sequences=COUNT,
            max_new_tokens=LENGTH,
            eos_token_id=list(special.ends),
            pad_token_id=special.pad,
            suppress_tokens=list(special.suppress_tokens),
        )
    stock = [tuple(row) for row in out[:, length:].tolist()]
    stock = [row[:1] if row[0] in special.ends else row for row in stock]
    for drawn in ([tuple(ids) for ids in result.ids[COUNT:]], stock):
        said = Counter(drawn)
        assert set(said) <= set(expected)
        for caption, chance in expected.items():
            # 5 standard deviations of a binomial
            assert abs(said[caption] / COUNT - chance) <= 5 * (chance * (1 - chance) / COUNT) ** 0.5 + 1e-3, caption
    # the returned log-probabilities equal the model's own in teacher forcing
    ids = result.ids[COUNT]
    tokens = torch.tensor([[[special.bos, *ids]]] * 2)
    with torch.no_grad():
        own = model.log_probs(features, tokens)[1, 0, 1:]
    assert result.mean_log_probs[COUNT] == pytest.approx(float(own.mean()), abs=1e-4)


def test_every_end_token_ends_a_sample() -> None:
    model: Any = captioner("llava", max_length=6)
    special = model.vocabulary.special
    other = next(i for i in range(50, 300) if i not in (*special.suppress_tokens, *special.ends))
    stops = special._replace(stops=(*special.ends, other))
    model.vocabulary.special = stops
    features = model.encode(model.collate(samples(1, size=32)))
    with torch.no_grad():
        result = model.decoder.sample(features, 400, 3.0, generator=torch.Generator().manual_seed(0))
    ended = [ids for ids in result.ids if other in ids]
    assert ended and all(ids.index(other) == len(ids) - 1 for ids in ended)
