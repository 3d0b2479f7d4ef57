"""models: the captioners that come with the library."""

from __future__ import annotations

import json

from lightning_idc.serve.opening import shipped
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest


def run(given: list[str]) -> int:
    """The verb `models`."""
    from lightning_idc.cli import parser

    arguments = parser("models", "List the captioners that come with the library, or show the card of one.")
    arguments.add_argument("what", nargs="?", choices=("ls", "show"), default="ls")
    arguments.add_argument("name", nargs="?", help="show: name of the captioner")
    options = arguments.parse_args(given[1:])
    known = shipped()
    if options.what == "show":
        if options.name not in known:
            raise ConfigError(f"models show {options.name or ''}: {nearest(options.name or '', known)}")
        print((known[options.name] / "README.md").read_text(encoding="utf-8"), end="")
        return 0
    for name, folder in known.items():
        spec = json.loads((folder / "config.json").read_text(encoding="utf-8"))["init_args"]["input_spec"]
        height, width = spec["size"]
        size = (folder / "model.safetensors").stat().st_size / 1e6
        print(f"{name:<10} {spec['domain']}; trained at {width}x{height}; {size:.1f} MB")
    return 0
