"""Prices of cards per hour, with the day on which each was read and where: the kit's list, or a
file of the user.
"""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Text
from specbench_kit.profilers.devices import Device

BUNDLED = Path(__file__).with_name("prices.toml")
Price = Annotated[float, Meta(gt=0, le=1e6)]


class CardPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """The rent of one card."""

    price_per_hour: Annotated[Price, Meta(description="dollars of rent for a card per hour")]
    date: Annotated[Text, Meta(description="day on which the rent was read, YYYY-MM-DD")]
    source: Annotated[Text, Meta(description="where the rent was read")]
    product: Annotated[
        str, Meta(description="name of what is rented; empty if it is not stated")
    ] = ""

    def __post_init__(self) -> None:
        try:
            date.fromisoformat(self.date)
        except ValueError as error:
            raise ValueError(f"date must be a day such as 2026-11-09, not '{self.date}'") from error


def read_prices(path: Path | None = None) -> Mapping[str, CardPrice]:
    """Return the prices in a TOML file by card, those of the kit by default; raise SkitError for a
    damaged file.
    """
    file = BUNDLED if path is None else path.expanduser()
    prices: dict[str, CardPrice] = {}
    for name, table in cards.read_toml(file).items():
        if not isinstance(table, dict):
            raise SkitError(
                f"{file}: prices stand in a table per card, such as [h100], and not in '{name} = ...'"
            )
        prices[name] = cards.parse_table(CardPrice, table, f"the price of '{name}' in {file}")
    return prices


def price_of(
    device: Device, prices: Mapping[str, CardPrice], path: Path | None = None
) -> CardPrice:
    """Return the price of a card by its name or alias; raise SkitError if it has none."""
    for name in (device.name, *device.aliases):
        if name in prices:
            return prices[name]
    raise SkitError(
        f"no price of {device.name} in {path or BUNDLED.name}: add a table [{device.name}] with price_per_hour, "
        "date and source to a file, and give it with --prices, or leave the card out of --gpus"
    )
