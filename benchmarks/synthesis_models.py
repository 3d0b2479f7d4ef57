"""Small random models with the architectures of the Img-Diff paper, and the stages that use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.captions import PromptedEdits
from lightning_idc.methods.img_diff.judging import NaturalImages
from lightning_idc.methods.img_diff.prompts import CAPTION_EDIT, UNNATURAL_FILTER
from lightning_idc.methods.img_diff.questions import PromptedTeller
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.synthesis.models.chat import ChatModel, ChatVisionModel, PromptedCaptioner
from lightning_idc.synthesis.models.contours import DifferenceContours
from lightning_idc.synthesis.models.embedded import ColorMatcher, WordEncoder
from lightning_idc.synthesis.models.pretrained import BlipMatcher, ClipImages
from lightning_idc.synthesis.models.sam import SamSegmenter
from lightning_idc.synthesis.stages import PipelineStage

WORDS = 8000
SIZE: dict[str, Any] = {"hidden_size": 512, "intermediate_size": 1376, "num_attention_heads": 8}


def build(root: Path) -> None:
    """Write all models to a folder."""
    import transformers as hf

    torch.manual_seed(0)
    special = {"vocab_size": WORDS, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    language = hf.LlamaConfig(**SIZE, **special, num_hidden_layers=8)
    hf.LlamaForCausalLM(language).save_pretrained(root / "chat")
    tokenizer().save_pretrained(root / "chat")

    look = hf.CLIPImageProcessor(size={"shortest_edge": 112}, crop_size={"height": 112, "width": 112})
    vision = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4}
    llava = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**vision, image_size=112, patch_size=16),
        text_config=language,
        image_token_index=4,
        vision_feature_layer=-1,
    )
    hf.LlavaForConditionalGeneration(llava).save_pretrained(root / "llava")
    template = (
        "{% for m in messages %}{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %} <image> {% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    hf.LlavaProcessor(
        look,
        tokenizer(extra_special_tokens={"image_token": "<image>"}),
        patch_size=16,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template,
    ).save_pretrained(root / "llava")

    hf.CLIPModel(hf.CLIPConfig()).save_pretrained(root / "clip")  # the paper's: ViT-B/32
    hf.CLIPImageProcessor().save_pretrained(root / "clip")

    text = {"encoder_hidden_size": 256, "vocab_size": WORDS, "max_position_embeddings": 64}
    blip = hf.BlipConfig(text_config={**vision, **text}, vision_config={**vision, "image_size": 112, "patch_size": 16})
    hf.BlipForImageTextRetrieval(blip).save_pretrained(root / "blip")
    hf.BlipProcessor(hf.BlipImageProcessor(size={"height": 112, "width": 112}), tokenizer()).save_pretrained(
        root / "blip"
    )

    encoder = {**vision, "image_size": 256, "patch_size": 16, "output_channels": 64, "num_pos_feats": 32}
    sam = hf.SamConfig(
        vision_config={**encoder, "global_attn_indexes": [2, 5], "window_size": 7, "mlp_dim": 1024},
        mask_decoder_config={"hidden_size": 64, "mlp_dim": 256, "num_attention_heads": 4, "iou_head_hidden_dim": 64},
        prompt_encoder_config={"hidden_size": 64, "image_size": 256, "patch_size": 16},
    )
    hf.SamModel(sam).save_pretrained(root / "sam")
    hf.SamImageProcessor(size={"longest_edge": 256}, pad_size={"height": 256, "width": 256}).save_pretrained(
        root / "sam"
    )


def tokenizer(**special: Any) -> Any:
    """Tokenizer of the words of the prompts, with placeholder names for the rest of the vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    known = [
        "<pad>",
        "<unk>",
        "<bos>",
        "<eos>",
        "<image>",
        *dict.fromkeys(f"{CAPTION_EDIT} {UNNATURAL_FILTER}".split()),
    ]
    words = known + [f"w{number}" for number in range(WORDS - len(known))]
    core = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = WhitespaceSplit()
    core.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", unk_token="<unk>", bos_token="<bos>", eos_token="<eos>", **special
    )


def stages(root: Path, batch: int) -> list[PipelineStage]:
    """Stages with these models; other slots are embedded."""

    def sees(most: int) -> ChatVisionModel:
        return ChatVisionModel(str(root / "llava"), dtype="float32", batch_size=2 * batch, max_new_tokens=most)

    chat = ChatModel(str(root / "chat"), dtype="float32", batch_size=batch, max_new_tokens=32)
    blip = BlipMatcher(str(root / "blip"), batch_size=2 * batch)
    clip = ClipImages(str(root / "clip"), batch_size=2 * batch)
    sam = SamSegmenter(str(root / "sam"), batch_size=8, confidence=-1e9, stability=0.5, points=6)
    captioner = PromptedCaptioner(sees(16))
    return [
        PromptedEdits(chat),
        PairSimilarity(clip, "table17_4"),
        DifferenceAreas(sam, filters="embedded"),
        DifferenceAreas(DifferenceContours(), matcher=blip, filters="embedded"),
        RegionCaptions(captioner, ColorMatcher(), WordEncoder(), "paper"),
        DifferenceCaptions(PromptedTeller(sees(24))),
        NaturalImages(sees(4)),
    ]
