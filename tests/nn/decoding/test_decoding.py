"""Decoding with a KV cache against decoding that recomputes every prefix, and against exhaustive search."""

from __future__ import annotations

import itertools

import pytest
import torch

from lightning_idc.images.types import PairFeatures
from lightning_idc.nn.decoding.beam_search import beam_search, beam_search_uncached
from lightning_idc.nn.decoding.decoding import NEVER_GENERATED, Decoded, greedy, greedy_uncached
from lightning_idc.nn.decoding.sampling import sample
from lightning_idc.nn.transformer import Decoder, DecoderState
from lightning_idc.nn.vocabulary import BOS, EOS, SpecialIds


class TextNet:
    """`CaptionNet` with a decoder only, for random features."""

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


def make_features(pairs: int, seed: int = 1) -> PairFeatures:
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


def has_several_lengths(decoded: Decoded) -> bool:
    return len({len(ids) for ids in decoded.ids}) >= 3


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_greedy_equals_uncached(seed: int) -> None:
    net, features = TextNet(30, end=2.0, seed=seed), make_features(40, seed)
    cached, reference = greedy(net, features, 14), greedy_uncached(net, features, 14)
    assert has_several_lengths(cached)
    assert len({tuple(ids) for ids in cached.ids}) >= 8
    assert cached.ids == reference.ids
    assert cached.mean_log_probs == pytest.approx(reference.mean_log_probs, abs=1e-5)
    assert cached.mean_log_probs == pytest.approx(teacher_forced(net, features, cached), abs=1e-5)


@pytest.mark.parametrize(("beams", "penalty"), [(2, 1.0), (4, 1.0), (4, 0.0), (5, 0.6)])
@torch.no_grad()
def test_beam_search_equals_uncached(beams: int, penalty: float) -> None:
    # without a length penalty, short captions win; a less likely end token makes their lengths differ
    net, features = TextNet(30, end=2.0 if penalty else -1.0), make_features(20)
    cached = beam_search(net, features, 12, beams=beams, length_penalty=penalty)
    reference = beam_search_uncached(net, features, 12, beams=beams, length_penalty=penalty)
    assert has_several_lengths(cached)
    assert cached.ids == reference.ids
    assert cached.mean_log_probs == pytest.approx(reference.mean_log_probs, abs=1e-5)
    assert cached.mean_log_probs == pytest.approx(teacher_forced(net, features, cached), abs=1e-5)


def plain_beams(net: TextNet, features: PairFeatures, max_length: int, beams: int, penalty: float) -> list[int]:
    """Beam search of one pair with lists: no cache, no bound on the scores, no computation shared between prefixes."""
    prefixes: list[tuple[list[int], torch.Tensor]] = [([BOS], torch.zeros(()))]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, max_length + 1):
        totals = []
        for prefix, total in prefixes:
            log_probs = net.logits(features, torch.tensor([[prefix]]))[0, 0, -1].log_softmax(-1)
            log_probs[list(NEVER_GENERATED)] = float("-inf")
            totals.append(total + log_probs)
        top = torch.stack(totals).flatten().topk(min(2 * beams, len(prefixes) * len(totals[0])))
        kept: list[tuple[list[int], torch.Tensor]] = []
        for rank, (total, index) in enumerate(zip(top.values, top.indices.tolist(), strict=True)):
            parent, token = divmod(index, len(totals[0]))
            candidate = [*prefixes[parent][0], token]
            if total == float("-inf"):
                continue
            if token == EOS or length == max_length:
                finished += [(total.item() / length**penalty, candidate[1:])] if rank < beams else []
            elif len(kept) < beams:
                kept.append((candidate, total))
        best_open = kept[0][1].item() / length**penalty if kept else float("-inf")
        if not kept or (len(finished) >= beams and max(finished)[0] >= best_open):
            break
        prefixes = kept
    return max(finished, key=lambda caption: caption[0])[1]


@pytest.mark.slow
@pytest.mark.parametrize(("beams", "penalty", "max_length"), [(1, 1.0, 12), (3, 1.0, 12), (4, -1.0, 8), (6, 2.0, 12)])
@torch.no_grad()
def test_beam_search_equals_plain_search_of_single_pairs(beams: int, penalty: float, max_length: int) -> None:
    net, features = TextNet(30, end=-1.0 if penalty >= 1 else -8.0), make_features(12)
    mask = features.mask
    assert mask is not None
    singles = [PairFeatures(features.memory[row : row + 1], mask[row : row + 1]) for row in range(12)]
    expected = [plain_beams(net, single, max_length, beams=beams, penalty=penalty) for single in singles]
    assert len(set(map(tuple, expected))) >= 6
    assert beam_search(net, features, max_length, beams=beams, length_penalty=penalty).ids == expected


@torch.no_grad()
def test_beams_share_memory_and_finished_pairs_leave_the_batch() -> None:
    net, features = TextNet(30, end=2.0), make_features(20)
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
    """Return a list to which every further step of the network appends its number of rows."""
    rows: list[int] = []
    step = net.step

    def spy(state: DecoderState, tokens: torch.Tensor) -> torch.Tensor:
        rows.append(len(tokens))
        return step(state, tokens)

    net.step = spy  # type: ignore[method-assign]
    return rows


@torch.no_grad()
def test_beam_search_stops_when_no_prefix_can_win() -> None:
    # the end token is almost certain; without the bound on the scores, the search would need more steps
    net, features = TextNet(30, end=14.0), make_features(6)
    steps = rows_of_steps(net)
    assert beam_search(net, features, 14, 4, length_penalty=0.0).ids == [[EOS]] * 6
    assert steps == [6]


@torch.no_grad()
def test_reorder_then_select_equals_uncached() -> None:
    net, features = TextNet(30, end=2.0), make_features(3)
    state = net.start(features)
    for rows in ([0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 5, 4]):
        state = state.reorder(torch.tensor(rows), torch.arange(3))
        net.step(state, torch.arange(4, 10))
    single = net.start(features).select(torch.tensor([0, 1, 1, 2]))
    for tokens in ([4, 6, 7, 9], [4, 6, 7, 8]):
        net.step(single, torch.tensor(tokens))
    selected = state.select(torch.tensor([0, 2, 3, 5]))
    assert [len(keys) for keys in (selected.memory[0][0], selected.past[0][0])] == [4, 4]
    tokens = torch.tensor([5, 6, 7, 8])
    expected = net.logits(
        PairFeatures(features.memory[[0, 1, 1, 2]], features.mask[[0, 1, 1, 2]]),  # type: ignore[index]
        torch.tensor([[[4, 4, 5]], [[6, 6, 6]], [[7, 7, 7]], [[8, 9, 8]]]),
    )[:, 0, -1]
    torch.testing.assert_close(net.step(selected, tokens), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("gradients", [False, True])
def test_cache_grows_for_long_captions(gradients: bool) -> None:
    net, features = TextNet(30, end=0.0), PairFeatures(make_features(5).memory)
    tokens = torch.randint(4, 30, (5, 30), generator=torch.Generator().manual_seed(2))
    kept, rows = torch.tensor([4, 0, 2]), torch.arange(5)
    with torch.set_grad_enabled(gradients):
        expected = net.logits(features, tokens[:, None])[:, 0]
        state = net.start(features)
        for position in range(30):
            if position == 20:
                rows, state = kept, state.select(kept)
            logits = net.step(state, tokens[rows, position])
            torch.testing.assert_close(logits, expected[rows, position], atol=1e-5, rtol=1e-5)
    assert [cached.shape[2] for layer in state.past for cached in layer] == [30] * 4
    if gradients:
        weight = net.decoder.layers[0].qkv.weight
        gradient = torch.autograd.grad(logits.square().sum(), weight)[0]
        expected_gradient = torch.autograd.grad(expected[kept, 29].square().sum(), weight)[0]
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_beam_search_with_one_beam_equals_greedy() -> None:
    for seed in range(4):
        net, features = TextNet(30, end=3.0, seed=seed), make_features(20, seed)
        one_beam, expected = beam_search(net, features, 10, 1), greedy(net, features, 10)
        assert one_beam.ids == expected.ids
        assert one_beam.mean_log_probs == pytest.approx(expected.mean_log_probs, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [0.0, 1.0])
@torch.no_grad()
def test_wide_beam_search_finds_most_likely_caption(penalty: float) -> None:
    # oracle: all captions of at most four tokens over three words
    words, max_length = [4, 5, 6], 4
    net, features = TextNet(7, end=0.5, sharpness=1.0), make_features(6)
    captions = [[*body, EOS] for n in range(max_length) for body in itertools.product(words, repeat=n)]
    captions += [list(body) for body in itertools.product(words, repeat=max_length)]  # truncated at the maximum length
    decoded = beam_search(net, features, max_length, beams=200, length_penalty=penalty)
    for row, ids in enumerate(decoded.ids):
        expanded = PairFeatures(features.memory[row : row + 1].expand(len(captions), -1, -1))
        expanded.mask = features.mask[row : row + 1].expand(len(captions), -1)  # type: ignore[index]
        means = torch.tensor(teacher_forced(net, expanded, Decoded(captions, [])))
        lengths = torch.tensor([len(caption) for caption in captions])
        scores = means * lengths / lengths**penalty
        assert ids == captions[int(scores.argmax())]


@torch.no_grad()
def test_more_beams_find_more_likely_captions() -> None:
    # pruning can make a wider beam worse, but does not with these weights
    net, features = TextNet(30, end=1.0), make_features(20)
    totals = []
    for beams in (1, 8):
        decoded = beam_search(net, features, 8, beams, length_penalty=0.0)
        totals.append(sum(mean * len(ids) for mean, ids in zip(decoded.mean_log_probs, decoded.ids, strict=True)))
    assert totals[1] > totals[0]


@torch.no_grad()
def test_special_tokens_are_never_generated() -> None:
    net, features = TextNet(12, end=0.0), make_features(16)
    net.decoder.bias.data[list(NEVER_GENERATED)] = 50.0
    for decoded in (greedy(net, features, 8), beam_search(net, features, 8, 3)):
        assert not {index for ids in decoded.ids for index in ids} & set(NEVER_GENERATED)


@torch.no_grad()
def test_finished_captions_leave_the_batch() -> None:
    net, features = TextNet(30, end=2.0), make_features(40)
    sizes = rows_of_steps(net)
    decoded = greedy(net, features, 14)
    max_length = max(map(len, decoded.ids))
    assert has_several_lengths(decoded)
    assert sizes == [sum(len(ids) > position for ids in decoded.ids) for position in range(max_length)]


@torch.no_grad()
def test_decoding_stops_when_all_captions_are_finished() -> None:
    net, features = TextNet(30, end=100.0), make_features(3)
    for decoded in (greedy(net, features, 14), greedy_uncached(net, features, 14), beam_search(net, features, 14, 3)):
        assert decoded.ids == [[EOS]] * 3
        assert decoded.mean_log_probs == pytest.approx([0.0] * 3, abs=1e-4)


def test_special_ids_are_arbitrary() -> None:
    net, features = TextNet(30, end=2.0), make_features(20)
    special = SpecialIds(pad=29, bos=28, eos=27, suppress_tokens=(29, 28, 26))
    order = torch.arange(30)
    order[[29, 28, 27, 26, 0, 1, 2, 3]] = torch.tensor([0, 1, 2, 3, 29, 28, 27, 26])
    permuted = TextNet(30, end=2.0)
    permuted.decoder.embedding.weight.data = net.decoder.embedding.weight.data[order]
    permuted.decoder.bias.data = net.decoder.bias.data[order]
    for search, options in ((greedy, ()), (greedy_uncached, ()), (beam_search, (3,)), (beam_search_uncached, (3,))):
        expected = search(net, features, 12, *options)  # type: ignore[operator]
        decoded = search(permuted, features, 12, *options, special=special)  # type: ignore[operator]
        assert [[order[i].item() for i in ids] for ids in decoded.ids] == expected.ids


@torch.no_grad()
def test_default_dtype_does_not_change_captions() -> None:
    net, features = TextNet(30, end=2.0), make_features(12)
    net.decoder.bfloat16()
    features = PairFeatures(features.memory.bfloat16(), features.mask)

    def decode() -> list[Decoded]:
        return [
            greedy(net, features, 8),
            greedy_uncached(net, features, 8),
            beam_search(net, features, 8, 3),
            beam_search_uncached(net, features, 8, 3),
            sample(net, features, 8, 2, generator=torch.Generator().manual_seed(0)),
        ]

    expected = decode()
    torch.set_default_dtype(torch.bfloat16)
    try:
        results = decode()
    finally:
        torch.set_default_dtype(torch.float32)
    for result, reference in zip(results, expected, strict=True):
        assert result.ids == reference.ids and result.mean_log_probs == reference.mean_log_probs
