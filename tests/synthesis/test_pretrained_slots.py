"""Slots with pretrained models, here tiny random ones: inputs and outputs, one by one and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch  # noqa: F401 - sets environment variables, which must not happen within a test
import pytest
import torch
from helpers.tiny_models import make_blip, make_clip, make_llama, make_llava, make_sam

from lightning_idc.methods.img_diff.questions import PromptedTeller
from lightning_idc.synthesis.models.chat import (
    ChatModel,
    ChatVisionModel,
    GumbelSampling,
    PromptedCaptioner,
)
from lightning_idc.synthesis.models.pretrained import BlipMatcher, ClipImages, ClipTexts, DinoImages, Pretrained, as_pil
from lightning_idc.synthesis.models.sam import SamSegmenter
from lightning_idc.utils.answers import CutOff
from lightning_idc.utils.errors import CheckpointError

TEXTS = ["a red cat on the mat .", "a dog", "the blue dog on a red mat ."]


@pytest.fixture(scope="module")
def pictures() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(256, (3, 20 + 4 * n, 24), generator=generator, dtype=torch.uint8) for n in range(3)]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_clip(tmp_path_factory.mktemp("clip")))


@pytest.mark.slow
def test_clip_embeddings_do_not_depend_on_the_batch(clip: str, pictures: list[torch.Tensor]) -> None:
    for slot, inputs in ((ClipImages(clip), pictures), (ClipTexts(clip), TEXTS)):
        slot.load()
        together = slot.encode(inputs)  # type: ignore[arg-type]
        slot.batch_size = 1
        assert torch.allclose(together, slot.encode(inputs), atol=1e-5)  # type: ignore[arg-type]
        assert together.shape == (3, 8) and torch.allclose(together.norm(dim=1), torch.ones(3))
        assert (together @ together.T).fill_diagonal_(0).max() < 1 - 1e-6, "different inputs, different vectors"
    assert ClipImages(clip, revision="abc").settings() == {"model": clip, "revision": "abc", "dtype": "float32"}


def test_missing_model_suggests_the_download() -> None:
    with pytest.raises(CheckpointError, match="hf download nobody/nothing"):
        ClipImages("nobody/nothing").load()


def test_incomplete_checkpoint_is_an_error(clip: str, tmp_path: Path) -> None:
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(clip, tmp_path / "clip")
    file = tmp_path / "clip" / "model.safetensors"
    weights = load_file(file)
    weights.pop("visual_projection.weight")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="visual_projection"):
        ClipImages(str(tmp_path / "clip")).load()


def test_dino_encodes(tmp_path: Path, pictures: list[torch.Tensor]) -> None:
    from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    config = Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=8)
    Dinov2Model(config).save_pretrained(tmp_path)
    BitImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    slot = DinoImages(str(tmp_path))
    slot.load()
    vectors = slot.encode(pictures)
    assert vectors.shape == (3, 16) and torch.allclose(vectors.norm(dim=1), torch.ones(3))


@pytest.mark.slow
def test_blip_matches_by_cosine_or_probability(tmp_path: Path, pictures: list[torch.Tensor]) -> None:
    make_blip(tmp_path)
    for score in ("cosine", "probability"):
        slot = BlipMatcher(str(tmp_path), score=score)  # type: ignore[arg-type]
        slot.load()
        together = slot.match(pictures, TEXTS)
        slot.batch_size = 1
        assert torch.allclose(together, slot.match(pictures, TEXTS), atol=1e-4)
        assert together.shape == (3,) and (together.abs() <= 1).all()
        assert score == "cosine" or (together >= 0).all()


@pytest.mark.slow
def test_sam_segments_both_images(tmp_path: Path, pictures: list[torch.Tensor]) -> None:
    from transformers import MaskGenerationPipeline

    make_sam(tmp_path)
    slot = SamSegmenter(str(tmp_path), confidence=-1e9, stability=-1.0, overlap=0.7, points=6, points_at_once=20)
    slot.load()
    twins = [picture.flip(2) for picture in pictures]
    regions_of_pairs = slot.regions(pictures, twins, masks=True)
    for regions, height in zip(regions_of_pairs, (20, 24, 28), strict=True):
        for region in regions:
            x1, y1, x2, y2 = region.box
            assert 0 <= x1 < x2 <= 24 and 0 <= y1 < y2 <= height
            assert region.mask is not None and region.image_index in (0, 1)
            inside = region.mask.nonzero()
            assert [int(inside[:, 1].min()), int(inside[:, 0].min())] == [x1, y1]
        assert regions == sorted(regions, key=lambda region: -region.confidence)
    slot.batch_size = 1
    for together, alone in zip(regions_of_pairs, slot.regions(pictures, twins), strict=True):
        assert [region.box for region in together] == [region.box for region in alone] != []
    # the masks of one image equal those of the pipeline of transformers
    pipeline = MaskGenerationPipeline(model=slot.net, image_processor=slot.processor)
    options = {"points_per_crop": 6, "pred_iou_thresh": -1e9, "stability_score_thresh": -1.0}
    expected = pipeline(as_pil(pictures[:1])[0], **options)
    own = slot._segment(pictures[:1], True)[0]
    masks = [mask for mask in map(torch.as_tensor, expected["masks"]) if mask.any()]
    assert len(own) == len(masks) > 0
    assert all(torch.equal(region.mask, mask) for region, mask in zip(own, masks, strict=True))


@pytest.mark.slow
def test_a_chat_model_answers_the_same_for_the_same_seed(tmp_path: Path) -> None:
    make_llama(tmp_path, layers=2)
    slot = ChatModel(str(tmp_path), dtype="float32", max_new_tokens=8, template="none")
    slot.load()
    before = torch.random.get_rng_state()
    first = slot.answer(TEXTS, [1, 2, 3])
    assert first == slot.answer(TEXTS, [1, 2, 3]) and first != slot.answer(TEXTS, [9, 8, 7])
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own random numbers stay as they were"
    slot.batch_size = 1
    assert first == slot.answer(TEXTS, [1, 2, 3]), "an answer depends on its own seed, not on what shares its batch"
    assert first[1:] == slot.answer(TEXTS[1:], [2, 3])
    slot.batch_size, slot.temperature = 16, 0
    greedy = slot.answer(TEXTS, [1, 2, 3])
    slot.batch_size = 1
    assert greedy == slot.answer(TEXTS, [4, 5, 6]), "padding on the left changes no answer"


def test_gumbel_sampling_distribution() -> None:
    count, temperature = 20_000, 0.7
    scores = torch.tensor([1.0, 0.0, -0.5]).expand(count, 3)
    drawn = GumbelSampling(range(count), temperature, torch.device("cpu"))(torch.zeros(count, 0), scores).argmax(1)
    expected = (scores[0] / temperature).softmax(0)
    assert torch.allclose(drawn.bincount(minlength=3) / count, expected, atol=0.015)


def test_batches_have_similar_sizes_and_answers_are_in_order() -> None:
    slot = Pretrained("none", batch_size=2)
    seen = []

    def work(part: list[int]) -> list[int]:
        seen.append(part)
        return [10 * number for number in part]

    assert slot.in_batches([5, 1, 9, 2, 8], work) == [0, 10, 20, 30, 40]
    assert seen == [[2, 4], [0, 3], [1]]
    assert slot.in_batches([], work) == []


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_llava(tmp_path_factory.mktemp("llava")))


@pytest.mark.slow
def test_vision_language_model_accepts_one_or_two_images(llava: str, pictures: list[torch.Tensor]) -> None:
    slot = ChatVisionModel(llava, dtype="float32", max_new_tokens=6)
    slot.load()
    pairs = [[pictures[0], pictures[1]], [pictures[1], pictures[2]], [pictures[2], pictures[0]]]
    together = slot.answer(pairs, TEXTS)
    slot.batch_size = 1
    assert together == slot.answer(pairs, TEXTS) and len(together) == 3
    captioner = PromptedCaptioner(slot, "a red", min_side=16)
    assert len(captioner.caption(pictures)) == 3
    same = [picture[:, :20] for picture in pictures]
    sentences = PromptedTeller(slot, "a {caption1} on {caption2}").tell(
        same[:2], same[1:], [("cat", "dog"), ("dog", "mat")]
    )
    assert len(sentences) == 2


def test_vision_language_model_marks_truncated_answers(llava: str, pictures: list[torch.Tensor]) -> None:
    slot = ChatVisionModel(llava, dtype="float32", max_new_tokens=6)
    slot.load()
    shown = [[picture] for picture in pictures]
    for batch_size in (8, 1):
        slot.batch_size = batch_size
        slot.net.generation_config.eos_token_id = 3
        assert [isinstance(answer, CutOff) for answer in slot.answer(shown, TEXTS)] == [True, False, True]
    slot.net.generation_config.eos_token_id = [3, 11]
    assert [isinstance(answer, CutOff) for answer in slot.answer(shown, TEXTS)] == [True, False, False], "several ends"
    slot.net.generation_config.eos_token_id = [4]
    assert all(isinstance(answer, CutOff) for answer in slot.answer(shown, TEXTS)), "none that is ever said"


class Recorded:
    """A tokenizer that records the token ids that it returns."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.rows = tokenizer, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def __call__(self, texts: list[str], **options: Any) -> Any:
        made = self.tokenizer(texts, **options)
        self.rows += made["input_ids"].tolist()
        return made


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


def test_model_without_template_is_rejected(llama: Path, tmp_path: Path) -> None:
    import shutil

    with pytest.raises(CheckpointError, match="has no chat template"):
        ChatModel(str(llama), dtype="float32").load()
    vicuna = tmp_path / "vicuna-tiny"
    shutil.copytree(llama, vicuna)
    slot = ChatModel(str(vicuna), dtype="float32", max_new_tokens=2)
    slot.load()
    text = slot._chat("a cat")
    assert text.startswith("A chat between a curious user and") and text.endswith("USER: a cat ASSISTANT:")
    assert slot.settings()["template"] == "vicuna"


def test_bos_token_is_not_duplicated(llama: Path) -> None:
    for template, firsts in (("<bos> {{ messages[0]['content'] }}", 1), ("{{ messages[0]['content'] }}", 1)):
        slot = ChatModel(str(llama), dtype="float32", max_new_tokens=1, template="none")
        slot.load()
        slot.processor.chat_template = template
        slot.processor = Recorded(slot.processor)
        slot.answer(["a red cat", "a dog"], [0, 1])
        assert all(row.count(2) == firsts for row in slot.processor.rows), slot.processor.rows


def test_an_answer_ends_before_a_stop_string(llama: Path) -> None:
    slot = ChatModel(str(llama), dtype="float32", max_new_tokens=12, temperature=0.9, template="none")
    slot.load()
    whole = slot.answer(TEXTS, [1, 2, 3])
    word = whole[0].split()[2]
    slot.stop = (word,)
    assert slot.answer(TEXTS, [1, 2, 3]) == [answer.partition(word)[0] for answer in whole]


def test_weights_digest(clip: str) -> None:
    import hashlib

    slot = ClipImages(clip)
    slot.load()
    file = Path(clip) / "model.safetensors"
    expected = hashlib.sha256(f"model.safetensors:{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    assert slot.provenance() == {"commit": None, "weights": expected.hexdigest(), "dtype": "torch.float32"}


@pytest.mark.slow
def test_out_of_memory_halves_forward_passes() -> None:
    slot = Pretrained("none", batch_size=8)
    seen: list[int] = []

    def work(part: list[int]) -> list[int]:
        seen.append(len(part))
        if len(part) > 2:
            raise torch.OutOfMemoryError("no room")
        return [10 * number for number in part]

    assert slot.in_batches([1] * 8, work) == [10 * number for number in range(8)]
    assert seen == [8, 4, 2, 2, 4, 2, 2]
