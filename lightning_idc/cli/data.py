"""data: which data modules there are, and whether a folder holds what they expect."""

from __future__ import annotations

import inspect

MODULES = {
    "synthetic": "lightning_idc.data.synthetic.SyntheticPairs",
    "folder": "lightning_idc.data.folder.FolderPairs",
    "deeppcb": "lightning_idc.data.deeppcb.DeepPCB",
}


def run(given: list[str]) -> int:
    """The verb `data`."""
    from lightning_idc.cli import parser

    arguments = parser("data", "List data modules, or check a folder against one.")
    arguments.add_argument("verb", choices=["ls", "check"])
    arguments.add_argument("name", nargs="?", choices=list(MODULES))
    arguments.add_argument("--root", help="folder of the data")
    options = arguments.parse_args(given[1:])
    from lightning_idc.cli.keys import class_of

    if options.verb == "ls" or options.name is None:
        for name, path in MODULES.items():
            print(f"{name:<10} {inspect.getdoc(class_of(path)).splitlines()[0]}")  # type: ignore[union-attr]
        return 0
    module = class_of(MODULES[options.name])(**({"root": options.root} if options.root else {}))
    problems = module.check()
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(problems)} problems" if problems else "no problems")
    return 1 if problems else 0
