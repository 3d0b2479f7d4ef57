"""The verb leaderboard: one table of many results, in Markdown, HTML and LaTeX."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_idc.utils.bounds import NonNegativeInt, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output, file_output, saved
from lightning_idc.utils.text import encodable

if TYPE_CHECKING:
    from lightning_idc.report.leaderboard import Board


def leaderboard(
    folder: Path,
    *,
    out: Path | None = None,
    format: Literal["markdown", "latex"] = "markdown",
    data: Sequence[str] = (),
    samples: NonNegativeInt = 1000,
    overwrite: bool = False,
) -> int:
    """Make one table of many results, one for each data and protocol.

    Results are the files of `score --out` and ShowResults (metrics.json). Runs that differ only in their seed form one
    row with mean and standard deviation.

    Args:
        folder: folder of results, including its subfolders; other JSON files are skipped.
        out: Markdown file to write, together with HTML and LaTeX files; without it the table is printed.
        format: format of the printed table.
        data: fingerprints of data sets, as shown in the tables; only their results are included.
        samples: bootstrap samples for each p-value; 0 for no p-values.
        overwrite: replace files that this command did not write.
    """
    check_arguments(leaderboard, locals())
    from lightning_idc.report.leaderboard import as_latex, as_markdown, boards
    from lightning_idc.report.result_rows import of_data, read_results

    results = read_results(folder)
    if out is not None:
        _output(out, results, overwrite).check(*_names(out))
    if data:
        results = of_data(results, data)
    tables = boards(results, folder, samples)
    if out is not None:
        return write(tables, out, results, overwrite)
    print(encodable(as_latex(tables) if format == "latex" else as_markdown(tables), sys.stdout.encoding))
    return 0


def write(tables: list[Board], out: Path, inputs: Iterable[Path] = (), overwrite: bool = False) -> int:
    """Write the leaderboard as Markdown, HTML and LaTeX, and return the exit status.

    Args:
        tables: boards.
        out: Markdown file; the other files have the same stem.
        inputs: input files, which are not overwritten.
        overwrite: whether existing files may be replaced.

    Raises:
        ConfigError: the files would overwrite each other, an input, or existing files.
    """
    from lightning_idc.report.leaderboard import as_latex, as_markdown, write_html

    names = _names(out)

    def write_all() -> None:
        with _output(out, inputs, overwrite) as draft:
            markdown, page, tex = (draft / name for name in names)
            write_content(markdown, as_markdown(tables))
            write_html(page, tables)
            write_content(tex, as_latex(tables))

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
    return file_output(out, overwrite, inputs, option="--out")
