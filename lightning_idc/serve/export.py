"""write_graphs: export of captioners for programs without this library, as two graphs of ONNX or torch.export.

The graphs are the encoder and one cached step of the decoder. The program implements the loop over words in about
thirty lines (docs/tasks/export.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.loss_check import check_weights
from lightning_idc.nn.transformer import DecoderState
from lightning_idc.nn.vocabulary import Vocabulary
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output

SETTINGS = "captioner.json"
"""File with vocabulary, image size and token ids for decoding, in the folder of the graphs."""
_PAST_LENGTH = 3  # words in the traced example; with only one, the number would be traced as a constant


class Encoder(nn.Module):
    """Encoder: uint8 pairs ``(B, 2, C, H, W)`` to a memory ``(B, layers, 2, heads, M, d)``."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return _packed(self.net.start(self.net.encode(images)).memory)  # type: ignore[operator]


class Step(nn.Module):
    """One decoding step: log-probabilities ``(N, V)``, and keys and values of the words so far.

    Takes tokens ``(N,)``, a memory ``(N, layers, 2, heads, M, d)`` and a past ``(N, layers, 2, heads, t, d)``.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, tokens: Tensor, memory: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        state = DecoderState(_layers(memory), _layers(past), None)
        logits = self.net.step(state, tokens)  # type: ignore[operator]
        return logits.log_softmax(-1), _packed(state.past)


def _packed(layers: list[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([torch.stack(pair, 1) for pair in layers], 1)


def _layers(packed: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(layer[:, 0], layer[:, 1]) for layer in packed.unbind(1)]


@torch.no_grad()
def programs(captioner: PairCaptioner) -> dict[str, ExportedProgram]:
    """The graphs ``encoder`` and ``step`` of a small captioner, for any number of pairs of its image size.

    Args:
        captioner: captioner with a decoder of :mod:`lightning_idc.nn.transformer`.

    Raises:
        ConfigError: the network has another decoder, or its image size is unknown.
    """
    spec, net = captioner.input_spec, captioner.built_net
    if type(captioner).encode is not PairCaptioner.encode:
        raise ConfigError(
            f"{type(captioner).__name__} has no small network to export; use `export hf --layout model` to write a "
            "folder for transformers and vLLM"
        )
    if spec.size is None:
        raise ConfigError("the captioner was trained on images of several sizes; set image_size, since a graph has one")
    captioner.eval()
    images = torch.zeros(3, 2, spec.channels or 3, *spec.size, dtype=torch.uint8, device=captioner.device)
    state = net.start(net.encode(images))
    if not isinstance(state, DecoderState) or state.mask is not None:
        raise ConfigError(f"the decoder of {type(captioner).__name__} cannot be exported; use a PairTransformer")
    memory = _packed(state.memory)
    past = memory.new_zeros(*memory.shape[:4], _PAST_LENGTH, memory.shape[-1])
    tokens = torch.ones(len(images), dtype=torch.long, device=captioner.device)
    rows = {0: Dim.DYNAMIC}
    modules: dict[str, tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]] = {
        "encoder": (Encoder(net), (images,), {"images": rows}),
        "step": (Step(net), (tokens, memory, past), {"tokens": rows, "memory": rows, "past": {**rows, 4: Dim.DYNAMIC}}),
    }
    return {
        name: torch.export.export(module.eval(), example, dynamic_shapes=shapes)
        for name, (module, example, shapes) in modules.items()
    }


def decoding_settings(captioner: PairCaptioner) -> dict[str, Any]:
    """Settings that a program needs in addition to the graphs, as plain values.

    Args:
        captioner: exported captioner.
    """
    vocabulary, spec = captioner.built_vocabulary, captioner.input_spec
    return {
        "size": list(spec.size or ()),
        "interpolation": spec.interpolation,
        "domain": spec.domain,
        "max_length": captioner.hparams["max_length"],
        "begin": vocabulary.special.bos,
        "ends": list(vocabulary.special.ends),
        "suppress_tokens": list(vocabulary.special.suppress_tokens),
        "no_change": captioner.built_codec.no_change_tokens(),
        # sub-words need their tokenizer
        "words": vocabulary.words if type(vocabulary) is Vocabulary else None,
    }


def write_graphs(
    captioner: PairCaptioner,
    folder: Path,
    kind: Literal["onnx", "torch"] = "onnx",
    overwrite: bool = False,
    inputs: Sequence[str | Path] = (),
) -> Path:
    """Write ``encoder``, ``step`` and :func:`decoding_settings`; return the folder.

    Args:
        captioner: small captioner.
        folder: output folder, created if missing.
        kind: ``onnx``, or ``torch`` for ``.pt2`` files of torch.export.
        overwrite: whether existing files in the folder may be replaced.
        inputs: files and folders of the captioner.

    Raises:
        ConfigError: the network cannot be exported, or an output file exists.
        CheckpointError: a weight is not finite.
    """
    check_weights(captioner)
    if kind == "onnx":
        import onnxscript  # noqa: F401  torch reports a missing package late and without the extra
    with graphs(folder, kind, overwrite, inputs) as draft:
        for name, program in programs(captioner).items():
            if kind == "onnx":
                _write_onnx(program, draft / f"{name}.onnx")
            else:
                torch.export.save(program, draft / f"{name}.pt2")
        write_content(draft / SETTINGS, json.dumps(decoding_settings(captioner)))
    return folder


def graphs(
    folder: Path, kind: Literal["onnx", "torch"], overwrite: bool = False, inputs: Sequence[str | Path] = ()
) -> Output:
    """Output files of :func:`write_graphs`, checked before writing; arguments as in that function.

    Raises:
        ConfigError: an output file exists.
    """
    output = Output(folder, f"graphs for {kind}", overwrite, inputs)
    output.check(SETTINGS, *(f"{name}.{'onnx' if kind == 'onnx' else 'pt2'}" for name in ("encoder", "step")))
    return output


def _write_onnx(program: ExportedProgram, target: Path) -> None:
    outputs = ["memory"] if target.stem == "encoder" else ["log_probs", "past_after"]
    onnx_program = torch.onnx.export(program, output_names=outputs, verbose=False)
    if onnx_program is None:
        raise ConfigError(f"torch did not create an ONNX graph of {target.stem}")
    write_content(target, onnx_program.model_proto.SerializeToString())
