"""Every family: shared vision pass and prompt compared with the stock model, decoding, and MDP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import ARCHITECTURES, PROMPTS, captioner, samples
from torch import Tensor, nn

from lightning_idc.images.types import PairFeatures, PairSample
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.models.vlm.contract import CELL_SIZES, hidden_cells
from lightning_idc.models.vlm.families.base import image_token
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.scoring import SCORING_METHODS
from lightning_idc.nn.decoding.beam_search import beam_search
from lightning_idc.nn.decoding.decoding import greedy
from lightning_idc.utils.errors import ConfigError, DataError

FAMILIES = list(ARCHITECTURES)


@cache
def model_of(kind: str) -> VLMCaptioner:
    if kind == "smolvlm":
        pytest.importorskip("num2words")
    return captioner(kind)


def plain_log_probs(model: VLMCaptioner, sample: PairSample, caption: str) -> Tensor:
    """Log-probabilities of a caption from the stock forward pass over pixels, with the processor's own inputs."""
    net: Any = model.net
    family, processor = net.family, net.processor
    images = torch.stack([sample.before, sample.after])[None]
    text = (
        family.image_text * family.images_per_pair + f"\n{PROMPTS.get(sample.meta.get('part', ''), 'what changed?')}\n"
    )
    shown = family.processor_images(processor, images)
    inputs = dict(processor(text=[text], images=shown, return_tensors="pt", **family.image_options))
    answer = model.tokenize([caption])[0][1:]
    prompt = inputs["input_ids"].shape[1]
    inputs["input_ids"] = torch.cat([inputs["input_ids"], torch.tensor([answer])], 1)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "mm_token_type_ids" in inputs:
        kinds = (inputs["input_ids"] == net.model.config.image_token_id).int()
        assert torch.equal(kinds[:, :prompt], inputs["mm_token_type_ids"])
        inputs["mm_token_type_ids"] = kinds
    logits = net.model(**inputs).logits[0, prompt - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(answer)[:, None])[:, 0]


@pytest.mark.parametrize("kind", FAMILIES)
def test_log_probs_equal_the_stock_model_s(kind: str) -> None:
    model = model_of(kind)
    pairs = samples(2)
    pairs[1].meta["part"] = "long"  # a prompt of another length, so that there is padding
    batch = model.collate(pairs)
    result = model.log_probs(model.encode(batch), batch.tokens)
    assert (result[..., 0] == 0).all()
    for b, sample in enumerate(pairs):
        for k, caption in enumerate(sample.captions):
            expected = plain_log_probs(model, sample, caption)
            torch.testing.assert_close(result[b, k, 1 : len(expected) + 1], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_all_ways_of_sharing_equal_separate_passes_in_value_and_gradient(kind: str) -> None:
    model = model_of(kind)
    pairs = samples(1)
    batch = model.collate(pairs)
    ours = [p for name, p in model.net.named_parameters()]  # type: ignore[union-attr]

    def gradients(loss: Tensor) -> list[Tensor]:
        model.zero_grad()
        loss.backward()
        return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in ours]

    captions = pairs[0].captions
    expected = gradients(torch.stack([plain_log_probs(model, pairs[0], c).sum() for c in captions]).sum())
    assert any(g.abs().max() > 1e-3 for g in expected)
    scale = max(g.abs().max() for g in expected)
    for way in SCORING_METHODS:
        model.net.scoring = way  # type: ignore[union-attr]
        try:
            score = model.score(model.encode(batch), batch.tokens, batch.caption_mask).sum()
        finally:
            model.net.scoring = "auto"  # type: ignore[union-attr]
        for name, mine, right in zip(dict(model.net.named_parameters()), gradients(score), expected, strict=True):  # type: ignore[union-attr]
            torch.testing.assert_close(mine / scale, right / scale, rtol=1e-4, atol=1e-5, msg=f"{way} {name}")


@pytest.mark.parametrize("way", SCORING_METHODS)
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava_onevision"])
def test_pairs_with_fewer_captions_cost_no_more_than_they_have(kind: str, way: str) -> None:
    model = model_of(kind)
    pairs = samples(3)  # with three, one and two captions
    batch = model.collate(pairs)
    assert batch.tokens.shape[:2] == (3, 3)
    seen: list[tuple[int, ...]] = []
    hook = model.net.model.get_submodule(
        model.net.language_modules[0]
    ).register_forward_pre_hook(  # type: ignore[union-attr]
        lambda _, given, named: seen.append(tuple(named["inputs_embeds"].shape[:2])), with_kwargs=True
    )
    model.net.scoring = way  # type: ignore[union-attr]
    try:
        scores = model.score(model.encode(batch), batch.tokens, batch.caption_mask)
        prompt, longest = batch.model_inputs["prompt_ids"].shape[1], batch.tokens.shape[2] - 1
        most = int(batch.caption_mask.flatten(1).sum(-1).max())
        assert (
            seen
            == {
                "packed": [(3, prompt - 1 + most)],
                "cached": [(3, prompt), (6, longest - 1)],
                "plain": [(6, prompt + longest - 1)],
            }[way]
        )
        for row, sample in enumerate(pairs):
            for k, caption in enumerate(sample.captions):
                one = model.collate([PairSample("one", sample.before, sample.after, [caption])])
                expected = model.score(model.encode(one), one.tokens, one.caption_mask)[0, 0]
                torch.testing.assert_close(scores[row, k], expected, rtol=1e-5, atol=1e-4)
        assert not scores[1, 1:].any() and not scores[2, 2:].any()
        alone = model.collate([PairSample("none", pairs[0].before, pairs[0].after)])
        assert not model.score(model.encode(alone), alone.tokens, alone.caption_mask).any()
    finally:
        hook.remove()
        model.net.scoring = "auto"  # type: ignore[union-attr]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("kind", FAMILIES)
def test_decoding_with_a_cache_equals_recomputing_every_prefix(kind: str, beams: int) -> None:
    model = model_of(kind)
    pairs = samples(3)
    pairs[0].meta["part"] = "long"
    net: Any = model.net
    special = model.vocabulary.special  # type: ignore[union-attr]
    with torch.no_grad():
        features = model.encode(model.collate(pairs))
        if beams == 1:
            fast, slow = greedy(net, features, 5, special), greedy(Uncached(net), features, 5, special)
        else:
            fast = beam_search(net, features, 5, beams, special=special)
            slow = beam_search(Uncached(net), features, 5, beams, special=special)
    assert fast.ids == slow.ids
    torch.testing.assert_close(torch.tensor(fast.mean_log_probs), torch.tensor(slow.mean_log_probs))


@dataclass
class Prefixes:
    features: PairFeatures
    tokens: Tensor

    def select(self, rows: Tensor) -> Prefixes:
        extras = {name: value[rows] for name, value in self.features.extras.items()}
        return Prefixes(PairFeatures(self.features.memory[rows], extras=extras), self.tokens[rows])


class Uncached:
    """The same network without its cache: every step recomputes the whole prefix."""

    def __init__(self, net: Any) -> None:
        self.net = net

    def start(self, features: PairFeatures) -> Prefixes:
        return Prefixes(features, torch.zeros(len(features), 0, dtype=torch.long))

    def step(self, state: Prefixes, tokens: Tensor) -> Tensor:
        state.tokens = torch.cat([state.tokens, tokens[:, None]], 1)
        return self.net.logits(state.features, state.tokens[:, None])[:, 0, -1]


@pytest.mark.parametrize("kind", [name for name in FAMILIES if name != "llava"])
def test_mdp_changes_nothing_until_it_has_learned(kind: str) -> None:
    model = captioner(kind)
    batch = model.collate(samples(2))
    with torch.no_grad():
        before = model.encode(batch).memory
        model.add_adapter("mdp", MDP)
        assert torch.equal(model.encode(batch).memory, before)
        nn.init.normal_(model.adapters["mdp"].mdp.out.weight)
        changed = model.encode(batch).memory
        with model.disable_adapters():
            assert torch.equal(model.encode(batch).memory, before)
    images = (changed - before).unflatten(1, (2, -1)).abs().amax((0, 2, 3))
    assert (images > 1e-3).all(), "both images must change"
    model.caption_loss(model.encode(batch), batch).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.adapters.parameters())


@pytest.mark.parametrize("kind", [name for name in FAMILIES if name != "llava"])
def test_mdp_sees_the_two_images_of_one_pair(kind: str) -> None:
    """Features of a pair do not depend on other pairs in the batch; swapping its images swaps their features."""
    model = captioner(kind)
    model.add_adapter("mdp", MDP)
    nn.init.normal_(model.adapters["mdp"].mdp.out.weight)
    # a symmetric combination of the gated images, so that swapping them swaps the outputs
    for part in model.adapters["mdp"].mdp.scales:
        part.combine.weight.data[:, : part.combine.out_features] = part.combine.weight.data.chunk(3, -1)[1]
        part.combine.weight.data.chunk(3, -1)[2].zero_()
        part.score[0].weight.data.chunk(3, -1)[0].copy_(part.score[0].weight.data.chunk(3, -1)[1])
    one, two = samples(2)
    swapped = PairSample("swapped", one.after, one.before)
    with torch.no_grad():
        together = model.encode(model.collate([two, one, swapped])).memory
        alone = model.encode(model.collate([one])).memory
    torch.testing.assert_close(together[1:2], alone, rtol=1e-4, atol=1e-5)
    first, second = together[1].unflatten(0, (2, -1))
    torch.testing.assert_close(together[2].unflatten(0, (2, -1)), torch.stack([second, first]), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_image_tokens_are_never_generated(kind: str) -> None:
    """Some configurations store the id of the image token as `image_token_index`."""
    model = model_of(kind)
    special = model.built_vocabulary.special
    kept = {image_token(model.built_net.model.config), special.pad} - set(special.ends)
    assert kept <= set(special.suppress_tokens)
    with pytest.raises(ConfigError, match="leave it out"):
        model.prompt_ids(f"{model.built_net.family.image_text} what changed?", 48, 48)
    first, second = samples()
    with pytest.raises(DataError, match="a caption of pair 'p1' contains the image placeholder"):
        model.collate([first, replace(second, captions=[f"{model.built_net.family.image_text} moved"])])


def test_llava_sees_one_wide_image_with_a_bar_and_takes_no_mdp() -> None:
    model = model_of("llava")
    (one,) = samples(1)
    net: Any = model.net
    ((square,),) = net.family.processor_images(net.processor, torch.stack([one.before, one.after])[None])
    assert square.shape == (3, 116, 116)
    wide = square[:, 34 : 34 + 48]
    assert torch.equal(wide[..., :48], one.before) and torch.equal(wide[..., 68:], one.after)
    assert not wide[..., 48:68].any()
    with pytest.raises(ConfigError, match="no adapter can separate"):
        model.add_adapter("mdp", MDP)
    assert model.hparams["adapters"] is None and not model.adapters


def test_layers_that_are_not_there_are_named() -> None:
    with pytest.raises(ConfigError, match="increasing numbers from 1 to 4 that end with 4"):
        captioner("llava_onevision").add_adapter("mdp", MDP, layers=[2, 5])


@pytest.mark.parametrize("size", CELL_SIZES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_every_part_of_both_images_is_visible(kind: str, size: tuple[int, int]) -> None:
    assert hidden_cells(model_of(kind), size) == []


def test_llava_sees_the_joined_pair_on_a_square_of_the_mean_colour() -> None:
    net: Any = model_of("llava").net
    pair = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    pixels = net.family.pixels(net.model, net.processor, [pair])["pixel_values"][0]  # (3, 32, 32) of 148 x 148 pixels
    # the border has 9 rows, of which resizing mixes the last two with the pair
    assert pixels[:, :7].abs().max() < 0.01 and pixels[:, -7:].abs().max() < 0.01
    assert pixels[:, 12:20].abs().amin((0, 1)).median() > 0
