"""leaderboard: one Markdown and one HTML table of many results."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.errors import PairError


def run(given: list[str]) -> int:
    """The verb `leaderboard`."""
    from lightning_idc.cli import parser

    arguments = parser(
        "leaderboard",
        "One table of many results, apart by data and protocol, since only numbers of one protocol on one set of "
        "references compare. Results are what `score --out` and ShowResults (result.json) write.",
    )
    arguments.add_argument("folder", help="with results; other JSON files in it are passed over")
    arguments.add_argument("--out", help="write Markdown there, and HTML beside it; without it Markdown is printed")
    options = arguments.parse_args(given[1:])
    from lightning_idc.files import save
    from lightning_idc.report.leaderboard import as_html, as_markdown, boards, read_results

    found = boards(read_results(Path(options.folder)))
    if options.out is None:
        print(as_markdown(found))
        return 0
    target = Path(options.out)
    page = target.with_suffix(".html")
    if page == target:
        raise PairError(f"{target} would be overwritten by the HTML page; name a Markdown file, such as leaderboard.md")
    for path, text in ((target, as_markdown(found)), (page, as_html(found))):
        if not save(path, lambda partial, text=text: partial.write_text(text, encoding="utf-8")):  # type: ignore[misc]
            return 1
        print(path)
    return 0
