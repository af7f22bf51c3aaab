"""What a tuning found, as `summary.json` of its folder holds it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Self

from msgspec import Meta

from specbench_kit.studies.tuned_options import TunedOptions


@dataclass(frozen=True, slots=True)
class TuningSummary(TunedOptions):
    """The content of the file that `skit bench --tuned` reads, and why methods that were asked for
    are not in it.
    """

    left_out: Annotated[
        Mapping[str, str], Meta(description="methods that were not tuned, with the reason")
    ] = field(default_factory=dict)

    @classmethod
    def of(cls, tuned: TunedOptions, left_out: Mapping[str, str]) -> Self:
        """Return the summary of these options."""
        return cls(
            **{each.name: getattr(tuned, each.name) for each in fields(tuned)}, left_out=left_out
        )
