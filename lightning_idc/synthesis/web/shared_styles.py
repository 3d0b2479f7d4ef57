"""shared_styles: which sites of a folder share a style sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from lightning_idc.utils.files import file_digest

PAGES_PER_SITE = 5
"""Number of pages of a site whose style sheets are compared."""
_LINK = re.compile(r"<link\b[^>]*>", re.IGNORECASE)
_HREF = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>]+))""", re.IGNORECASE)


def shared_styles(root: Path, sites: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Group of each site: the name of the first site of all that share a style sheet with it, directly or over others.

    Args:
        root: folder of the sites.
        sites: pages by site, relative to the root.
    """
    groups = {site: site for site in sites}
    site_of_sheet: dict[str, str] = {}
    for site, pages in sorted(sites.items()):
        step = max(1, len(pages) // PAGES_PER_SITE)
        sheets = {sheet for page in pages[::step][:PAGES_PER_SITE] for sheet in _sheets(root / page)}
        for digest in sorted({file_digest(sheet) for sheet in sheets}):
            other = groups[site_of_sheet.setdefault(digest, site)]
            first, second = sorted((groups[site], other))
            groups = {name: first if group == second else group for name, group in groups.items()}
    return groups


def _sheets(page: Path) -> list[Path]:
    """Style sheets in files that a page links to."""
    text = page.read_text(encoding="utf-8", errors="replace")
    sheets = []
    for link in _LINK.findall(text):
        match = _HREF.search(link)
        if match is None or "stylesheet" not in link.lower():
            continue
        address = unquote(unescape(next(filter(None, match.groups()), ""))).split("?")[0].split("#")[0]
        if address and "://" not in address and not address.startswith("/"):
            sheet = page.parent / address
            sheets += [sheet.resolve()] if sheet.is_file() else []
    return sheets
