"""The content of a field study: every measured number beside its prediction and the prediction's
range.
"""

from math import log
from statistics import median
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.studies.field.tables import FieldInput, Metric, Role

RATIOS: tuple[Metric, ...] = ("speedup", "response_p50_ratio", "response_p99_ratio")
"""Figures that compare speculation with decoding without it."""
NOTICEABLE = 0.1
"""The least measured effect whose sign has to come out."""


class FieldCell(Struct, frozen=True):
    """One measured number and what was predicted for it."""

    series: Annotated[str, Meta(description="line of the table")]
    load: Annotated[float, Meta(description="requests in flight, or requests per second")]
    metric: Annotated[Metric, Meta(description="figure; plain_... is without speculation")]
    measured: Annotated[float, Meta(description="number that others measured")]
    predicted: Annotated[float, Meta(description="the kit's number")]
    least: Annotated[
        float, Meta(description="least value over the stated range of what was derived")
    ]
    most: Annotated[
        float, Meta(description="greatest value over the stated range of what was derived")
    ]
    role: Annotated[
        Role,
        Meta(description="predicted, fitted to the table, or an input: only predictions count"),
    ] = "predicted"

    @property
    def ratio(self) -> float:
        """The prediction over the measurement."""
        return self.predicted / self.measured

    @property
    def off(self) -> float:
        """By what factor, less 1, the prediction is off, in either direction."""
        return max(self.ratio, 1 / self.ratio) - 1

    @property
    def inside(self) -> bool:
        """Whether the measured number lies in the prediction's range."""
        return self.least <= self.measured <= self.most

    @property
    def has_sign(self) -> bool:
        """Whether it says that speculation pays or does not, by more than can be overlooked."""
        return self.metric in RATIOS and abs(log(self.measured)) > log(1 + NOTICEABLE)

    @property
    def sign_comes_out(self) -> bool:
        """Whether speculation pays in the prediction where it was measured to, and only there."""
        return (self.predicted > 1) == (self.measured > 1)


class FieldResult(Struct):
    """One table with its predictions."""

    title: Annotated[str, Meta(description="what was measured, in words")]
    source: Annotated[str, Meta(description="who published it, where and when")]
    setting: Annotated[str, Meta(description="hardware, engine and models, in words")]
    deployment: Annotated[str, Meta(description="deployment that the prediction was made on")]
    loads: Annotated[str, Meta(description="what the loads are: requests in flight or a rate")]
    inputs: Annotated[list[FieldInput], Meta(description="what went into the prediction")]
    cells: Annotated[list[FieldCell], Meta(description="the numbers")]
    causes: Annotated[list[str], Meta(description="named causes of what does not come out")] = []
    blind: Annotated[
        bool,
        Meta(
            description="whether everything that went in was settled before a measured number was read"
        ),
    ] = False
    break_even: Annotated[
        dict[str, float],
        Meta(
            description="tokens a round from which on speculation pays, by series and load, as in 'k = 3 at 16'"
        ),
    ] = {}
    wall_s: Annotated[float, Meta(description="seconds that the prediction took")] = 0.0

    @property
    def predicted(self) -> list[FieldCell]:
        """The cells that could have come out differently."""
        return [cell for cell in self.cells if cell.role == "predicted"]


class FieldSummary(Struct):
    """The content of `summary.json`."""

    tables: Annotated[dict[str, FieldResult], Meta(description="the tables by name")]
    changes: Annotated[
        list[str],
        Meta(description="fields of the deployments that were changed, as --set takes them"),
    ] = []

    @property
    def predicted(self) -> list[FieldCell]:
        """All cells that could have come out differently."""
        return [cell for table in self.tables.values() for cell in table.predicted]

    @property
    def predicted_blind(self) -> list[FieldCell]:
        """The cells whose prediction was settled before a number of their table was read."""
        return [cell for table in self.tables.values() if table.blind for cell in table.predicted]


class FieldScore(Struct, frozen=True):
    """How well predictions of a set of cells come out."""

    cells: int
    inside: int
    median_off: float
    signs: int
    right_signs: int

    @property
    def share_inside(self) -> float:
        """The share of cells inside their range."""
        return self.inside / self.cells


def score_of(cells: list[FieldCell]) -> FieldScore:
    """Return how well these predictions come out, of which there has to be one."""
    signed = [cell for cell in cells if cell.has_sign]
    return FieldScore(
        len(cells),
        sum(cell.inside for cell in cells),
        median(cell.off for cell in cells),
        len(signed),
        sum(cell.sign_comes_out for cell in signed),
    )
