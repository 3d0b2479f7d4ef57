"""The forest plot: labels of any length fit into the image."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from benchmarks.studies.forest import forest_plot


@pytest.mark.parametrize("length", [10, 53, 72, 120])
def test_the_longest_label_is_not_cut_off(length: int) -> None:
    plot = ElementTree.fromstring(forest_plot([("short", 1.0, (0.5, 2.0), True), ("m" * length, -1.0, None, False)]))
    texts = {text.text: float(text.attrib["x"]) for text in plot.iter() if text.tag.endswith("text")}
    # a letter of this size is about 6 pixels wide
    assert texts["m" * length] == texts["short"] >= 6 * length
    assert all(x < float(plot.attrib["width"]) for x in texts.values())
