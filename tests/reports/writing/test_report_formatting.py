import pytest

from specbench_kit.reports.comparison.scene import short
from specbench_kit.reports.writing import formatting as f


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (0.012345, "0.0123"),
        (0.9996, "1.00"),
        (2.0, "2.00"),
        (-9.996, "-10.0"),
        (41.27, "41.3"),
        (99.96, "100"),
        (12345.6, "12,346"),
    ],
)
def test_three_significant_digits_without_exponent(value, text):
    assert f.significant(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0 s"),
        (9.996e-7, "1.00 µs"),
        (2.5e-5, "25.0 µs"),
        (0.00859, "8.59 ms"),
        (0.6, "600 ms"),
        (0.9996, "1.00 s"),
        (29.44, "29.4 s"),
        (7200.0, "7,200 s"),
    ],
)
def test_durations_come_in_the_unit_that_suits_them(value, text):
    assert f.seconds(value) == text


def test_data_rounded_up_to_the_next_unit_is_shown_in_it():
    assert f.data(999_600) == "1.00 MB"
    assert f.data(999) == "999 B"


def test_a_range_whose_ends_read_alike_is_one_number():
    assert f.span("48", "60") == "48 to 60"
    assert f.span("48", "48") == "48"


def test_what_has_no_value_is_a_dash():
    shows = (f.significant, f.count, f.seconds, f.share, f.rate, f.times, f.interval)
    assert {show(None) for show in shows} == {f.ABSENT}


def test_long_texts_keep_the_end_that_matters():
    assert f.shorten_head("abcdef", 3) == "…def"
    assert f.shorten_tail("abcdef", 3) == "abc…"
    assert f.shorten_head("abc", 3) == f.shorten_tail("abc", 3) == "abc"


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ("fixed-k (k=4)", ["fixed-k (k=4)"]),
        ("threshold (max_draft=12)", ["threshold", "(max_draft=12)"]),
        (
            "banditspec (arms=autoregressive+fixed-k.k=1..4)",
            ["banditspec (arms=", "autoregressive+fixed-", "k.k=1..4)"],
        ),
        ("x" * 30, ["x" * 22, "x" * 8]),
    ],
)
def test_a_label_in_a_figure_breaks_between_words_and_options(label: str, lines: list[str]) -> None:
    assert [line.rstrip() for line in short(label).split("\n")] == lines
