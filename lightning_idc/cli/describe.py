"""describe: say what changed between two images."""

from __future__ import annotations

import json
from dataclasses import asdict


def run(given: list[str]) -> int:
    """The verb `describe`."""
    from lightning_idc.cli import parser

    arguments = parser("describe", "Say what changed between two images.")
    arguments.add_argument("before", help="image file")
    arguments.add_argument("after", help="image file")
    arguments.add_argument(
        "--checkpoint", required=True, help="a .ckpt of this library, or a folder of save_pretrained"
    )
    arguments.add_argument("--json", action="store_true", help="caption, log_prob and change_score as JSON")
    options = arguments.parse_args(given[1:])
    from lightning_idc.core.loading import load_captioner

    caption = load_captioner(options.checkpoint).describe(options.before, options.after)
    print(json.dumps(asdict(caption)) if options.json else caption.text)
    return 0
