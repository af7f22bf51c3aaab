"""What figures show under the pointer."""

from typing import Any
from xml.etree import ElementTree

from specbench_kit.metrics.result import Comparison
from specbench_kit.reports.comparison.plots import pictures
from specbench_kit.reports.document import Estimate
from specbench_kit.reports.sections.columns import SPEEDUP
from specbench_kit.reports.writing.drawing import Picture, draw

SVG = "{http://www.w3.org/2000/svg}"


def shown(picture: Picture) -> dict[str, list[str]]:
    """Every title by the id of its mark."""
    root = ElementTree.fromstring(draw(picture, "somewhere", ["svg"])["svg"])
    groups = {group.get("id", ""): group for group in root.iter(f"{SVG}g")}
    titles_by_name = {
        name: [title.text or "" for title in group.iter(f"{SVG}title")]
        for name, group in groups.items()
    }
    return {name: titles for name, titles in titles_by_name.items() if titles and "--" in name}


def test_a_row_shows_its_value_and_a_curve_the_value_of_every_point(comparison: Comparison) -> None:
    titles_by_picture = {picture.name: shown(picture) for picture in pictures(comparison)}
    assert all(titles_by_picture.values())
    for label, row in comparison.overall.items():
        name = label.replace(":", "-").replace("=", "-")
        texts = {
            text
            for mark, titles in titles_by_picture["speedup"].items()
            if f"m-{name}--" in mark
            for text in titles
        }
        speedup = SPEEDUP.text(Estimate(row.typical_speedup, row.bounds("typical_speedup")))
        assert texts == ({f"{label}\n{speedup}"} if row.typical_speedup else set())
        curve = [
            titles
            for mark, titles in titles_by_picture["acceptance_by_position"].items()
            if f"m-{name}--" in mark
        ]
        assert [len(titles) for titles in curve] == (
            [sum(map(bool, row.acceptance_at))] if row.submitted else []
        )


def test_names_are_text_and_what_has_no_place_shows_none() -> None:
    def paint(axes: Any) -> None:
        axes.plot([1, 2, float("nan")], [3, 4, 5], marker="o", label='<b>\\$ & id="x')
        axes.plot([1, 2], [3, 4], marker="o")
        axes.set(xlabel="devices", ylabel="tokens")

    ((name, titles),) = shown(Picture("made", "Made", "", 2, paint)).items()
    assert titles == [f'<b>$ & id="x\ndevices: {x}.00\ntokens: {y}.00' for x, y in ((1, 3), (2, 4))]
    assert name.startswith("mark-")
