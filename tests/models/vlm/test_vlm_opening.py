"""Published models are opened by name, prompted, saved, and used by other programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.vlm_tiny import captioner, samples
from PIL import Image
from torch import Tensor

from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.lora import LoraAdapter
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.opening import open_captioner
from lightning_idc.models.vlm.publishing import CardFacts, push_to_hub, write_repository
from lightning_idc.models.vlm.question_answering import QuestionAnswerer
from lightning_idc.utils.errors import CheckpointError, ConfigError

QUESTIONS = ["what changed?", "is it red? a yes b no", "where?"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioner("qwen2_5_vl").save_model(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("images")
    (sample,) = samples(1)
    for name, image in (("a", sample.before), ("b", sample.after)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{name}.png")
    return folder / "a.png", folder / "b.png"


def scores(model: VLMCaptioner) -> Tensor:
    batch = model.eval().collate(samples())
    with torch.no_grad():
        return model.score(model.encode(batch), batch.tokens, batch.caption_mask)


def stirred(model: VLMCaptioner) -> VLMCaptioner:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.slow
def test_a_published_model_describes_without_training(stock: Path, images: tuple[Path, Path]) -> None:
    model = open_captioner(str(stock), prompt="what differs?", device="cpu", max_pixels=1024)
    assert isinstance(model, VLMCaptioner) and not model.training
    caption = model.describe(*images)
    assert caption.log_prob <= 0
    other = open_captioner(str(stock), prompt="what differs?", device="cpu", max_pixels=2304).describe(*images)
    assert other.log_prob != caption.log_prob, "max_pixels and the prompt reach the model"


def test_questions_encode_the_images_once(stock: Path, images: tuple[Path, Path]) -> None:
    model = open_captioner(str(stock))
    assert isinstance(model, VLMCaptioner)
    calls = []
    model.net.model.model.visual.register_forward_hook(lambda *unused: calls.append(1))  # type: ignore[union-attr]
    ask = QuestionAnswerer(model, 6)
    together = ask(images, QUESTIONS)
    assert len(calls) == 1
    assert together == [ask(images, [question])[0] for question in QUESTIONS]


def test_questions_about_one_image_work_with_a_lora_of_any_name(images: tuple[Path, Path]) -> None:
    model = captioner("qwen2_5_vl")
    model.add_adapter("language", LoraAdapter, rank=4, alpha=8)
    assert len(QuestionAnswerer(model, 3)(images[:1], ["what is it?"])) == 1
    model.add_adapter("lora", MDP)
    with pytest.raises(ConfigError, match="has the adapter 'lora', which compares two images"):
        QuestionAnswerer(model, 3)(images[:1], ["what is it?"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either a model"),
        ({"model": "x", "checkpoint": "y"}, "either a model"),
        ({"model": "x", "device": "tpu:9"}, "the device 'tpu:9' is not available"),
        ({"checkpoint": "y", "quantize": "4bit"}, "quantize apply only to a published model"),
    ],
)
def test_invalid_combinations_raise_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_captioner(**options)


def test_a_prompt_is_an_argument_of_the_call(images: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = captioner("qwen2_5_vl")
    questions: list[str] = []
    real = model.prompt_inputs

    def recorded(prompts: list[str], sizes: Any) -> Any:
        questions.extend(prompts)
        return real(prompts, sizes)

    monkeypatch.setattr(model, "prompt_inputs", recorded)
    stored = dict(model.hparams)
    model.describe(*images, prompt="What is new?")
    model.describe(*images)
    assert questions == ["What is new?", model.hparams["prompt"]] and dict(model.hparams) == stored


def test_answers_longer_than_the_context_are_refused(stock: Path) -> None:
    model = open_captioner(str(stock))
    model.hparams["max_length"] = 500
    with pytest.raises(ConfigError, match=r"exceeds the context length of the model, 512; set `max_pixels`"):
        model.collate(samples(1, 96))


def test_a_template_that_leaves_out_the_images_is_refused(stock: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=5)
    model.build()
    silent = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
    model.built_net.processor.chat_template = silent
    with pytest.raises(ConfigError, match=r"(contains no image|cannot put two images)"):
        model.collate(samples())


def test_a_model_that_takes_one_image_is_refused(stock: Path, tmp_path: Path, capsys: Any) -> None:
    """The chat template rejects two images, as in published models for single images."""
    shutil.copytree(stock, tmp_path / "one")
    refusal = "{% if messages[0]['content'] | selectattr('type', 'eq', 'image') | list | length > 1 %}"
    refusal += "{{ raise_exception('only one image is supported') }}{% endif %}<|image_pad|>"
    (tmp_path / "one" / "chat_template.jinja").write_text(refusal)
    model = open_captioner(str(tmp_path / "one"), device="cpu")
    with pytest.raises(ConfigError, match=r"cannot put two images .* only one image is supported; choose a model"):
        model.collate(samples())


@pytest.mark.parametrize(
    ("file", "left", "message"),
    [
        ("processor_config.json", None, "cannot be loaded: Can't load image processor"),
        ("tokenizer.json", 1, "cannot be loaded .* one of its files is damaged"),
        ("model.safetensors", 100, "cannot be loaded .* one of its files is damaged"),
    ],
)
def test_a_folder_that_was_copied_in_part_is_refused(
    file: str, left: int | None, message: str, stock: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "part"
    shutil.copytree(stock, folder)
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if left is not None:
        (folder / file).write_bytes(content[:left])
    with pytest.raises(ConfigError, match=f"part' {message}"):
        open_captioner(str(folder), device="cpu")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for message in messages %}", "Unexpected end of template"),
        ("{% for m in messages %}{{ m['content'] + '' }}{% endfor %}", "can only concatenate list"),
    ],
)
def test_a_template_that_cannot_be_filled_in_is_refused(
    template: str, message: str, stock: Path, tmp_path: Path
) -> None:
    shutil.copytree(stock, tmp_path / "broken")
    (tmp_path / "broken" / "chat_template.jinja").write_text(template)
    with pytest.raises(ConfigError, match=f"the chat template of the model .*{message}.*; set a template"):
        open_captioner(str(tmp_path / "broken"), device="cpu")


def test_a_question_that_shows_images_of_its_own_is_refused(stock: Path, images: tuple[Path, Path]) -> None:
    ask = QuestionAnswerer(open_captioner(str(stock), device="cpu"), 3)  # type: ignore[arg-type]
    for shown in (images, images[:1]):
        with pytest.raises(ConfigError, match=r"pad\|> what\?' contains the image placeholder .*; leave it out"):
            ask(shown, ["<|image_pad|> what?"])


@pytest.mark.slow
def test_a_saved_folder_needs_no_base(stock: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(stock, base)
    model = VLMCaptioner(model=str(base), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    model.add_adapter("mdp", MDP)
    expected = scores(stirred(model))
    model.save_pretrained(tmp_path / "out")
    shutil.rmtree(base)
    again = load_captioner(tmp_path / "out")
    assert isinstance(again, VLMCaptioner) and torch.equal(scores(again), expected)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"use_dora": True}, {"use_rslora": True}])
def test_plain_transformers_reads_what_is_merged(options: dict[str, Any], stock: Path, tmp_path: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4, **options)
    before = scores(model)
    expected = scores(stirred(model))
    assert not torch.allclose(before, expected, atol=1e-2)
    model.save_model(tmp_path, merge=True)
    again = VLMCaptioner(model=str(tmp_path), max_length=6)
    again.build()
    torch.testing.assert_close(scores(again), expected, rtol=1e-4, atol=1e-3)
    from transformers import AutoModelForImageTextToText

    loaded: Any = AutoModelForImageTextToText.from_pretrained(tmp_path, output_loading_info=True)
    assert not loaded[1]["missing_keys"] and not loaded[1]["unexpected_keys"]


def test_a_folder_in_16_bits_is_opened_in_16_bits(stock: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    model = VLMCaptioner(model=str(stock), max_length=6)
    model.build()
    model.save_model(tmp_path, dtype="bfloat16")
    again: Any = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert {parameter.dtype for parameter in again.parameters()} == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}, "the captioner stays as it is"


def test_unsupported_exports_of_mdp_raise_an_error(stock: Path, tmp_path: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("mdp", MDP)
    with pytest.raises(ConfigError, match="MDP runs only in this library"):
        model.save_model(tmp_path, merge=True)


def test_a_saved_lora_names_its_base(stock: Path, tmp_path: Path) -> None:
    from peft import PeftConfig

    model = VLMCaptioner(model=str(stock), max_length=6)
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    model.save_adapters(tmp_path)
    config = json.loads((tmp_path / "lora" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(stock) and config["task_type"] == "CAUSAL_LM"
    assert PeftConfig.from_pretrained(tmp_path / "lora").base_model_name_or_path == str(stock)


class LocalHub:
    """Stands in for the hub client of ``push_to_hub`` and writes into a folder."""

    place: Path

    def create_repo(self, repo_id: str, repo_type: str, private: bool, exist_ok: bool) -> None:
        assert exist_ok and repo_type == "model"
        (self.place / repo_id).mkdir(parents=True, exist_ok=True)
        (self.place / repo_id / ".private").write_text(str(private))

    def get_paths_info(self, *unused: Any, **options: Any) -> list[Any]:
        return []

    def upload_folder(
        self, repo_id: str, repo_type: str, folder_path: Path, commit_message: str, allow_patterns: list[str]
    ) -> str:
        assert commit_message
        for name in allow_patterns:
            (self.place / repo_id / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder_path / name, self.place / repo_id / name)
        return f"https://hub/{repo_id}"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["captioner", "model", "adapters"])
def test_what_is_pushed_is_whole_and_has_a_card(
    layout: str, stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    monkeypatch.setattr(LocalHub, "place", tmp_path, raising=False)
    monkeypatch.setattr(huggingface_hub, "HfApi", LocalHub)
    model = VLMCaptioner(model=str(stock), prompt="what differs?", max_length=6)
    freeze = ["model", "lm_head"] if layout == "adapters" else None
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4, freeze=freeze)
    expected = scores(stirred(model))
    assert push_to_hub(model, "me/spot", layout, CardFacts({"CIDEr-D": 12.345})) == "https://hub/me/spot"
    pushed = tmp_path / "me" / "spot"
    assert (pushed / ".private").read_text() == "True"
    card = huggingface_hub.ModelCard.load(pushed / "README.md", ignore_metadata_errors=False)
    assert card.data.pipeline_tag == "image-text-to-text" and "image-difference-captioning" in card.data.tags
    assert "| CIDEr-D | 12.35 |" in card.text and "what differs?" in card.text and "me/spot" in card.text
    for path in pushed.rglob("*"):
        assert not path.is_file() or str(stock).encode() not in path.read_bytes(), (
            f"{path} tells a path of this machine"
        )
    (code,) = [part.removeprefix("python\n") for part in card.text.split("```")[1::2]]
    compile(code, "card", "exec")
    # the steps of the model card, with the local folder in place of the repository
    if layout == "captioner":
        again: Any = load_captioner(pushed)
    else:
        source = str(pushed if layout == "model" else stock)
        again = VLMCaptioner(model=source, prompt="what differs?", max_length=6)
        again.build()
        if layout == "adapters":
            again.load_adapters(pushed)
    torch.testing.assert_close(scores(again), expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_pushed_raises_an_error_before_the_upload(stock: Path) -> None:
    model = VLMCaptioner(model=str(stock), max_length=6)
    model.build()
    with pytest.raises(ConfigError, match="expected one of captioner, model, adapters"):
        write_repository(model, "unused", "me/x", "weights")
    with pytest.raises(ConfigError, match="has no adapters"):
        write_repository(model, "unused", "me/x", "adapters")
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    with pytest.raises(ConfigError, match=r"trained weights that are not part of an adapter \(model.model.visual"):
        write_repository(model, "unused", "me/x", "adapters")
    assert not Path("unused").exists()


@pytest.mark.slow
@pytest.mark.parametrize("names", ["now", "before transformers 4.52", "pickled"])
def test_a_lora_of_another_program_is_opened_on_its_base(
    names: str, stock: Path, tmp_path: Path, images: tuple[Path, Path]
) -> None:
    """Oracle: the same model, merged and saved by PEFT."""
    from safetensors.torch import load_file, save_file

    import lightning_idc

    tuned = _tuned_by_peft(stock, tmp_path / "lora")
    weights = tmp_path / "lora/adapter_model.safetensors"
    state = load_file(weights)
    if names == "before transformers 4.52":
        new, old = "base_model.model.model.language_model.", "base_model.model.model."
        assert all(name.startswith(new) for name in state)
        save_file({name.replace(new, old): value for name, value in state.items()}, weights, {"format": "pt"})
    if names == "pickled":
        torch.save(state, tmp_path / "lora/adapter_model.bin")
        weights.unlink()
    captioner = lightning_idc.load(tmp_path / "lora", device="cpu", prompt="what differs?")
    tuned.merge_and_unload().save_pretrained(tmp_path / "merged")
    for path in stock.iterdir():
        if not (tmp_path / "merged" / path.name).exists():
            shutil.copyfile(path, tmp_path / "merged" / path.name)
    expected = lightning_idc.load(tmp_path / "merged", device="cpu", prompt="what differs?")
    plain = lightning_idc.load(stock, device="cpu", prompt="what differs?")
    found, merged, before = (_log_probs(one, images) for one in (captioner, expected, plain))
    torch.testing.assert_close(found, merged, rtol=0, atol=1e-4)
    assert (found - before).abs().max() > 1e-3


@pytest.mark.slow
def test_saved_adapters_are_opened_on_their_base(stock: Path, tmp_path: Path, images: tuple[Path, Path]) -> None:
    import lightning_idc

    model = lightning_idc.load(stock, device="cpu", prompt="what differs?")
    model.add_adapter("lora", LoraAdapter, rank=2, alpha=4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_adapters(tmp_path / "saved")
    again = lightning_idc.load(tmp_path / "saved", device="cpu", prompt="what differs?")
    assert torch.equal(_log_probs(again, images), _log_probs(model.eval(), images))
    shutil.rmtree(tmp_path / "saved/lora")
    with pytest.raises(CheckpointError, match="adapters but no LoRA"):
        lightning_idc.load(tmp_path / "saved")


def _tuned_by_peft(base: Path | str, folder: Path, new_tokens: int = 0, **options: Any) -> Any:
    """Create a PEFT model with random updates, save it to a folder and return it."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
    if new_tokens:
        model.resize_token_embeddings(model.get_input_embeddings().num_embeddings + new_tokens)
    options = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}
    tuned = get_peft_model(model, LoraConfig(**options))
    for parameter in tuned.parameters():
        if parameter.requires_grad:
            parameter.data += 0.2 * torch.randn_like(parameter)
    tuned.save_pretrained(folder)
    return tuned


@pytest.fixture(scope="module")
def tied(stock: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stock model with its head tied to its embeddings."""
    from transformers import AutoModelForImageTextToText

    folder = tmp_path_factory.mktemp("tied")
    shutil.copytree(stock, folder, dirs_exist_ok=True)
    model = AutoModelForImageTextToText.from_pretrained(stock)
    model.config.tie_word_embeddings = model.config.text_config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("stock", {"use_dora": True}),
        ("stock", {"use_rslora": True}),
        ("stock", {"modules_to_save": ["embed_tokens", "lm_head"]}),
        ("tied", {"target_modules": ["q_proj", "lm_head"]}),
        ("tied", {"target_modules": ["q_proj", "embed_tokens"]}),
        ("tied", {"modules_to_save": ["lm_head"]}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_adapters_of_peft_compute_what_peft_computes(
    base: str, options: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Adapters are opened, and merged into a model. Oracle: the network with PEFT's own, unmerged layers."""
    import lightning_idc

    folder = request.getfixturevalue(base)
    oracle: Any = lightning_idc.load(folder, device="cpu")
    before = scores(oracle)
    oracle.built_net.model = _tuned_by_peft(folder, tmp_path / "lora", **options).get_base_model().eval()
    expected = scores(oracle)
    assert (expected - before).abs().max() > 0.1
    captioner: Any = lightning_idc.load(tmp_path / "lora", device="cpu")
    torch.testing.assert_close(scores(captioner), expected, rtol=0, atol=1e-4)
    captioner.save_model(tmp_path / "merged", merge=True)
    merged: Any = lightning_idc.load(tmp_path / "merged", device="cpu")
    torch.testing.assert_close(scores(merged), expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_adapters_with_other_tokens_or_another_base_are_refused(stock: Path, tied: Path, tmp_path: Path) -> None:
    import lightning_idc

    def refused(folder: Path, message: str) -> None:
        with pytest.raises(CheckpointError, match=message) as raised:
            lightning_idc.load(folder, device="cpu")
        assert "\n" not in str(raised.value)

    _tuned_by_peft(stock, tmp_path / "copies", new_tokens=8, modules_to_save=["embed_tokens", "lm_head"])
    refused(tmp_path / "copies", r"has the shape \d+x32, and the model's \d+x32; it was trained .* with other tokens")
    _tuned_by_peft(stock, tmp_path / "head", new_tokens=8, target_modules=["lm_head"])
    refused(tmp_path / "head", "lm_head.weight has the shape")
    _tuned_by_peft(stock, tmp_path / "tokens")
    (tmp_path / "tokens/tokenizer.json").write_bytes((stock / "tokenizer.json").read_bytes())
    lightning_idc.load(tmp_path / "tokens", device="cpu")
    tokenizer: Any = lightning_idc.load(stock, device="cpu").built_net.processor.tokenizer  # type: ignore[attr-defined]
    tokenizer.add_tokens([f"<new {index}>" for index in range(100)])
    tokenizer.save_pretrained(tmp_path / "tokens")
    refused(tmp_path / "tokens", r"tokenizer.json' has \d+ tokens, .* '<new \d+>' differs")
    _tuned_by_peft(tied, tmp_path / "other", target_modules=["lm_head"])
    config = json.loads((tmp_path / "other/adapter_config.json").read_text())
    (tmp_path / "other/adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(stock)}))
    refused(tmp_path / "other", "lm_head.weight differs from the one of")
    config["base_model_name_or_path"] = "/data/of/another/machine"
    (tmp_path / "other/adapter_config.json").write_text(json.dumps(config))
    refused(tmp_path / "other", "a folder that is not on this machine")


@pytest.mark.slow
def test_a_missing_shard_is_named(stock: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    import lightning_idc

    shutil.copytree(stock, tmp_path / "model", ignore=shutil.ignore_patterns("model.safetensors"))
    AutoModelForImageTextToText.from_pretrained(stock).save_pretrained(tmp_path / "model", max_shard_size="100KB")
    shard = sorted((tmp_path / "model").glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigError, match=f"cannot be loaded: No such file or directory.*{shard.name}"):
        lightning_idc.load(tmp_path / "model", device="cpu")
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 37545\n")
    with pytest.raises(CheckpointError, match=f"{shard.name}' is a git-lfs pointer"):
        lightning_idc.load(tmp_path / "model", device="cpu")


@pytest.mark.slow
def test_a_lora_on_the_hub_is_opened_on_its_base_on_the_hub(
    stock: Path, tmp_path: Path, images: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Works offline, from a cache; the configuration of the LoRA specifies the revision of its base."""
    from huggingface_hub import constants

    import lightning_idc

    base, lora = (tmp_path / f"models--someone--{name}" for name in ("base", "lora"))
    for repository, commit, name in ((base, "1" * 40, "v2"), (lora, "2" * 40, "main")):
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / name).write_text(commit)
    shutil.copytree(stock, base / "snapshots" / ("1" * 40))
    folder = lora / "snapshots" / ("2" * 40)
    _tuned_by_peft(stock, folder)
    expected = _log_probs(lightning_idc.load(folder, device="cpu", prompt="what differs?"), images)
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": "someone/base", "revision": "v2"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    captioner = lightning_idc.load("someone/lora", device="cpu", prompt="what differs?")
    assert torch.equal(_log_probs(captioner, images), expected)
    onto = lightning_idc.load(stock, device="cpu", prompt="what differs?")
    onto.load_adapters("someone/lora")
    assert torch.equal(_log_probs(onto.eval(), images), expected)
    with pytest.raises(ConfigError, match="'someone/lora' has adapters, not a model"):
        VLMCaptioner(model="someone/lora").build()


def _log_probs(captioner: Any, images: tuple[Path, Path]) -> torch.Tensor:
    sample = captioner.input_spec.read(*images)
    sample.captions = ["the cube moved to the left"]
    batch = captioner.collate([sample])
    with torch.no_grad():
        return captioner.log_probs(captioner.encode(batch), batch.tokens, batch.caption_mask)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": "all"}, "bias: all, which is not supported"),
        ({"rank_pattern": {"q_proj": 4}}, "rank_pattern"),
        ({"peft_type": "IA3"}, "peft_type: IA3"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights: pissa"),
        ({"base_model_name_or_path": None}, "names no base model"),
        ({"r": None}, "is damaged"),
        ({"name": "base_model.model.model.language_model.layers.9.mlp.up_proj.lora_A.weight"}, "of another model"),
    ],
)
def test_a_lora_that_would_be_read_in_part_is_refused(
    change: dict[str, Any], message: str, stock: Path, tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    import lightning_idc

    path = "base_model.model.model.language_model.layers.0.self_attn.q_proj"
    name = change.pop("name", f"{path}.lora_A.weight")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(stock), **change}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    save_file({name: torch.zeros(2, 2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=message) as raised:
        lightning_idc.load(tmp_path, device="cpu")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_pointer_of_git_lfs_is_named(name: str, stock: Path, tmp_path: Path) -> None:
    import lightning_idc

    shutil.copytree(stock, tmp_path / "model")
    (tmp_path / "model" / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 37545\n")
    with pytest.raises(CheckpointError, match=rf"{name}' is a git-lfs pointer.*git lfs pull"):
        lightning_idc.load(tmp_path / "model", device="cpu")
