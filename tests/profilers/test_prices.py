"""Prices of cards: the kit's list is complete and dated, and a damaged file is named in one line."""

from datetime import date
from pathlib import Path

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.devices import bundled_devices, find_device
from specbench_kit.profilers.prices import price_of, read_prices


def test_every_bundled_price_is_that_of_a_known_card_with_its_day_and_source() -> None:
    prices = read_prices()
    assert {"a100-80", "h100", "l40s"} <= prices.keys() <= bundled_devices().keys()
    for price in prices.values():
        assert date.fromisoformat(price.date) < date(2027, 1, 1)
        assert len(price.source.split()) >= 1
        assert price.product


def test_an_alias_names_the_price_of_its_card() -> None:
    assert price_of(find_device("a100"), read_prices()) == read_prices()["a100-80"]


GOOD = 'price_per_hour = 2.0\ndate = "2026-11-09"\nsource = "our contract"\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[h100]\nprice_per_hour = 2.0\n", "date is missing"),
        (f"[h100]\n{GOOD.replace('2.0', '-2.0')}", "price_per_hour"),
        (
            f"[h100]\n{GOOD.replace('2026-11-09', 'last week')}",
            "date must be a day such as 2026-11-09",
        ),
        (f"[h100]\n{GOOD}currency = 'EUR'\n", "unknown keys: currency"),
        ("h100 = 2.0\n", "prices stand in a table per card"),
        ("[h100\n", "is not valid TOML"),
    ],
)
def test_a_damaged_file_of_prices_is_named_in_one_line(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SkitError) as error:
        read_prices(path)
    message = str(error.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message


def test_a_card_without_a_price_says_how_to_add_one(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(f"[h100]\n{GOOD}", encoding="utf-8")
    prices = read_prices(path)
    assert price_of(find_device("h100"), prices, path).price_per_hour == 2.0
    with pytest.raises(
        SkitError, match=r"no price of l40s in .*prices\.toml: add a table \[l40s\]"
    ):
        price_of(find_device("l40s"), prices, path)
