"""One palette, and one colour for each method."""

from specbench_kit.methods.base import methods
from specbench_kit.reports.comparison.scene import styles_of
from specbench_kit.reports.writing.palette import (
    BASELINE_STYLE,
    COLOURS,
    OF_METHODS,
    ON_DARK,
    USUAL,
    method_styles,
)


def test_a_method_has_one_colour_in_every_report():
    few = method_styles({"wisp": "wisp"})
    many = method_styles({name: name for name in ("specedge", "fixed-k:k=2", "wisp", "another")})
    assert few["wisp"] == many["wisp"]
    assert set(USUAL) <= set(methods.all())


def test_rows_differ_in_colour_while_there_are_colours_and_in_line_after():
    specs = {f"{name}:{n}": name for name in ("fixed-k", "wisp", "new") for n in range(6)}
    styles = list(method_styles(specs).values())
    assert len({style.colour for style in styles}) == len(OF_METHODS)
    assert len(set(styles)) == len(styles)


def test_every_colour_has_its_like_for_a_dark_page():
    assert len(set(ON_DARK.values())) == len(set(OF_METHODS)) == len(ON_DARK)
    assert set(COLOURS[:6]) < set(OF_METHODS)


def test_the_baseline_takes_no_methods_colour(comparison):
    styles = styles_of(comparison)
    assert styles["autoregressive"] == BASELINE_STYLE
    assert list(styles) == list(comparison.overall)
    assert len({style.colour for style in styles.values()}) == len(styles)
