"""Layers and decoder of the transformer. Oracles: the equations, and copies of the memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lightning_idc.nn.transformer import Decoder, DecoderLayer, EncoderLayer
from lightning_idc.utils.errors import DataError


def test_encoder_layer_equals_equations() -> None:
    torch.manual_seed(0)
    layer = EncoderLayer(width=16, heads=2, hidden=32, dropout=0.0)
    x, bias = torch.randn(3, 6, 16), torch.randn(2, 6, 6)
    q, k, v = (part.view(3, 6, 2, 8).transpose(1, 2) for part in layer.qkv(layer.norm_attention(x)).chunk(3, -1))
    weights = (q @ k.mT / 8**0.5 + bias).softmax(-1)
    expected = x + layer.out((weights @ v).transpose(1, 2).reshape(3, 6, 16))
    expected = expected + layer.feed(layer.norm_feed(expected))
    torch.testing.assert_close(layer(x, bias), expected)


def test_decoder_layer_ignores_later_tokens_and_masked_memory() -> None:
    torch.manual_seed(0)
    layer = DecoderLayer(width=16, heads=2, hidden=32, dropout=0.0)
    x, memory = torch.randn(2, 3, 5, 16), torch.randn(2, 7, 16)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, 4:] = False
    output = layer(x, layer.memory(memory), mask)
    changed_x, changed_memory = x.clone(), memory.clone()
    changed_x[:, :, 3:] += 1.0
    changed_memory[1, 4:] = 100.0
    changed_output = layer(changed_x, layer.memory(changed_memory), mask)
    torch.testing.assert_close(output[:, :, :3], changed_output[:, :, :3])
    assert not torch.allclose(output[:, :, 3:], changed_output[:, :, 3:])


def make_decoder() -> Decoder:
    torch.manual_seed(0)
    return Decoder(vocabulary=20, width=16, layers=2, heads=2, hidden=32, dropout=0.0, max_length=9).eval()


def test_shared_memory_equals_copies_of_memory() -> None:
    decoder = make_decoder()
    memory, tokens = torch.randn(3, 5, 16), torch.randint(4, 20, (3, 4, 8))
    mask = torch.rand(3, 5) > 0.4
    mask[:, 0] = True
    copies = decoder(memory.repeat_interleave(4, 0), mask.repeat_interleave(4, 0), tokens.view(12, 1, 8))
    torch.testing.assert_close(decoder(memory, mask, tokens), copies.view(3, 4, 8, 20))


def test_captions_of_a_pair_do_not_copy_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make_decoder()
    sizes = []
    attend = F.scaled_dot_product_attention

    def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: object) -> torch.Tensor:
        sizes.append((q.shape[0], q.shape[2], k.shape[2]))
        return attend(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    decoder(torch.randn(3, 5, 16), None, torch.zeros(3, 4, 8, dtype=torch.long))
    assert sizes == [(12, 8, 8), (3, 32, 5)] * 2


def test_padding_does_not_change_logits() -> None:
    decoder = make_decoder()
    memory, tokens = torch.randn(2, 5, 16), torch.randint(4, 20, (2, 2, 6))
    padded = F.pad(tokens, (0, 3))
    torch.testing.assert_close(decoder(memory, None, padded)[:, :, :6], decoder(memory, None, tokens))


def test_steps_equal_forward_after_selecting_rows() -> None:
    decoder = make_decoder()
    memory, tokens = torch.randn(4, 5, 16), torch.randint(4, 20, (4, 1, 8))
    mask = torch.rand(4, 5) > 0.4
    mask[:, 0] = True
    expected = decoder(memory, mask, tokens)[:, 0]
    state = decoder.start(memory, mask)
    rows = torch.arange(4)
    for position in range(8):
        if position in (3, 6):
            selected = torch.tensor([2, 0, 2])
            rows, state = rows[selected], state.select(selected)
        torch.testing.assert_close(decoder.step(state, tokens[rows, 0, position]), expected[rows, position])


def test_rejects_captions_above_max_length() -> None:
    decoder = make_decoder()
    with pytest.raises(DataError, match="10 tokens is longer than the decoder's 9"):
        decoder(torch.randn(1, 5, 16), None, torch.zeros(1, 1, 10, dtype=torch.long))
    state = decoder.start(torch.randn(1, 5, 16), None)
    for _ in range(9):
        decoder.step(state, torch.tensor([4]))
    with pytest.raises(DataError, match="10 tokens"):
        decoder.step(state, torch.tensor([4]))
