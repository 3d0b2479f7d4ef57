"""Tables of pages that scripts write: what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""

from __future__ import annotations

from collections.abc import Mapping


def filled(text: str, tables: Mapping[str, str]) -> str:
    """A page with its tables made anew.

    Args:
        text: of the page.
        tables: by the name of their marks.

    Raises:
        SystemExit: the page lacks a mark.

    Example:
        >>> filled("<!-- a -->\\nold\\n<!-- /a -->\\n", {"a": "new"})
        '<!-- a -->\\nnew\\n<!-- /a -->\\n'
    """
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise SystemExit(
                f"The page has no lines <!-- {name} --> and <!-- /{name} -->; write them where the table is to stand."
            )
        text = f"{before}{begin}{table.rstrip()}\n{end}{after}"
    return text
