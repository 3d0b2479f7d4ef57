"""draw_style_sheet: random style sheets for page templates."""

from __future__ import annotations

import numpy as np

FONTS = ("Liberation Sans", "DejaVu Sans", "Liberation Serif", "DejaVu Serif", "Liberation Sans Narrow", "sans-serif")
"""Fonts of Debian's fonts-liberation and fonts-dejavu; a browser without them uses its own."""


def draw_style_sheet(random: np.random.Generator) -> str:
    """Draw a style sheet: colours for a light and a dark scheme, font, sizes, corners, borders and shadows.

    Args:
        random: random generator.
    """
    hue, accent = int(random.integers(360)), int(random.integers(360))
    tint, saturation = int(random.integers(0, 30)), int(random.integers(35, 95))
    is_dark = random.random() < 0.15
    light = _colors(hue, accent, tint, saturation, dark=is_dark)
    dark = _colors(hue, accent, tint, saturation, dark=True)
    size, radius = int(random.integers(14, 19)), int(random.choice([0, 0, 3, 4, 6, 8, 12, 16]))
    border = int(random.choice([1, 1, 1, 2, 3]))
    shadow = str(random.choice(["none", "none", "0 1px 3px #0003", "0 4px 12px #0002", "3px 3px 0 #0004"]))
    gap, line = int(random.integers(10, 29)), round(float(random.uniform(1.25, 1.75)), 2)
    body, heading = (str(font) for font in random.choice(FONTS, 2))
    weight = str(random.choice(["400", "600", "700"]))
    alignment = str(random.choice(["left", "left", "left", "center"]))
    underline = str(random.choice(["none", "underline"]))
    button = int(random.choice([radius, radius, 0, 999]))
    columns = int(random.choice([200, 230, 260, 300]))
    striped = "tbody tr:nth-child(even){background:var(--soft)}" if random.random() < 0.5 else ""
    case = "text-transform:uppercase;letter-spacing:1px" if random.random() < 0.25 else ""
    filled = random.random() < 0.4
    header = "background:var(--accent);color:var(--on)" if filled else "border-bottom:1px solid var(--line)"
    inherit = "header a:not(.button){color:inherit}" if filled else ""
    return (
        f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}"
        f"*{{box-sizing:border-box}}body{{margin:0;font:{size}px/{line} '{body}',sans-serif;background:var(--page);"
        f"color:var(--ink)}}h1,h2,h3,h4,legend{{font-family:'{heading}',sans-serif;font-weight:{weight};"
        f"text-align:{alignment};margin:{gap}px 0 {gap // 2}px;line-height:1.2}}body>h1{{padding:0 {gap}px}}"
        f"h1{{font-size:{random.uniform(1.6, 2.8):.2f}em}}h2{{font-size:{random.uniform(1.3, 1.8):.2f}em}}"
        f"h3{{font-size:{random.uniform(1.0, 1.35):.2f}em}}a{{color:var(--accent);text-decoration:{underline}}}"
        f"p{{margin:0 0 {gap // 2}px}}header{{display:flex;gap:{gap}px;align-items:center;padding:{gap // 2}px {gap}px;"
        f"{header}}}{inherit}nav{{display:flex;flex-wrap:wrap;gap:{gap}px;flex:1}}.brand{{font-size:1.2em}}"
        f".button,.quiet,.tab{{display:inline-block;padding:{gap // 3}px {gap // 1.5:.0f}px;border-radius:{button}px;"
        f"margin:2px 4px 2px 0;text-decoration:none;{case}}}.button{{background:var(--accent);color:var(--on);"
        f"border:{border}px solid var(--edge)}}.quiet,.tab{{border:{border}px solid var(--line)}}"
        f"main,section,footer,.hero{{padding:{gap}px}}.card section,section section{{padding:0}}"
        f".grid{{display:grid;gap:{gap}px;grid-template-columns:repeat(auto-fill,minmax({columns}px,1fr))}}"
        f".card,.story,fieldset{{background:var(--card);border:{border}px solid var(--line);border-radius:{radius}px;"
        f"padding:{gap}px;box-shadow:{shadow};margin-bottom:{gap // 2}px}}.story{{margin-bottom:{gap}px}}"
        f".hero{{background:var(--soft);text-align:{alignment}}}.lead{{font-size:1.2em}}"
        f".badge{{background:var(--soft);border:1px solid var(--edge);border-radius:{radius}px;padding:1px 8px;"
        f"font-size:.8em}}.price{{font-size:1.4em;display:block;margin:4px 0 8px}}.center{{text-align:center}}"
        f".narrow{{max-width:{int(random.integers(560, 861))}px;margin:0 auto;padding:{gap}px}}"
        f".paper{{background:var(--card);border:1px solid var(--line)}}.columns,.halves,body.dashboard,body.messages"
        f"{{display:grid;gap:{gap}px;grid-template-columns:3fr 1fr}}.halves{{grid-template-columns:1fr 1fr}}"
        f"body.dashboard,body.messages,.shop .columns{{grid-template-columns:220px 1fr}}"
        f"aside{{background:var(--soft);padding:{gap}px;border-radius:{radius}px}}ul,ol{{padding-left:1.2em;margin:0 0 "
        f"{gap}px}}aside ul{{list-style:none;padding:0}}aside li{{padding:4px 0}}table{{border-collapse:collapse;"
        f"width:100%;margin:{gap}px 0;background:var(--card)}}th,td{{padding:{gap // 3}px {gap // 2}px;text-align:left;"
        f"border:{border}px solid var(--line)}}th{{background:var(--soft)}}{striped}"
        f"label{{display:block;margin:{gap // 2}px 0}}input:not([type]),select,textarea{{display:block;width:100%;"
        f"padding:6px 8px;font:inherit;color:inherit;background:var(--page);border:{border}px solid var(--edge);"
        f"border-radius:{radius}px}}.hint,.meta,time,cite,small{{color:var(--faint);font-size:.85em}}"
        f".search{{display:flex;gap:8px}}blockquote{{margin:{gap}px;padding:{gap // 2}px {gap}px;"
        f"border-left:4px solid var(--accent);background:var(--soft)}}.picture svg,.wide svg{{width:100%;height:150px;"
        f"border-radius:{radius}px;display:block}}.wide svg{{height:260px}}.thumb svg{{width:140px;height:84px;"
        f"float:left;margin-right:{gap}px}}.story{{overflow:hidden}}.avatar svg{{width:96px;height:96px;"
        f"border-radius:50%}}figure{{margin:0}}figcaption{{padding:6px 0}}.bars{{display:flex;gap:8px;"
        f"align-items:flex-end;height:150px}}.bars i{{flex:1;background:var(--accent);border-radius:{radius // 2}px}}"
        f".card b{{font-size:1.3em;display:block}}.board .card b{{font-size:1em}}"
        f"summary{{font-weight:700;padding:6px 0}}"
        f"details{{border-bottom:1px solid var(--line)}}dt{{font-weight:700}}dd{{margin:0 0 8px}}.trail{{padding:8px "
        f"{gap}px}}.person{{padding:8px 0;border-bottom:1px solid var(--line)}}.bubble{{background:var(--soft);"
        f"border:1px solid var(--line);border-radius:{max(radius, 6)}px;padding:8px 12px;width:70%}}"
        f".mine{{margin-left:30%;background:var(--card)}}.total{{text-align:right}}footer{{display:flex;flex-wrap:wrap;"
        f"gap:{2 * gap}px;border-top:1px solid var(--line);background:var(--soft)}}"
    )


def _colors(hue: int, accent: int, tint: int, saturation: int, dark: bool) -> str:
    """Values of the variables of a style sheet."""
    page, card, soft, line, ink, faint = (13, 18, 22, 32, 90, 65) if dark else (99, 100, 95, 84, 14, 42)
    names = {"page": page, "card": card, "soft": soft, "line": line, "ink": ink, "faint": faint}
    colors = {name: f"hsl({hue} {tint}% {lightness}%)" for name, lightness in names.items()}
    strong = 62 if dark else 40
    colors |= {"accent": f"hsl({accent} {saturation}% {strong}%)", "on": "#111" if dark else "#fff"}
    colors["edge"] = f"hsl({accent} {saturation // 2}% {strong - 12}%)"
    return ";".join(f"--{name}:{value}" for name, value in colors.items())
