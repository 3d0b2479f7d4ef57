"""HtmlFolder: source of web pages, from documentation packages and from templates, for `ChangeHtml`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.web.operators import OPERATORS, TIERS
from lightning_idc.synthesis.web.packages import unpack_packages
from lightning_idc.synthesis.web.shared_styles import shared_styles
from lightning_idc.synthesis.web.templates import TEMPLATES, template_page
from lightning_idc.utils.bounds import PositiveInt, Share, check_arguments
from lightning_idc.utils.errors import ConfigError, DatasetNotFoundError
from lightning_idc.utils.files import file_digest, fingerprint

Noise = Literal["reload", "scroll", "cursor", "jpeg", "hinting"]
"""How the two screenshots of an unchanged page differ: not at all, or by what captures differ in."""
TEMPLATE = "template-"
"""Beginning of the names of sites that are templates."""


class HtmlFolder:
    """Source of pages with one change each: the page, the size and the state of the window, and the operator.

    A site is a sub-folder of the first level that contains pages, such as the documentation of one package, or a
    template, whose pages have random contents. Pages are taken from all sites in turn, so that none with thousands of
    pages outweighs the others. Facts: ``file`` (or ``html``, of a template), ``site``, ``style`` (group of the sites
    that share a style sheet), ``edit`` (the operator, or ``no_change``), ``tier``, ``noise`` (of unchanged pages),
    ``width``, ``height``, ``scroll`` (fraction of the page above the window) and ``dark``.

    Args:
        root: folder with one sub-folder per site; None for templates only.
        count: number of pairs.
        pairs_per_page: number of pairs one after the other that share a page, its window and its scroll position;
            loading a page takes longer than changing it.
        pattern: pattern of the pages for `Path.rglob`.
        templates: kinds of templates, see `TEMPLATES`, or ``all``.
        packages: packages ``deb:NAME=VERSION`` and ``npm:NAME=VERSION`` that are downloaded and unpacked, unless they
            already are, into the folder that ``root`` is ``usr/share/doc`` of; see `unpack_packages`.
        operators: operators, all equally likely; see `OPERATORS`.
        no_change: fraction of pairs without a change, 0.114 in DiffSpot.
        noises: differences between the two screenshots of an unchanged page, all equally likely.
        widths: widths of the window in CSS pixels, all equally likely.
        height: height of the window in CSS pixels.
        dark: fraction of windows in which pages with a dark style sheet are dark.
        sites: names of the sites to use, such as those of one split, ``template-KIND`` for templates; None for all.
        max_bytes: size of the largest page; pages of megabytes take seconds to render.
        seed: seed of all choices.

    Raises:
        ConfigError: an operator, a noise, a template, a package or a site is unknown, or a number is out of range.
        DataError: a package cannot be downloaded.
        DatasetNotFoundError: there is no such folder, or no page in it.
    """

    def __init__(
        self,
        root: str | None = None,
        count: PositiveInt = 1000,
        pairs_per_page: PositiveInt = 1,
        pattern: str = "*.html",
        templates: Sequence[str] | Literal["all"] = (),
        packages: Sequence[str] = (),
        operators: Sequence[str] = tuple(OPERATORS),
        no_change: Share = 0.114,
        noises: Sequence[Noise] = ("reload",),
        widths: Sequence[PositiveInt] = (1280,),
        height: PositiveInt = 800,
        dark: Share = 0.0,
        sites: Sequence[str] | None = None,
        max_bytes: PositiveInt = 1_500_000,
        seed: int = 0,
    ) -> None:
        check_arguments(HtmlFolder.__init__, locals())
        self.templates = tuple(TEMPLATES) if templates == "all" else tuple(templates)
        for name, values, allowed in (
            ("operators", operators, OPERATORS),
            ("noises", noises, get_args(Noise)),
            ("templates", self.templates, TEMPLATES),
        ):
            if not set(values) <= set(allowed) or (not values and name != "templates"):
                raise ConfigError(f"{name} is {list(values)}; expected some of {', '.join(allowed)}")
        self.root = None if root is None else Path(root).expanduser()
        if packages:
            if self.root is None or self.root.parts[-3:] != ("usr", "share", "doc"):
                raise ConfigError(f"root is {root!r}; expected a folder FOLDER/usr/share/doc for packages")
            unpack_packages(packages, self.root.parents[2])
        self.sites = {} if self.root is None else self._pages_of_sites(self.root, pattern, max_bytes)
        self.sites |= {f"{TEMPLATE}{kind}": [] for kind in self.templates}
        if sites is not None:
            if missing := set(sites) - self.sites.keys():
                raise ConfigError(f"sites is {list(sites)}; {root} has no pages of {', '.join(sorted(missing))}")
            self.sites = {site: self.sites[site] for site in sorted(sites)}
        if not self.sites:
            raise DatasetNotFoundError(f"{root} has no pages that match {pattern!r} in its sub-folders")
        self.count, self.pairs_per_page, self.seed = count, pairs_per_page, seed
        self.operators, self.noises, self.widths, self.height = tuple(operators), tuple(noises), tuple(widths), height
        self.no_change, self.dark = no_change, dark

    @staticmethod
    def _pages_of_sites(root: Path, pattern: str, max_bytes: int) -> dict[str, list[str]]:
        if not root.is_dir():
            raise DatasetNotFoundError(f"no such folder: {str(root)!r}; expected a folder of web pages")
        sites: dict[str, list[str]] = {}
        for path in sorted(root.rglob(pattern)):
            parts = path.relative_to(root).parts
            if len(parts) > 1 and path.is_file() and path.stat().st_size <= max_bytes:
                sites.setdefault(parts[0], []).append("/".join(parts))
        return sites

    @cached_property
    def fingerprint(self) -> str:
        settings = [self.count, self.pairs_per_page, self.seed, self.operators, self.noises, self.widths]
        settings += [self.height, self.templates]
        views = range(-(-self.count // self.pairs_per_page))
        files = {file for view in views if (file := self._file(view)) is not None}
        digests = [[file, file_digest(self._folder / file)] for file in sorted(files)]
        return fingerprint(["html folder 3", *settings, self.no_change, self.dark, digests])

    @cached_property
    def styles(self) -> dict[str, str]:
        """Group of each site; sites of one group share a style sheet."""
        folders = {site: files for site, files in self.sites.items() if files}
        shared = {} if self.root is None else shared_styles(self.root, folders)
        return {site: shared.get(site, site) for site in self.sites}

    def __len__(self) -> int:
        return self.count

    def record(self, index: int) -> Record:
        view = index // self.pairs_per_page
        site = list(self.sites)[view % len(self.sites)]
        random, window = record_generator(self.seed, id := f"{index:06}-{site}"), record_generator(self.seed, f"{view}")
        is_changed = random.random() >= self.no_change
        facts: dict[str, Any] = {
            "site": site,
            "style": self.styles[site],
            "edit": str(random.choice(self.operators)) if is_changed else NO_CHANGE,
            "tier": str(random.choice(TIERS)) if is_changed else None,
            "noise": None if is_changed else str(random.choice(self.noises)),
            "width": int(window.choice(self.widths)),
            "height": self.height,
            "scroll": round(float(window.random()), 4),
            "dark": bool(window.random() < self.dark),
        }
        file = self._file(view)
        if file is None:
            facts["html"] = template_page(site.removeprefix(TEMPLATE), view // len(self.sites), self.seed)
        else:
            facts |= {"root": str(self._folder.absolute()), "file": file}
        return Record(id, facts)

    def _file(self, view: int) -> str | None:
        """Page of a window; None for a template."""
        names = list(self.sites)
        files = self.sites[site := names[view % len(names)]]
        return files[self._orders[site][view // len(names) % len(files)]] if files else None

    @cached_property
    def _orders(self) -> dict[str, np.ndarray]:
        """Order of the pages of each site."""
        return {
            site: record_generator(self.seed, f"pages of {site}").permutation(len(files))
            for site, files in self.sites.items()
        }

    @property
    def _folder(self) -> Path:
        """Folder of the pages; only templates need none."""
        assert self.root is not None
        return self.root
