"""Losses and masks of NAMC. Oracles: numbers of the reference code, the paper's equations in float64, and loops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.methods.namc.losses import info_nce, info_nce_of_similarity, late_interaction, sdm
from lightning_idc.methods.namc.noise import (
    MaskProbabilities,
    fill_masked_patches,
    noise_probabilities,
    pool_subwords,
    random_probabilities,
    relevance,
    resize_mask,
    token_similarity,
)


def test_sdm_equals_the_reference_code(shared: Path) -> None:
    file = shared / "parity/sdm/io.safetensors"
    if not file.is_file():
        pytest.skip("the shared folder holds no parity/sdm")
    from safetensors.torch import load_file

    stored = load_file(file)
    image, text = stored["image"].requires_grad_(), stored["text"].requires_grad_()
    loss = sdm(image, text, stored["pid"])
    loss.backward()
    torch.testing.assert_close(loss, stored["loss"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(image.grad, stored["grad_image"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(text.grad, stored["grad_text"], rtol=1e-4, atol=1e-6)


def test_sdm_equals_eq_13_to_15() -> None:
    """Direct computation of Eq. 13 to 15, term by term in float64."""
    torch.manual_seed(0)
    images, texts = torch.randn(5, 7, dtype=torch.float64), torch.randn(5, 7, dtype=torch.float64)
    total = 0.0
    for a, b in ((images, texts), (texts, images)):
        for i in range(5):
            logits = torch.stack([F.cosine_similarity(a[i], b[j], dim=0) for j in range(5)]) / 0.02
            p = logits.exp() / logits.exp().sum()
            q = torch.tensor([float(i == j) for j in range(5)], dtype=torch.float64)
            total += float((p * (p.log() - (q + 1e-8).log())).sum()) / 5
    assert sdm(images, texts).item() == pytest.approx(total, rel=1e-9)
    assert sdm(images, images).item() == pytest.approx(0.0, abs=1e-6)
    # every image is matched with a wrong text, so the loss is -2 log 1e-8
    mismatched = sdm(images, images.roll(1, 0), scale=1e4)
    assert mismatched.item() == pytest.approx(2 * 8 * torch.log(torch.tensor(10.0)).item(), rel=1e-4)


def test_sdm_is_finite_in_half_precision() -> None:
    torch.manual_seed(0)
    images, texts = torch.randn(4, 8), torch.randn(4, 8)
    half = sdm(images.half(), texts.half())
    torch.testing.assert_close(half, sdm(images, texts), rtol=2e-2, atol=2e-2)


PRECISIONS = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("matching", [sdm, info_nce])
@pytest.mark.parametrize("labels", [None, torch.tensor([0, 0, 1, 2])])
def test_alignment_losses_are_in_float32_under_autocast(
    matching: Callable[..., Tensor], labels: Tensor | None, dtype: torch.dtype
) -> None:
    """Regression: autocast rounded the product of :func:`cosines` to half precision."""
    torch.manual_seed(0)
    plain = [torch.randn(4, 8, requires_grad=True) for _ in range(2)]
    mixed = [side.detach().clone().requires_grad_() for side in plain]
    expected = matching(*plain, labels)
    with torch.autocast("cpu", dtype):
        actual = matching(*mixed, labels)
    assert torch.equal(actual, expected)
    expected.backward()
    actual.backward()
    for a, b in zip(mixed, plain, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_similarities_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    patches, words, valid = torch.randn(3, 4, 8), torch.randn(3, 5, 8), torch.ones(3, 5).bool()
    with torch.autocast("cpu", dtype):
        similarity = token_similarity(patches, words)
        loss = info_nce_of_similarity(late_interaction(patches, words, valid))
    assert torch.equal(similarity, token_similarity(patches, words)), "masks do not depend on the precision"
    torch.testing.assert_close(
        loss, info_nce_of_similarity(late_interaction(patches, words, valid)), rtol=2e-2, atol=2e-2, check_dtype=False
    )


def test_equal_labels_match() -> None:
    torch.manual_seed(1)
    images, texts = torch.randn(4, 6), torch.randn(4, 6)
    texts[1] = texts[0]
    labels = torch.tensor([0, 0, 1, 2])
    assert sdm(images, texts, labels) < sdm(images, texts)
    negative_logits = -(50 * F.normalize(images, dim=-1) @ F.normalize(texts, dim=-1).T)
    expected = F.cross_entropy(-negative_logits, torch.arange(4)) + F.cross_entropy(-negative_logits.T, torch.arange(4))
    torch.testing.assert_close(info_nce(images, texts), expected)


def test_late_interaction_equals_its_formula() -> None:
    torch.manual_seed(2)
    patches, words = torch.randn(3, 4, 5), torch.randn(2, 6, 5)
    valid = torch.tensor([[0, 1, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0]]).bool()
    for n in range(3):
        for m in range(2):
            best = [
                max(F.cosine_similarity(patches[n, p], words[m, t], dim=0).item() for p in range(4))
                for t in range(6)
                if valid[m, t]
            ]
            assert late_interaction(patches, words, valid)[n, m].item() == pytest.approx(
                sum(best) / len(best), abs=1e-6
            )
    assert info_nce_of_similarity(torch.eye(4), scale=100.0).item() == pytest.approx(0.0, abs=1e-6)


def test_relevance_ignores_special_tokens() -> None:
    similarity = token_similarity(torch.eye(3)[None], torch.eye(3)[None])
    patches, words = relevance(similarity, torch.tensor([[False, True, True]]))
    assert patches.tolist() == [[0.0, 1.0, 1.0]]
    assert words.tolist() == [[1.0, 1.0, 1.0]]
    nothing, _ = relevance(similarity, torch.zeros(1, 3, dtype=torch.bool))
    assert nothing.tolist() == [[0.0, 0.0, 0.0]]


def test_pool_subwords() -> None:
    values = torch.tensor([[9.0, 0.2, 0.4, 0.6, 9.0, 9.0]])
    word_of = torch.tensor([[-1, 0, 1, 1, -1, -1]])
    torch.testing.assert_close(pool_subwords(values, word_of, 3), torch.tensor([[0.2, 0.5, 0.0]]))


def test_noise_probabilities_equal_the_formula() -> None:
    relevances = torch.tensor([[0.3, 0.1, 0.5, 0.9], [0.3, 0.1, 0.5, 0.9]], dtype=torch.float64)
    valid = torch.tensor([[True, True, True, True], [True, True, True, False]])
    actual = noise_probabilities(relevances, valid, 0.2)
    expected = [min(max(0.2 + (1 - r) - (1 - 0.45), 0), 1) for r in (0.3, 0.1, 0.5, 0.9)]
    torch.testing.assert_close(actual[0], torch.tensor(expected, dtype=torch.float64))
    assert actual[1].tolist() == pytest.approx([0.2, 0.4, 0.0, 0.0], abs=1e-12)
    assert random_probabilities(relevances, valid, 0.2)[1].tolist() == pytest.approx([0.2, 0.2, 0.2, 0.0])
    # where nothing is clamped, the mean is the mask ratio
    mild = 0.45 + 0.05 * torch.rand(8, 40, dtype=torch.float64)
    assert noise_probabilities(mild, torch.ones(8, 40).bool(), 0.15).mean().item() == pytest.approx(0.15, abs=1e-12)


@pytest.mark.parametrize("probabilities", [noise_probabilities, random_probabilities])
def test_mask_ratio_zero_masks_nothing(probabilities: MaskProbabilities) -> None:
    """Figure 3 has rows that mask only images or only words; the formula alone would still mask some elements."""
    relevances, valid = torch.tensor([[0.3, 0.1, 0.5, 0.9]]), torch.ones(1, 4).bool()
    assert not probabilities(relevances, valid, 0.0).any()
    assert probabilities(relevances, valid, 0.01).any()


def test_resize_mask_and_fill_masked_patches() -> None:
    mask = torch.zeros(1, 2, 2, dtype=torch.bool)
    mask[0, 0, 1] = True
    assert resize_mask(mask, (4, 4))[0].int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(resize_mask(resize_mask(mask, (6, 6)), (2, 2)), mask)
    images = torch.arange(48, dtype=torch.uint8).view(1, 3, 4, 4)
    filled = fill_masked_patches(images, mask)
    pixel_mask = resize_mask(mask, (4, 4))[:, None].expand(1, 3, 4, 4)
    assert torch.equal(filled[~pixel_mask], images[~pixel_mask])
    assert filled[0, 1, 0, 2:].tolist() == [round(sum(range(16, 32)) / 16)] * 2
