"""How a field of settings is given from outside; whoever reads command lines makes options of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RUN, MODELS, DECODING, DEPLOYMENT, SERVER, OUTPUT = (
    "What to run",
    "Models",
    "Decoding",
    "Deployment",
    "Server",
    "Output",
)
"""Panels that several commands have."""


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of an annotated field: `Annotated[int, Option("Requests in a batch.")] = 64`.

    `flag` is what it is called outside where that is not the field's name, `panel` the group that its help stands in.
    `parse` makes the field's value of a text; a field without it holds what is given.
    """

    help: str
    panel: str = ""
    flag: str = ""
    parse: Callable[[str], Any] | None = None
