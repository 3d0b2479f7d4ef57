"""leaderboard: one table of many results, in Markdown, HTML and LaTeX."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import Output, saved
from lightning_idc.utils.text import encodable

if TYPE_CHECKING:
    from lightning_idc.report.leaderboard import Board


def run(given: list[str]) -> int:
    """The verb `leaderboard`."""
    from lightning_idc.cli import parser

    arguments = parser(
        "leaderboard",
        "One table of many results, apart by data and protocol, since only numbers of one protocol on one set of "
        "references compare. Results are what `score --out` and ShowResults (result.json) write. Runs that differ in "
        "nothing but their seed are one row: mean and standard deviation.",
    )
    add = arguments.add_argument
    add("folder", help="with results, also in the folders below it; other JSON files are passed over")
    add("--out", help="write Markdown there, and HTML and LaTeX beside it; without it the table is printed")
    add("--format", choices=("markdown", "latex"), default="markdown", help="of what is printed")
    add(
        "--hub",
        metavar="OWNER/NAME",
        help="write eval.yaml and .eval_results/ for this benchmark's repository on the Hugging Face hub into --out",
    )
    add(
        "--data",
        action="append",
        metavar="FINGERPRINT",
        help="only results of these data, as the tables name them; may be given again, since protocols with parts have "
        "fingerprints of their own",
    )
    add("--overwrite", action="store_true", help="replace files that this command did not write")
    add("--samples", type=int, default=1000, help="corpora drawn for each p-value; 0 for none (default: 1000)")
    options = arguments.parse_args(given[1:])
    if options.samples < 0:
        arguments.error(f"--samples {options.samples}: expected 0 or more")
    from lightning_idc.report.leaderboard import as_latex, as_markdown, boards
    from lightning_idc.report.result_rows import of_data, read_results

    folder = Path(options.folder)
    results = read_results(folder)
    if options.out is not None and options.hub is None:
        _output(Path(options.out), results, options.overwrite).check(*_names(Path(options.out)))
    if options.data is not None:
        results = of_data(results, options.data)
    if options.hub is not None:
        from lightning_idc.report.hub_results import write_hub

        for path in write_hub(results, folder, options.hub, Path(options.out or "."), options.overwrite):
            print(path)
        return 0
    found = boards(results, folder, options.samples)
    if options.out is not None:
        return write(found, Path(options.out), results, options.overwrite)
    text = as_latex(found) if options.format == "latex" else as_markdown(found)
    print(encodable(text, sys.stdout.encoding))
    return 0


def write(found: list[Board], out: Path, inputs: Iterable[Path] = (), overwrite: bool = False) -> int:
    """Write the leaderboard as Markdown, HTML and LaTeX; the exit status.

    Args:
        found: boards.
        out: Markdown file; the others lie beside it.
        inputs: files that are read.
        overwrite: whether files of others may be replaced.

    Raises:
        ConfigError: the files would overwrite each other, an input, or files of others.
    """
    from lightning_idc.report.leaderboard import as_latex, as_markdown, write_html

    names = _names(out)

    def write_all() -> None:
        with _output(out, inputs, overwrite) as draft:
            markdown, page, tex = (draft / name for name in names)
            fill(markdown, as_markdown(found))
            write_html(page, found)
            fill(tex, as_latex(found))

    if not saved(out, write_all):
        return 1
    for name in names:
        print(out.with_name(name))
    return 0


def _names(out: Path) -> list[str]:
    """Files of a leaderboard: Markdown, HTML and LaTeX."""
    names = [out.name, out.with_suffix(".html").name, out.with_suffix(".tex").name]
    if out.name in names[1:]:
        raise ConfigError(f"{out} would be overwritten by another form; name a Markdown file, such as leaderboard.md")
    return names


def _output(out: Path, inputs: Iterable[Path], overwrite: bool) -> Output:
    return Output(out.parent, out.name, overwrite, inputs, option="--out")
