"""Cached decoding against the path that recomputes every prefix, and against searching everything."""

from __future__ import annotations

import itertools

import pytest
import torch

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.beam_search import beam_search, beam_search_uncached
from lightning_idc.nn.decoding.decoding import NEVER_GENERATED, Decoded, greedy, greedy_uncached
from lightning_idc.nn.decoding.sampling import sample
from lightning_idc.nn.transformer import Decoder, DecoderState, attend
from lightning_idc.nn.vocabulary import BOS, EOS, SpecialIds


class TextNet:
    """A decoder alone; features are given."""

    def __init__(self, words: int, end: float, sharpness: float = 3.0, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.decoder = Decoder(words, width=32, layers=2, heads=4, hidden=64, dropout=0.1, max_length=32).eval()
        torch.nn.init.normal_(self.decoder.position, std=1.0)
        self.decoder.norm.weight.data *= sharpness
        self.decoder.bias.data[EOS] = end

    def logits(self, features: PairFeatures, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(features.memory, features.mask, tokens)

    def start(self, features: PairFeatures) -> DecoderState:
        return self.decoder.start(features.memory, features.mask)

    def step(self, state: DecoderState, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder.step(state, tokens)


def look(pairs: int, seed: int = 1) -> PairFeatures:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(pairs, 9, generator=generator) > 0.3
    mask[:, 0] = True
    return PairFeatures(2 * torch.randn(pairs, 9, 32, generator=generator), mask)


def teacher_forced(net: TextNet, features: PairFeatures, decoded: Decoded) -> list[float]:
    means = []
    for row, ids in enumerate(decoded.ids):
        one = PairFeatures(features.memory[row : row + 1], features.mask[row : row + 1])  # type: ignore[index]
        logits = net.logits(one, torch.tensor([[[BOS, *ids[:-1]]]]))[0, 0]
        means.append(logits.log_softmax(-1)[torch.arange(len(ids)), ids].mean().item())
    return means


def ragged(decoded: Decoded) -> bool:
    return len({len(ids) for ids in decoded.ids}) >= 3


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_cached_greedy_equals_uncached_token_for_token(seed: int) -> None:
    net, features = TextNet(30, end=2.0, seed=seed), look(40, seed)
    cached, reference = greedy(net, features, 14), greedy_uncached(net, features, 14)
    assert ragged(cached)
    assert len({tuple(ids) for ids in cached.ids}) >= 8
    assert cached.ids == reference.ids
    assert cached.mean_log_probs == pytest.approx(reference.mean_log_probs, abs=1e-5)
    assert cached.mean_log_probs == pytest.approx(teacher_forced(net, features, cached), abs=1e-5)


@pytest.mark.parametrize(("beams", "penalty"), [(2, 1.0), (4, 1.0), (4, 0.0), (5, 0.6)])
@torch.no_grad()
def test_cached_beams_equal_uncached_token_for_token(beams: int, penalty: float) -> None:
    # without a penalty short sentences win, so the end must be less likely for lengths to differ
    net, features = TextNet(30, end=2.0 if penalty else -1.0), look(20)
    cached = beam_search(net, features, 12, beams, penalty)
    reference = beam_search_uncached(net, features, 12, beams, penalty)
    assert ragged(cached)
    assert cached.ids == reference.ids
    assert cached.mean_log_probs == pytest.approx(reference.mean_log_probs, abs=1e-5)
    assert cached.mean_log_probs == pytest.approx(teacher_forced(net, features, cached), abs=1e-5)


def plain_beams(net: TextNet, features: PairFeatures, longest: int, beams: int, penalty: float) -> list[int]:
    """Beam search of one pair in lists, every prefix anew, with neither a bound nor anything shared."""
    live: list[tuple[list[int], torch.Tensor]] = [([BOS], torch.zeros(()))]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, longest + 1):
        totals = []
        for prefix, total in live:
            log_probs = net.logits(features, torch.tensor([[prefix]]))[0, 0, -1].log_softmax(-1)
            log_probs[list(NEVER_GENERATED)] = float("-inf")
            totals.append(total + log_probs)
        top = torch.stack(totals).flatten().topk(min(2 * beams, len(live) * len(totals[0])))
        kept: list[tuple[list[int], torch.Tensor]] = []
        for rank, (total, place) in enumerate(zip(top.values, top.indices.tolist(), strict=True)):
            parent, token = divmod(place, len(totals[0]))
            said = [*live[parent][0], token]
            if total == float("-inf"):
                continue
            if token == EOS or length == longest:
                finished += [(total.item() / length**penalty, said[1:])] if rank < beams else []
            elif len(kept) < beams:
                kept.append((said, total))
        best_open = kept[0][1].item() / length**penalty if kept else float("-inf")
        if not kept or (len(finished) >= beams and max(finished)[0] >= best_open):
            break
        live = kept
    return max(finished, key=lambda caption: caption[0])[1]


@pytest.mark.parametrize(("beams", "penalty", "longest"), [(1, 1.0, 12), (3, 1.0, 12), (4, -1.0, 8), (6, 2.0, 12)])
@torch.no_grad()
def test_beams_say_what_a_plain_search_of_each_pair_says(beams: int, penalty: float, longest: int) -> None:
    net, features = TextNet(30, end=-1.0 if penalty >= 1 else -8.0), look(12)
    mask = features.mask
    assert mask is not None
    each = [PairFeatures(features.memory[row : row + 1], mask[row : row + 1]) for row in range(12)]
    expected = [plain_beams(net, one, longest, beams, penalty) for one in each]
    assert len(set(map(tuple, expected))) >= 6
    assert beam_search(net, features, longest, beams, penalty).ids == expected


@torch.no_grad()
def test_beams_of_a_pair_share_its_memory_and_finished_pairs_leave() -> None:
    net, features = TextNet(30, end=2.0), look(20)
    sizes: list[tuple[int, int]] = []
    step = net.step

    def spy(state: DecoderState, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append((len(tokens), len(state.memory[0][0])))
        return step(state, tokens)

    net.step = spy  # type: ignore[method-assign]
    beam_search(net, features, 14, 4)
    assert sizes[0] == (20, 20) and sizes[1][1] > 10
    assert all(captions == 4 * pairs for captions, pairs in sizes[1:])
    assert sizes[-1][1] < sizes[1][1]


def rows_of_steps(net: TextNet) -> list[int]:
    """Rows of each step that the network takes from now on."""
    rows: list[int] = []
    step = net.step

    def spy(state: DecoderState, tokens: torch.Tensor) -> torch.Tensor:
        rows.append(len(tokens))
        return step(state, tokens)

    net.step = spy  # type: ignore[method-assign]
    return rows


@torch.no_grad()
def test_search_stops_where_no_prefix_can_win() -> None:
    # the end is as good as certain; of four beams three would be needed to stop without the bound
    net, features = TextNet(30, end=14.0), look(6)
    steps = rows_of_steps(net)
    assert beam_search(net, features, 14, 4, length_penalty=0.0).ids == [[EOS]] * 6
    assert steps == [6]


@torch.no_grad()
def test_captions_of_one_pair_part_from_a_shared_memory() -> None:
    net, features = TextNet(30, end=2.0), look(3)
    state = net.start(features)
    for rows in ([0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 5, 4]):
        state = state.reorder(torch.tensor(rows), torch.arange(3))
        net.step(state, torch.arange(4, 10))
    single = net.start(features).select(torch.tensor([0, 1, 1, 2]))
    for tokens in ([4, 6, 7, 9], [4, 6, 7, 8]):
        net.step(single, torch.tensor(tokens))
    chosen = state.select(torch.tensor([0, 2, 3, 5]))
    assert [len(part) for part in (chosen.memory[0][0], chosen.past[0][0])] == [4, 4]
    tokens = torch.tensor([5, 6, 7, 8])
    expected = net.logits(
        PairFeatures(features.memory[[0, 1, 1, 2]], features.mask[[0, 1, 1, 2]]),  # type: ignore[index]
        torch.tensor([[[4, 4, 5]], [[6, 6, 6]], [[7, 7, 7]], [[8, 9, 8]]]),
    )[:, 0, -1]
    torch.testing.assert_close(net.step(chosen, tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_long_captions_outgrow_the_room_of_the_cache(gradients: bool) -> None:
    net, features = TextNet(30, end=0.0), PairFeatures(look(5).memory)
    tokens = torch.randint(4, 30, (5, 30), generator=torch.Generator().manual_seed(2))
    kept, rows = torch.tensor([4, 0, 2]), torch.arange(5)
    with torch.set_grad_enabled(gradients):
        expected = net.logits(features, tokens[:, None])[:, 0]
        state = net.start(features)
        for position in range(30):
            if position == 20:
                rows, state = kept, state.select(kept)
            said = net.step(state, tokens[rows, position])
            torch.testing.assert_close(said, expected[rows, position], atol=1e-5, rtol=1e-5)
    assert [part.shape[2] for layer in state.past for part in layer] == [30] * 4
    if gradients:
        inner = net.decoder.layers[0].qkv.weight
        found = torch.autograd.grad(said.square().sum(), inner)[0]
        wanted = torch.autograd.grad(expected[kept, 29].square().sum(), inner)[0]
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("queries", [1, 4])
def test_attention_of_few_queries_is_that_of_the_fused_kernel(queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(3, queries, 2, 8, generator=generator).transpose(1, 2)
    keys, values = torch.randn(2, 3, 2, 12, 8, generator=generator)[..., :11, :].unbind(0)
    for scale in (None, 0.1):
        expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=scale)
        torch.testing.assert_close(attend(query, keys, values, scale=scale), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_one_beam_is_greedy() -> None:
    for seed in range(4):
        net, features = TextNet(30, end=3.0, seed=seed), look(20, seed)
        one, best = beam_search(net, features, 10, 1), greedy(net, features, 10)
        assert one.ids == best.ids
        assert one.mean_log_probs == pytest.approx(best.mean_log_probs, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@torch.no_grad()
def test_wide_beams_find_the_best_of_all_sentences(penalty: float) -> None:
    # oracle: every sentence of at most four tokens over three words
    words, longest = [4, 5, 6], 4
    net, features = TextNet(7, end=0.5, sharpness=1.0), look(6)
    sentences = [[*body, EOS] for n in range(longest) for body in itertools.product(words, repeat=n)]
    sentences += [list(body) for body in itertools.product(words, repeat=longest)]  # cut off at the longest
    found = beam_search(net, features, longest, beams=200, length_penalty=penalty)
    for row, ids in enumerate(found.ids):
        one = PairFeatures(features.memory[row : row + 1].expand(len(sentences), -1, -1))
        one.mask = features.mask[row : row + 1].expand(len(sentences), -1)  # type: ignore[index]
        means = torch.tensor(teacher_forced(net, one, Decoded(sentences, [])))
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        scores = means * lengths / lengths**penalty
        assert ids == sentences[int(scores.argmax())]


@torch.no_grad()
def test_more_beams_are_never_less_likely_here() -> None:
    # without a length penalty a wider beam may only lose by pruning; on these weights it does not
    net, features = TextNet(30, end=1.0), look(20)
    totals = []
    for beams in (1, 8):
        found = beam_search(net, features, 8, beams, length_penalty=0.0)
        totals.append(sum(m * len(ids) for m, ids in zip(found.mean_log_probs, found.ids, strict=True)))
    assert totals[1] > totals[0]


@torch.no_grad()
def test_padding_begin_and_unknown_are_never_said() -> None:
    net, features = TextNet(12, end=0.0), look(16)
    net.decoder.bias.data[list(NEVER_GENERATED)] = 50.0
    for found in (greedy(net, features, 8), beam_search(net, features, 8, 3)):
        assert not {index for ids in found.ids for index in ids} & set(NEVER_GENERATED)


@torch.no_grad()
def test_finished_rows_leave_the_batch() -> None:
    net, features = TextNet(30, end=2.0), look(40)
    sizes = rows_of_steps(net)
    found = greedy(net, features, 14)
    longest = max(map(len, found.ids))
    assert ragged(found) and sizes == [sum(len(ids) > position for ids in found.ids) for position in range(longest)]


@torch.no_grad()
def test_decoding_stops_when_all_have_ended() -> None:
    net, features = TextNet(30, end=100.0), look(3)
    for found in (greedy(net, features, 14), greedy_uncached(net, features, 14), beam_search(net, features, 14, 3)):
        assert found.ids == [[EOS]] * 3
        assert found.mean_log_probs == pytest.approx([0.0] * 3, abs=1e-4)


def test_special_ids_may_stand_anywhere() -> None:
    net, features = TextNet(30, end=2.0), look(20)
    moved = SpecialIds(pad=29, bos=28, eos=27, suppress_tokens=(29, 28, 26))
    order = torch.arange(30)
    order[[29, 28, 27, 26, 0, 1, 2, 3]] = torch.tensor([0, 1, 2, 3, 29, 28, 27, 26])
    other = TextNet(30, end=2.0)
    other.decoder.embedding.weight.data = net.decoder.embedding.weight.data[order]
    other.decoder.bias.data = net.decoder.bias.data[order]
    for search, options in ((greedy, ()), (greedy_uncached, ()), (beam_search, (3,)), (beam_search_uncached, (3,))):
        expected = search(net, features, 12, *options)  # type: ignore[operator]
        found = search(other, features, 12, *options, special=moved)  # type: ignore[operator]
        assert [[order[i].item() for i in ids] for ids in found.ids] == expected.ids


@torch.no_grad()
def test_a_default_of_bfloat16_changes_no_caption_and_no_sum() -> None:
    net, features = TextNet(30, end=2.0), look(12)
    net.decoder.bfloat16()
    features = PairFeatures(features.memory.bfloat16(), features.mask)

    def said() -> list[Decoded]:
        return [
            greedy(net, features, 8),
            greedy_uncached(net, features, 8),
            beam_search(net, features, 8, 3),
            beam_search_uncached(net, features, 8, 3),
            sample(net, features, 8, 2, generator=torch.Generator().manual_seed(0)),
        ]

    expected = said()
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = said()
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids and one.mean_log_probs == other.mean_log_probs
