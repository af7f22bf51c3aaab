"""What the files of figures depend on."""

import re
from math import nextafter

import matplotlib

from specbench_kit.reports.writing.drawing import new_figure, rendered


def drawing(width: float) -> str:
    """A line with marks, cut at its axes, and a hatched bar."""
    figure = new_figure((4.8, 2.0))
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.1, 0.1, width, 0.8))
    axes.plot([1, 2, 3], [3, 5, 4], marker="o")
    axes.bar([1], [2], hatch="//")
    with matplotlib.rc_context({"svg.hashsalt": "made", "svg.fonttype": "none"}):
        return rendered(figure, "svg").decode()


def test_the_last_bit_of_a_coordinate_changes_no_file() -> None:
    """Processors differ in it, and a page that is written again elsewhere must not."""
    assert drawing(0.8) == drawing(nextafter(0.8, 1.0))


def test_every_reference_leads_to_one_shape_of_the_figure() -> None:
    svg = drawing(0.8)
    names = re.findall(r'\bid="([^"]+)"', svg)
    assert len(names) == len(set(names))
    clips, marks = re.findall(r"url\(#([^)]+)\)", svg), re.findall(r'href="#([^"]+)"', svg)
    assert {name[0] for name in clips} == {"p", "h"}
    assert {name[0] for name in marks} == {"m"}
    assert {*clips, *marks} <= set(names)
