"""Training speed of a planned stage, scaled from a measured one by operations and by the data sheets of GPUs."""

from __future__ import annotations

MEASURED_ON = "H100"
MEASURED_RATE = {False: 215.8e12, True: 392.9e12}
"""Operations per second of supervised training on one H100 as `plan` counts them, eager and with ``compile: layers``:
Qwen2.5-VL-3B's shapes, LoRA on the language model, eight pairs a step, two images of 448 px
(`benchmarks/results/gpu/vlm_training.json`)."""
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "RTX 4090": 165.0, "L4": 121.0}
"""Dense 16-bit matrix products per second by data sheet, in 10^12 operations, of which all cards are assumed to reach
the same fraction. Only the H100 was measured."""


def pairs_per_second(operations: float, gpu: str, compiled: bool) -> float:
    """Estimated number of pairs that one GPU trains in a second.

    Args:
        operations: operations of a training step for one pair, forward and backward.
        gpu: one of :data:`PEAK_TFLOPS`.
        compiled: whether the layers are compiled.
    """
    return MEASURED_RATE[compiled] / operations * PEAK_TFLOPS[gpu] / PEAK_TFLOPS[MEASURED_ON]
