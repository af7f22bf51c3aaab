"""Times of steps that are looked up in measured kernels."""

from dataclasses import replace

import pytest

from specbench_kit.decoding.kernel_latency import KernelModel, KernelTables
from specbench_kit.decoding.latency import NOTHING, sums_of

TABLES = KernelTables(
    tokens=(1, 4, 8),
    tokens_s=(10.0, 13.0, 21.0),
    rows=(1, 8),
    rows_s=(1.0, 8.0),
    requests=(1, 2),
    contexts=(100, 200),
    decode_s=((1.0, 2.0), (3.0, 5.0)),
    lengths=(100, 200),
    lengths_s=(0.5, 1.0),
    attention_s=4.0,
)
MODEL = KernelModel(TABLES)


def test_a_plain_step_adds_up_its_kernels() -> None:
    assert MODEL.seconds([(1, 100)]) == pytest.approx(10 + 1 + 1)
    assert MODEL.seconds([(1, 100), (1, 200)]) == pytest.approx(11 + 2 + (3 + 5) / 2)


def test_several_new_tokens_pay_for_their_pairs_and_no_less_than_a_plain_step() -> None:
    """4 tokens after 98: mean length 102, 4 x 98 + 6 pairs and 4 of themselves."""
    attended = (4 * 98 + 6 + 4) / 102
    assert MODEL.seconds([(4, 98)]) == pytest.approx(13 + 4 + 4 + attended * (0.5 + 0.5 * 2 / 100))
    dear = KernelModel(replace(TABLES, decode_s=((90.0, 91.0), (92.0, 93.0))))
    assert dear.seconds([(4, 100)]) == pytest.approx(13 + 4 + 90)


def test_times_go_on_rising_beyond_the_tables_and_stay_level_below_them() -> None:
    assert MODEL.parts(sums_of([(12, 100)]))["matrices"] == pytest.approx(21 + 4 * 2)
    assert MODEL.parts(sums_of([(1, 400)]))["attention"] == pytest.approx(4.0)
    assert MODEL.parts(sums_of([(1, 1)]))["attention"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rows", "origin"),
    [
        ([(1, 100)], "silicon"),
        ([(1, 150)], "interpolated"),
        ([(2, 100)], "interpolated"),
        ([(1, 300)], "law"),
        ([(9, 100)], "law"),
        ([(1, 100)] * 3, "law"),
    ],
)
def test_a_figure_says_where_it_comes_from(rows: list[tuple[int, int]], origin: str) -> None:
    assert MODEL.origin(sums_of(rows)) == origin


def test_the_host_takes_its_time_beside_the_card() -> None:
    rows = [(1, 100)] * 2
    card_s = MODEL.seconds(rows)
    for overlap, seconds in ((0.0, card_s + 7), (1.0, max(card_s, 7)), (0.5, card_s + 3.5)):
        assert replace(MODEL, host_s=5.0, host_request_s=1.0, overlap=overlap).seconds(
            rows
        ) == pytest.approx(seconds)
    hosted = replace(MODEL, host_s=5.0)
    assert sum(hosted.parts(sums_of(rows)).values()) == pytest.approx(hosted.seconds(rows))
    assert hosted.of_sums(NOTHING) == pytest.approx(15)


def test_slower_kernels_leave_the_host_as_it_is() -> None:
    rows = [(4, 98), (1, 150)]
    slower = replace(MODEL, host_s=5.0).scaled(1.5)
    assert slower.seconds(rows) == pytest.approx(1.5 * MODEL.seconds(rows) + 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": (1, 4)},
        {"tokens": (1, 8, 4)},
        {"rows_s": (1.0, -1.0)},
        {"requests": (1,), "decode_s": ((1.0, 2.0),)},
    ],
)
def test_damaged_tables_are_refused(changes: dict[str, tuple[float, ...]]) -> None:
    with pytest.raises(ValueError, match="kernels: "):
        replace(TABLES, **changes)
