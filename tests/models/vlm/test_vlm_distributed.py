"""M3Diff on two processes equals one: gradients, checkpoints with LoRA and MDP, resume, captions; DDP and FSDP2."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.once import made_once
from helpers.processes import launch
from helpers.vlm_tiny import architecture, captioner, tokenizer
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import checkpoint as dcp
from vlm_two_processes import Job

from lightning_idc.checkpoints.reading import read_checkpoint
from lightning_idc.models.loading import load_captioner
from lightning_idc.models.vlm.base_weights import base_weight_name
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.models.vlm.published import Source, load_empty, load_model
from lightning_idc.utils.errors import CheckpointError

LAUNCHED = Path(__file__).with_name("vlm_two_processes.py")


def outcome(job: Job) -> dict[str, Any]:
    """Load the results of a job; see ``vlm_two_processes.py``."""
    return torch.load(job.out / f"{job.kind}.pt", weights_only=True, map_location="cpu")


def norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value**2 for value in values))


def weights_of(path: Path) -> dict[str, Tensor]:
    return torch.load(path, weights_only=True, map_location="cpu")["state_dict"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run all jobs, in turn, in one process and in a group of two processes; return the folder of their results.

    ``single`` and ``two`` are in float32, ``bf16`` in bfloat16. ``exact`` and ``low`` start from a published model,
    ``low`` in bfloat16.
    """
    return made_once(tmp_path_factory, "vlm_distributed", train)


def train(out: Path) -> None:
    for name in ("single", "two", "bf16", "exact", "low"):
        (out / name).mkdir()
    for name in ("exact", "low"):
        captioner("llava_onevision").save_model(out / name / "stock")
    low: Any = {"out": out / "low", "precision": "bf16-mixed"}
    alone = [
        Job("one", out / "single"),
        Job("one", out / "bf16", "bf16-mixed"),
        Job("one", out / "exact"),
        Job("one", **low),
    ]
    two = [
        Job("ddp", out / "two", saved=("adapters", "pretrained")),
        Job("fsdp2", out / "two", saved=("adapters", "pretrained")),
        Job("fsdp2-pieces", out / "two", saved=("pretrained",)),
        Job("fsdp2", out / "bf16", "bf16-mixed"),
        Job("fsdp2", **low, saved=("pretrained",)),
        # the second job saves sharded checkpoints
        Job("fsdp2-pieces", **low, saved=("pretrained",)),
    ]
    launch(LAUNCHED, *map(str, alone))
    launch(LAUNCHED, *map(str, two), processes=2)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_processes_equal_one(kind: str, trained: Path) -> None:
    out, folder = trained / "two", trained / "single"
    result, expected = outcome(Job(kind, out)), outcome(Job("one", folder))
    # four layers of the tower, two of the language model, the whole network and MDP
    assert (result["sharded"] >= 8) == (kind == "fsdp2")
    check(kind, out, folder, result, expected)
    weights = weights_of(out / f"{kind}.ckpt")
    # the adapters and the folder of save_pretrained contain full weights, gathered from the shards
    mdp = load_file(out / f"{kind}-adapters" / "mdp" / "adapter.safetensors")
    assert mdp.keys() == {name.removeprefix("adapters.mdp.") for name in weights if name.startswith("adapters.mdp.")}
    for name, value in mdp.items():
        assert torch.equal(value, weights[f"adapters.mdp.{name}"]), name
    lora = load_file(out / f"{kind}-adapters" / "lora" / "adapter_model.safetensors")
    base = weights_of(out / f"{kind}.ckpt")
    values = {name.replace(".default", "").removeprefix("net.model."): value for name, value in base.items()}
    assert len(lora) > 30
    for name, value in lora.items():
        path = name.removeprefix("base_model.model.").replace(
            "multi_modal_projector", "multi_modal_projector.modules_to_save"
        )
        assert torch.equal(value, values[path]), name
    shared = load_captioner(out / f"{kind}-pretrained").state_dict()
    assert shared.keys() == weights.keys() and all(torch.equal(shared[name], weights[name]) for name in weights)


@pytest.mark.dist
def test_two_sharded_processes_equal_one_in_bfloat16(trained: Path) -> None:
    out = trained / "bf16"
    weights, right = weights_of(out / "fsdp2.ckpt"), weights_of(out / "one.ckpt")
    assert weights.keys() == right.keys()
    for name in weights:
        assert weights[name].dtype == torch.float32, "kept in full precision"
        torch.testing.assert_close(weights[name], right[name], rtol=1e-3, atol=1e-4, msg=name)  # 4e-5 when measured
    resumed = weights_of(out / "fsdp2-resumed.ckpt")
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)
    assert list(load_captioner(out / "fsdp2.ckpt").adapters) == ["lora", "mdp"]


@pytest.mark.dist
def test_a_published_model_shards_with_frozen_weights_low_and_trained_ones_whole(trained: Path) -> None:
    out = trained / "low"
    exact, alone = outcome(Job("one", trained / "exact")), outcome(Job("one", out))
    two = {kind: outcome(Job(kind, out)) for kind in ("fsdp2", "fsdp2-pieces")}
    assert alone["reads"] == [1]
    assert all(result["reads"] == [1, 0] for result in two.values()), "the first process alone reads the weights"
    weights, right = weights_of(out / "fsdp2.ckpt"), weights_of(out / "one.ckpt")
    # the checkpoint contains the weights that may be trained, and not those that the model folder provides
    assert weights.keys() == right.keys()
    moving = {name for name in weights if "lora" in name or "vision_tower" in name or "mdp" in name}
    assert {weights[name].dtype for name in moving} == {torch.float32} and moving <= right.keys()
    whole = load_file(out / "fsdp2-pretrained" / "model.safetensors")
    frozen = {name for name in whole if name.startswith("net.model.model.language_model.") and "lora" not in name}
    assert {whole[name].dtype for name in frozen} == {torch.bfloat16} and not frozen & weights.keys()
    stock = VLMCaptioner(model=str(out / "stock"), max_length=6)
    stock.build()
    read = stock.state_dict()
    for name in frozen:  # sharded by the first process and gathered again
        assert torch.equal(whole[name], read[base_weight_name(name)].to(torch.bfloat16)), name
    # in bfloat16 each step deviates by some per cent: two processes may deviate like one, but not much more
    truth = weights_of(trained / "exact" / "one.ckpt")
    assert truth.keys() == right.keys()
    astray, astray_alone, moved = (
        {name: float((a[name].float() - b[name].float()).norm()) for name in moving}
        for a, b in ((weights, truth), (right, truth), (truth, exact["start"]))
    )
    whole_way = {name: norm(result.values()) for name, result in (("two", astray), ("one", astray_alone))}
    assert norm(moved.values()) > 0.5 and whole_way["one"] < 0.3 * norm(moved.values())  # .67 and .13 when measured
    assert whole_way["two"] < 1.5 * whole_way["one"], whole_way  # .097 and .133 when measured
    for name in moving:
        assert astray[name] < 3 * astray_alone[name] + 1e-6, (name, moved[name])  # 1.8 times when measured
    for name in right.keys() - moving:
        torch.testing.assert_close(weights[name].float(), right[name].float(), rtol=1e-2, atol=5e-3, msg=name)
    resumed = weights_of(out / "fsdp2-resumed.ckpt")
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)
    # the sharded checkpoint contains the same weights; a captioner in one process loads the unsharded one
    pieces = dcp.FileSystemReader(out / "fsdp2-pieces.ckpt").read_metadata().state_dict_metadata
    assert {name.removeprefix("state_dict.") for name in pieces if name.startswith("state_dict.")} == right.keys()
    resumed = load_file(out / "fsdp2-pieces-pretrained" / "model.safetensors")
    again = load_captioner(out / "fsdp2.ckpt").state_dict()
    assert resumed.keys() == again.keys() == whole.keys()
    for name, value in resumed.items():
        torch.testing.assert_close(value.float(), whole[name].float(), rtol=1e-2, atol=5e-3, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_without_memory_is_the_one_that_is_read(tied: bool, tmp_path: Path) -> None:
    """The empty model of other processes equals the loaded one except for its data; tied as in Qwen2.5-VL-3B."""
    made = VLMCaptioner(
        architecture={**architecture("qwen2_5_vl"), "tie_word_embeddings": tied}, tokenizer=tokenizer("qwen2_5_vl")
    )
    made.build()
    made.save_model(tmp_path)
    (read, *_), (empty, *_) = load_model(Source(str(tmp_path))), load_empty(Source(str(tmp_path)))
    expected, result = (dict(model.named_parameters(remove_duplicate=False)) for model in (read, empty))
    assert result.keys() == expected.keys() and all(p.is_meta for p in result.values())
    assert all(p.shape == expected[name].shape for name, p in result.items())
    for model in (read, empty):
        assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) == tied
    buffers = dict(empty.named_buffers())
    assert buffers and all(torch.equal(buffers[name], value) for name, value in read.named_buffers())
    assert empty.generation_config.eos_token_id == read.generation_config.eos_token_id


@pytest.mark.dist
def test_a_checkpoint_in_pieces_resumes(trained: Path) -> None:
    out, folder = trained / "two", trained / "single"
    assert len(list((out / "fsdp2-pieces-step=2.ckpt").glob("*.distcp"))) == 2
    weights, right = (
        load_file(out / "fsdp2-pieces-pretrained" / "model.safetensors"),
        weights_of(folder / "one.ckpt"),
    )
    assert weights.keys() == right.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], right[name], rtol=1e-4, atol=2e-5, msg=name)
    last, resumed = (
        {"state_dict": {name: torch.zeros_like(value) for name, value in weights.items()}} for _ in range(2)
    )
    dcp.load(last, checkpoint_id=out / "fsdp2-pieces.ckpt", no_dist=True)
    dcp.load(resumed, checkpoint_id=out / "fsdp2-pieces-resumed.ckpt", no_dist=True)
    for name, value in weights.items():
        assert torch.equal(last["state_dict"][name], value) and torch.equal(resumed["state_dict"][name], value), name
    for read in (load_captioner, read_checkpoint):
        with pytest.raises(CheckpointError, match="save_distributed_checkpoint: false"):
            read(out / "fsdp2-pieces.ckpt")


@pytest.mark.gpu
@pytest.mark.dist
@pytest.mark.skipif(not torch.cuda.is_available(), reason="Lightning and torch refuse FSDP1 without a GPU")
@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2-cuda"])
def test_sharded_on_a_gpu_equals_one(kind: str, trained: Path, tmp_path: Path) -> None:
    """Uses all GPUs. On a machine without a GPU, ``fsdp2-alone`` tests the same steps as ``fsdp2-cuda``."""
    job = Job(kind, tmp_path)
    launch(LAUNCHED, str(job))  # this Trainer starts the processes of all GPUs itself
    result, expected = outcome(job), outcome(Job("one", trained / "single"))
    assert kind == "fsdp1" or result["sharded"] >= 8
    check(kind, tmp_path, trained / "single", result, expected)


def check(kind: str, out: Path, reference: Path, found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare captions, weights, resumed weights and the loaded captioner with those of one process."""
    assert [(r["id"], r["caption"]) for r in found["predictions"]] == [
        (r["id"], r["caption"]) for r in expected["predictions"]
    ]
    weights, right = weights_of(out / f"{kind}.ckpt"), weights_of(reference / "one.ckpt")
    assert weights.keys() == right.keys()
    for name in weights:
        torch.testing.assert_close(weights[name], right[name], rtol=1e-4, atol=2e-5, msg=name)
    adapted = [name for name in weights if "lora_B" in name or "adapters.mdp" in name or "modules_to_save" in name]
    assert len(adapted) > 60 and all(weights[name].abs().max() > 1e-3 for name in adapted)
    resumed = weights_of(out / f"{kind}-resumed.ckpt")
    assert all(torch.equal(resumed[name], weights[name]) for name in weights)
    again = load_captioner(out / f"{kind}.ckpt")
    assert list(again.adapters) == ["lora", "mdp"]
    for name, value in again.state_dict().items():
        assert torch.equal(value, weights[name]), name
