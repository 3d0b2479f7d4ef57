"""Page templates: fifteen kinds of pages with random content, each kind with style sheets of its own.

They cover what documentation lacks: cards, forms, dashboards, price tables, galleries. A page is one HTML document
without scripts and external files. All pages of a kind draw their style sheets from the generator of that kind, so that
two kinds never share one, and a split by kind is a split by style sheet.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from lightning_idc.synthesis.records import record_generator
from lightning_idc.synthesis.web.style_sheets import draw_style_sheet
from lightning_idc.synthesis.web.words import BUTTONS, NAMES, Words

STYLE_SHEETS = 12
"""Number of style sheets of a kind."""


def template_page(kind: str, number: int, seed: int = 0) -> str:
    """Draw a page.

    Args:
        kind: key of :data:`TEMPLATES`.
        number: number of the page among those of its kind.
        seed: seed of contents and style sheets.

    Returns:
        HTML document.
    """
    sheet = draw_style_sheet(record_generator(seed, f"style sheet {kind} {number % STYLE_SHEETS}"))
    words = Words(record_generator(seed, f"page {kind} {number}"))
    body = TEMPLATES[kind](words)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(words.title())}</title>"
        f"<style>{sheet}</style><body class={kind}>{body}</body></html>"
    )


def _tag(name: str, text: str, kind: str = "") -> str:
    return f"<{name}{f' class={kind!r}' if kind else ''}>{text}</{name}>"


def _text(name: str, text: str, kind: str = "") -> str:
    return _tag(name, escape(text), kind)


def _link(text: str, kind: str = "") -> str:
    return f"<a href='#'{f' class={kind!r}' if kind else ''}>{escape(text)}</a>"


def _picture(words: Words, kind: str = "picture") -> str:
    """A drawing in place of a photograph: a coloured ground with circles and bars."""
    hue, shapes = words.number(0, 359), []
    for _ in range(words.number(2, 6)):
        x, y, size = words.number(0, 300), words.number(0, 180), words.number(15, 90)
        fill = f"hsl({(hue + words.number(-60, 60)) % 360} {words.number(20, 80)}% {words.number(25, 80)}%)"
        shape = f"<circle cx='{x}' cy='{y}' r='{size}' fill='{fill}'/>"
        bar = f"<rect x='{x}' y='{y}' width='{2 * size}' height='{size}' fill='{fill}'/>"
        shapes.append(words.pick((shape, bar)))
    ground = f"<rect width='300' height='180' fill='hsl({hue} 40% {words.number(30, 85)}%)'/>"
    view = "viewBox='0 0 300 180' preserveAspectRatio='xMidYMid slice'"
    return _tag("div", f"<svg {view}>{ground}{''.join(shapes)}</svg>", kind)


def _navigation(words: Words, count: int = 5) -> str:
    links = "".join(_link(words.label()) for _ in range(count))
    return _tag("header", _text("strong", words.label(), "brand") + _tag("nav", links) + _button(words))


def _button(words: Words, kind: str = "button") -> str:
    return _link(words.pick(BUTTONS), kind)


def _footer(words: Words) -> str:
    columns = []
    for _ in range(words.number(2, 4)):
        items = "".join(_tag("li", _link(words.label())) for _ in range(words.number(3, 5)))
        columns.append(_tag("div", _text("h4", words.label()) + _tag("ul", items)))
    return _tag("footer", "".join(columns) + _text("small", f"{words.label()} {words.number(2018, 2026)}"))


def _many(words: Words, low: int, high: int, part: Callable[[], str]) -> str:
    return "".join(part() for _ in range(words.number(low, high)))


def _cards(words: Words) -> str:
    def card() -> str:
        badge = _text("span", words.label(), "badge") if words.number(0, 1) else ""
        inner = badge + _text("h3", words.title()) + _text("p", words.sentence()) + _button(words)
        return _tag("article", inner, "card")

    return _navigation(words) + _text("h1", words.title()) + _tag("main", _many(words, 5, 9, card), "grid")


def _landing(words: Words) -> str:
    hero = (
        _text("h1", words.title())
        + _text("p", words.paragraph(1, 2), "lead")
        + _button(words)
        + _button(words, "quiet")
    )
    points = _many(
        words, 3, 4, lambda: _tag("div", _text("h3", words.title()) + _text("p", words.paragraph(1, 2)), "card")
    )
    quote = _tag("blockquote", _text("p", words.sentence()) + _text("cite", words.pick(NAMES)))
    return _navigation(words) + _tag("section", hero, "hero") + _tag("section", points, "grid") + quote + _footer(words)


def _form(words: Words) -> str:
    def field() -> str:
        kind = words.number(0, 3)
        if kind == 0:
            options = "".join(_text("option", words.label()) for _ in range(3))
            return _tag("label", escape(words.label()) + _tag("select", options))
        if kind == 1:
            box = f"<input type=checkbox{' checked' * words.number(0, 1)}>"
            return f"<label class=check>{box} {escape(words.sentence())}</label>"
        if kind == 2:
            return _tag("label", escape(words.label()) + _text("textarea", words.sentence()))
        value = escape(words.pick((words.label(), words.pick(NAMES), words.date())), quote=True)
        return _tag("label", escape(words.label()) + f"<input value='{value}'>") + _text(
            "small", words.sentence(), "hint"
        )

    fields = _text("legend", words.title()) + _many(words, 4, 7, field) + _button(words) + _button(words, "quiet")
    return _navigation(words, 3) + _tag("main", _text("h1", words.title()) + _tag("fieldset", fields), "narrow")


def _dashboard(words: Words) -> str:
    side = _tag(
        "aside", _text("h2", words.label()) + _tag("ul", _many(words, 6, 9, lambda: _tag("li", _link(words.label()))))
    )
    figures = _many(
        words,
        3,
        4,
        lambda: _tag("div", _text("span", words.label()) + _text("b", f"{words.number(10, 99_000):,}"), "card"),
    )
    bars = _many(words, 6, 10, lambda: f"<i style='height:{words.number(10, 140)}px'></i>")
    chart = _tag("div", _text("h3", words.title()) + _tag("div", bars, "bars"), "card")
    return side + _tag("main", _text("h1", words.title()) + _tag("div", figures, "grid") + chart + _rows(words, 4, 7))


def _rows(words: Words, low: int, high: int) -> str:
    """A table with a heading, numbers and states."""
    columns = words.number(3, 5)
    head = "".join(_text("th", words.label()) for _ in range(columns))

    def row() -> str:
        cells = [
            words.pick(NAMES),
            *(words.pick((words.price(), words.date(), words.label())) for _ in range(columns - 2)),
        ]
        state = _tag("td", _text("span", words.pick(("Paid", "Open", "Late", "Draft", "Sent")), "badge"))
        return _tag("tr", "".join(_text("td", cell) for cell in cells) + state)

    return _tag("table", _tag("thead", _tag("tr", head)) + _tag("tbody", _many(words, low, high, row)))


def _prices(words: Words) -> str:
    def plan() -> str:
        items = _many(words, 3, 5, lambda: _text("li", words.sentence()))
        return _tag(
            "div",
            _text("h3", words.label()) + _text("b", words.price(), "price") + _tag("ul", items) + _button(words),
            "card",
        )

    return (
        _navigation(words)
        + _text("h1", words.title(), "center")
        + _text("p", words.sentence(), "center")
        + _tag("main", _many(words, 3, 4, plan), "grid")
        + _rows(words, 3, 5)
    )


def _gallery(words: Words) -> str:
    def figure() -> str:
        return _tag("figure", _picture(words) + _text("figcaption", words.title()))

    tabs = _tag("nav", _many(words, 3, 6, lambda: _link(words.label(), "tab")), "tabs")
    return _text("h1", words.title()) + tabs + _tag("main", _many(words, 6, 12, figure), "grid") + _footer(words)


def _article(words: Words) -> str:
    head = (
        _text("h1", words.title())
        + _text("p", f"{words.pick(NAMES)}, {words.date()}", "meta")
        + _picture(words, "wide")
    )
    parts = _many(words, 3, 5, lambda: _text("h2", words.title()) + _text("p", words.paragraph(3, 6)))
    links = _tag("ul", _many(words, 3, 6, lambda: _tag("li", _link(words.title()))))
    return _navigation(words, 4) + _tag(
        "article", head + parts + _tag("blockquote", _text("p", words.sentence())) + links, "narrow"
    )


def _news(words: Words) -> str:
    def story(tag: str = "h3") -> str:
        return _tag(
            "section",
            _picture(words, "thumb")
            + _text(tag, words.title())
            + _text("p", words.paragraph(1, 2))
            + _text("time", words.date()),
            "story",
        )

    side = _tag(
        "aside", _text("h4", words.label()) + _tag("ol", _many(words, 4, 7, lambda: _tag("li", _link(words.title()))))
    )
    return _navigation(words, 7) + _tag("main", _tag("div", story("h2") + _many(words, 3, 6, story)) + side, "columns")


def _shop(words: Words) -> str:
    def product() -> str:
        sale = _text("span", words.pick(("Sale", "New", "Last one")), "badge") if words.number(0, 2) == 0 else ""
        return _tag(
            "div",
            _picture(words) + sale + _text("h3", words.label()) + _text("b", words.price(), "price") + _button(words),
            "card",
        )

    filters = _tag(
        "aside",
        _text("h4", words.label())
        + _many(words, 4, 7, lambda: f"<label class=check><input type=checkbox> {escape(words.label())}</label>"),
    )
    return _navigation(words) + _tag("main", filters + _tag("div", _many(words, 6, 9, product), "grid"), "columns")


def _product(words: Words) -> str:
    facts = _many(words, 3, 5, lambda: _text("dt", words.label()) + _text("dd", words.sentence()))
    info = (
        _text("h1", words.title())
        + _text("b", words.price(), "price")
        + _text("p", words.paragraph())
        + _button(words)
        + _tag("dl", facts)
    )
    trail = _tag("nav", " / ".join(_link(words.label()) for _ in range(3)), "trail")
    return (
        _navigation(words, 3)
        + trail
        + _tag("main", _picture(words, "wide") + _tag("div", info), "halves")
        + _footer(words)
    )


def _profile(words: Words) -> str:
    name = words.pick(NAMES)
    head = _tag(
        "div", _picture(words, "avatar") + _text("h1", name) + _text("p", words.sentence()) + _button(words), "hero"
    )
    posts = _many(
        words,
        3,
        5,
        lambda: _tag(
            "div",
            _text("strong", words.pick(NAMES))
            + " "
            + _text("time", words.date())
            + _text("p", words.paragraph(1, 3))
            + _link(words.label())
            + " "
            + _link(words.label()),
            "card",
        ),
    )
    return head + _tag("main", posts, "narrow")


def _questions(words: Words) -> str:
    items = _many(
        words,
        5,
        8,
        lambda: _tag("details open", _text("summary", words.title() + "?") + _text("p", words.paragraph(1, 3))).replace(
            "</details open>", "</details>"
        ),
    )
    search = f"<p class=search><input value='{escape(words.label(), quote=True)}'> {_button(words)}</p>"
    return _navigation(words, 4) + _tag("main", _text("h1", words.title()) + search + items, "narrow") + _footer(words)


def _board(words: Words) -> str:
    def column() -> str:
        tasks = _many(
            words,
            2,
            5,
            lambda: _tag(
                "div",
                _text("b", words.title()) + _text("p", words.sentence()) + _text("span", words.label(), "badge"),
                "card",
            ),
        )
        return _tag("section", _text("h3", words.label()) + tasks + _link("+ " + words.label()))

    return _tag("header", _text("strong", words.title(), "brand") + _button(words)) + _tag(
        "main", _many(words, 3, 4, column), "grid"
    )


def _messages(words: Words) -> str:
    people = _tag(
        "aside",
        _many(words, 5, 8, lambda: _tag("div", _text("b", words.pick(NAMES)) + _text("p", words.sentence()), "person")),
    )
    bubbles = _many(words, 5, 9, lambda: _text("p", words.paragraph(1, 2), words.pick(("bubble", "bubble mine"))))
    entry = f"<p class=search><input value='{escape(words.sentence(), quote=True)}'> {_button(words)}</p>"
    return people + _tag("main", _text("h2", words.pick(NAMES)) + bubbles + entry)


def _invoice(words: Words) -> str:
    address = "<br>".join(
        escape(text) for text in (words.pick(NAMES), f"{words.label()} street {words.number(1, 99)}", words.label())
    )
    total = _tag("p", _text("span", words.label()) + " " + _text("b", words.price(), "price"), "total")
    body = (
        _text("h1", words.title())
        + _tag("address", address)
        + _text("p", words.date(), "meta")
        + _rows(words, 5, 9)
        + total
        + _text("p", words.paragraph())
        + _button(words)
    )
    return _tag("main", body, "narrow paper")


TEMPLATES: dict[str, Callable[[Words], str]] = {
    "article": _article, "board": _board, "cards": _cards, "dashboard": _dashboard, "form": _form, "gallery": _gallery,
    "invoice": _invoice, "landing": _landing, "messages": _messages, "news": _news, "prices": _prices,
    "product": _product, "profile": _profile, "questions": _questions, "shop": _shop,
}  # fmt: skip
"""Functions that draw the body of a page, by kind."""
