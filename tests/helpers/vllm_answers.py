"""Run by vLLM's own Python: reads a JSON list of jobs with image pairs, and writes vLLM's answers as token ids."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path
from typing import Any


def answer(model: str, adapter: str | None, images: list[str], prompt: str, max_tokens: int) -> list[int]:
    """Token ids of vLLM's greedy answer; ``adapter`` is a PEFT folder for the model."""
    import vllm
    from vllm.lora.request import LoRARequest

    options: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8} if adapter else {}
    options |= {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 2, "limit_mm_per_prompt": {"image": 2}}
    engine = vllm.LLM(model=model, enforce_eager=True, **options)
    content: list[dict[str, Any]] = []
    for path in images:
        data = base64.b64encode(Path(path).read_bytes()).decode()
        content.append({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}})
    content.append({"type": "text", "text": prompt})
    sampling = vllm.SamplingParams(temperature=0, max_tokens=max_tokens, repetition_penalty=1.0)
    request = LoRARequest("adapter", 1, adapter) if adapter else None
    (output,) = engine.chat([{"role": "user", "content": content}], sampling, lora_request=request)
    return list(output.outputs[0].token_ids)


if __name__ == "__main__":
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    Path(sys.argv[2]).write_text(json.dumps([answer(**job) for job in json.loads(Path(sys.argv[1]).read_text())]))
