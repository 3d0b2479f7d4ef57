"""HtmlFolder: source of web pages in a folder, such as unpacked documentation packages, for `ChangeHtml`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.web.operators import OPERATORS, TIERS
from lightning_idc.utils.bounds import PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DatasetNotFoundError
from lightning_idc.utils.files import file_digest, fingerprint

Noise = Literal["reload", "scroll", "cursor", "jpeg", "hinting"]
"""How the two screenshots of an unchanged page differ: not at all, or by what captures differ in."""
MAX_BYTES = 1_500_000
"""Largest page in bytes."""


class HtmlFolder:
    """Source of pages with one change each: the page, the size and the state of the window, and the operator.

    A site is a sub-folder of the first level that contains pages, such as the documentation of one package; pages are
    taken from all sites in turn, so that none with thousands of pages outweighs the others. Facts: ``file``, ``site``,
    ``edit`` (the operator, or ``no_change``), ``tier``, ``noise`` (of unchanged pages), ``width``, ``height``,
    ``scroll`` (fraction of the page above the window) and ``dark``.

    Args:
        root: folder with one sub-folder per site.
        count: number of pairs.
        pattern: pattern of the pages for `Path.rglob`.
        operators: operators, all equally likely; see `OPERATORS`.
        no_change: fraction of pairs without a change, 0.114 in DiffSpot.
        noises: differences between the two screenshots of an unchanged page, all equally likely.
        widths: widths of the window in CSS pixels, all equally likely.
        height: height of the window in CSS pixels.
        dark: fraction of windows in which pages with a dark style sheet are dark.
        sites: names of the sites to use, such as those of one split; None for all.
        seed: seed of all choices.

    Raises:
        ConfigError: an operator, a noise or a site is unknown, or a number is out of range.
        DatasetNotFoundError: there is no such folder, or no page in it.
    """

    def __init__(
        self,
        root: str,
        count: PositiveInt = 1000,
        pattern: str = "*.html",
        operators: Sequence[str] = tuple(OPERATORS),
        no_change: Share = 0.114,
        noises: Sequence[Noise] = ("reload",),
        widths: Sequence[PositiveInt] = (1280,),
        height: PositiveInt = 800,
        dark: Share = 0.0,
        sites: Sequence[str] | None = None,
        seed: int = 0,
    ) -> None:
        check_arguments(HtmlFolder.__init__, locals())
        for name, values, known in (("operators", operators, OPERATORS), ("noises", noises, get_args(Noise))):
            if not values or not set(values) <= set(known):
                raise ConfigError(f"{name} is {list(values)}; expected some of {', '.join(known)}")
        self.root = Path(root).expanduser()
        if not self.root.is_dir():
            raise DatasetNotFoundError(f"no such folder: {root!r}; expected a folder of web pages")
        self.sites = self._pages_of_sites(pattern)
        if sites is not None:
            if missing := set(sites) - self.sites.keys():
                raise ConfigError(f"sites is {list(sites)}; {root} has no pages of {', '.join(sorted(missing))}")
            self.sites = {site: self.sites[site] for site in sorted(sites)}
        if not self.sites:
            raise DatasetNotFoundError(f"{root} has no pages that match {pattern!r} in its sub-folders")
        self.count, self.seed = count, seed
        self.operators, self.noises, self.widths, self.height = tuple(operators), tuple(noises), tuple(widths), height
        self.no_change, self.dark = no_change, dark

    def _pages_of_sites(self, pattern: str) -> dict[str, list[str]]:
        sites: dict[str, list[str]] = {}
        for path in sorted(self.root.rglob(pattern)):
            parts = path.relative_to(self.root).parts
            if len(parts) > 1 and path.is_file() and path.stat().st_size <= MAX_BYTES:
                sites.setdefault(parts[0], []).append("/".join(parts))
        return sites

    @cached_property
    def fingerprint(self) -> str:
        settings = [self.count, self.seed, self.operators, self.noises, self.widths, self.height]
        files = sorted({str(self.record(index).facts["file"]) for index in range(self.count)})
        digests = [[file, file_digest(self.root / file)] for file in files]
        return fingerprint(["html folder 1", *settings, self.no_change, self.dark, digests])

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        names = list(self.sites)
        site = names[index % len(names)]
        order = record_generator(self.seed, f"pages of {site}").permutation(len(self.sites[site]))
        file = self.sites[site][order[index // len(names) % len(order)]]
        random = record_generator(self.seed, id := f"{index:06}-{site}")
        is_changed = random.random() >= self.no_change
        facts = {
            "root": str(self.root.absolute()),
            "file": file,
            "site": site,
            "edit": str(random.choice(self.operators)) if is_changed else NO_CHANGE,
            "tier": str(random.choice(TIERS)) if is_changed else None,
            "noise": None if is_changed else str(random.choice(self.noises)),
            "width": int(random.choice(self.widths)),
            "height": self.height,
            "scroll": round(float(random.random()), 4),
            "dark": bool(random.random() < self.dark),
        }
        return Record(id, facts)
