"""SAM, SAM 2 and the processing of their masks: boxes, both images, the paper's confidence, and time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from lightning_idc.synthesis.models.base import Region
from lightning_idc.synthesis.models.sam import (
    FastSamSegmenter,
    SamSegmenter,
    mask_boxes,
    merge_regions,
    point_grid,
    stability,
)
from lightning_idc.utils.errors import ConfigError


def test_100_masks_are_converted_to_boxes_in_time() -> None:
    """Comparing the masks of two images with 100 masks each took 14.9 s; the limit is 0.3 s."""
    corners = torch.randint(0, 900, (100, 2), generator=torch.Generator().manual_seed(0))
    masks = torch.zeros(100, 1024, 1024, dtype=torch.bool)
    for mask, (x, y) in zip(masks, corners.tolist(), strict=True):
        mask[y : y + 100, x : x + 60] = True
    mask_boxes(masks[:4])
    began = time.process_time()
    boxes = mask_boxes(masks)
    merged = merge_regions(
        [Region(tuple(box), 0.9, mask) for box, mask in zip(boxes.tolist(), masks, strict=True)],  # type: ignore[arg-type]
        [Region(tuple(box), 0.8) for box in boxes.tolist()],  # type: ignore[arg-type]
    )
    assert time.process_time() - began < 0.3
    assert torch.equal(boxes, torch.cat([corners, corners + torch.tensor([60, 100])], 1))
    assert [region.image_index for region in merged] == [0] * 100 + [1] * 100, "nothing is merged across the pictures"


def test_boxes_enclose_their_masks() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(50):
        mask = torch.rand(1, 9, 13, generator=generator) > 0.97
        if mask.any():
            rows, columns = mask[0].any(1).nonzero()[:, 0], mask[0].any(0).nonzero()[:, 0]
            expected = [int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1]
            assert mask_boxes(mask)[0].tolist() == expected


def test_stability_is_the_iou_of_two_thresholds() -> None:
    logits = torch.tensor([[[2.0, 0.5, -0.5, -2.0]], [[5.0, 5.0, -5.0, -5.0]], [[0.0, 0.0, -2.0, -2.0]]])
    assert stability(logits).tolist() == pytest.approx([1 / 3, 1.0, 0.0])
    assert point_grid(2, (4, 8)).tolist() == [[2, 1], [6, 1], [2, 3], [6, 3]]


def sam2(folder: Path) -> str:
    from transformers import (
        Sam2Config,
        Sam2HieraDetConfig,
        Sam2ImageProcessor,
        Sam2MaskDecoderConfig,
        Sam2Model,
        Sam2PromptEncoderConfig,
        Sam2VisionConfig,
    )

    torch.manual_seed(0)
    backbone = Sam2HieraDetConfig(
        hidden_size=8, num_attention_heads=1, image_size=[64, 64], blocks_per_stage=[1, 1, 1, 1],
        embed_dim_per_stage=[8, 16, 32, 64], num_attention_heads_per_stage=[1, 1, 2, 2],
        window_size_per_stage=[4, 4, 4, 4], global_attention_blocks=[],
        window_positional_embedding_background_size=[4, 4],
    )  # fmt: skip
    vision = Sam2VisionConfig(
        backbone_config=backbone, backbone_channel_list=[64, 32, 16, 8], fpn_hidden_size=32,
        backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
    )  # fmt: skip
    decoder = Sam2MaskDecoderConfig(
        hidden_size=32, mlp_dim=32, num_hidden_layers=1, num_attention_heads=2, iou_head_hidden_dim=32,
        iou_head_depth=2,
    )  # fmt: skip
    prompt = Sam2PromptEncoderConfig(hidden_size=32, image_size=64, patch_size=16, mask_input_channels=8)
    Sam2Model(
        Sam2Config(vision_config=vision, prompt_encoder_config=prompt, mask_decoder_config=decoder)
    ).save_pretrained(folder)
    Sam2ImageProcessor(size={"height": 64, "width": 64}, mask_size={"height": 16, "width": 16}).save_pretrained(folder)
    return str(folder)


@pytest.mark.slow
def test_sam2_segments_both_images(tmp_path: Path) -> None:
    slot = SamSegmenter(sam2(tmp_path), confidence=-1e9, stability=-1.0, points=5, points_at_once=10)
    slot.load()
    pictures = [
        torch.randint(256, (3, 40, 56), generator=torch.Generator().manual_seed(n), dtype=torch.uint8) for n in (0, 1)
    ]
    (found,) = slot.regions(pictures[:1], pictures[1:])
    assert {region.image_index for region in found} == {0, 1} and all(region.mask is None for region in found)
    for region in found:
        x1, y1, x2, y2 = region.box
        assert 0 <= x1 < x2 <= 56 and 0 <= y1 < y2 <= 40
    slot.confidence = min(region.confidence for region in found)
    (fewer,) = slot.regions(pictures[:1], pictures[1:])
    assert len(fewer) < len(found), "the confidence acts"
    assert all(region.confidence > slot.confidence for region in fewer)
    assert slot.settings()["confidence"] == slot.confidence
    assert slot.provenance()["weights"] and slot.provenance()["dtype"] == "torch.float32"


def test_fastsam_without_detections() -> None:
    """Ultralytics returns None if there are no masks."""

    class NoBoxes:
        xyxy, conf = torch.zeros(0, 4), torch.zeros(0)

        def __len__(self) -> int:
            return 0

    class Nothing:
        boxes, masks = NoBoxes(), None

    slot = FastSamSegmenter()
    slot._net = lambda picture, **options: [Nothing()]
    picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    assert slot.regions([picture], [picture], masks=True) == [[]]


def test_fastsam_missing_package() -> None:
    with pytest.raises(ConfigError, match="ultralytics"):
        FastSamSegmenter().load()
