"""Published measurements as data: a server's setting, what goes into a prediction, and what was
measured.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from specbench_kit.core.errors import MOST_SUGGESTED, SkitError, did_you_mean
from specbench_kit.profilers import cards
from specbench_kit.profilers.cards import Size, Text

LIBRARY = Path(__file__).with_name("library")
FIELD = "field"
"""What the names of all tables begin with, and what stands for all of them."""
Role = Literal["predicted", "fitted", "input"]
"""What a measured number is to its prediction: only a predicted one could have come out differently."""
Metric = Literal[
    "throughput",
    "plain_throughput",
    "speedup",
    "response_p50_s",
    "response_p99_s",
    "plain_response_p50_s",
    "plain_response_p99_s",
    "response_p50_ratio",
    "response_p99_ratio",
    "ttft_p50_s",
    "plain_ttft_p50_s",
    "tpot_s",
    "plain_tpot_s",
]
"""The figures that are compared; `plain_...` are those of decoding without drafts, and ratios are
taken to them.
"""


class FieldSeries(Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a table: how it drafts, and how much is accepted, which may differ by load.

    `kv_tokens` is the room for KV beside what drafts.
    """

    acceptance: str | dict[str, str]
    method: Text = "fixed-k"
    deployment: str = ""
    prompt_tokens: str = ""
    output_tokens: str = ""
    kv_tokens: str = ""

    def acceptance_at(self, load: float) -> str:
        """Return the acceptance that is stated for a load, or for the next lower one."""
        if isinstance(self.acceptance, str):
            return self.acceptance
        stated = {float(key): value for key, value in self.acceptance.items()}
        lower = [key for key in stated if key <= load]
        return stated[max(lower) if lower else min(stated)]


class FieldInput(Struct, frozen=True, forbid_unknown_fields=True):
    """Something that went into a prediction, and where it comes from."""

    name: Annotated[Text, Meta(description="what it is")]
    value: Annotated[Text, Meta(description="its value, in words")]
    origin: Annotated[
        Literal["published", "assumed", "fitted"],
        Meta(description="whether the source states it, it is assumed, or was fitted to the table"),
    ]


class MeasuredNumbers(Struct, frozen=True, forbid_unknown_fields=True):
    """Measured numbers of one figure of one series, at each load; false stands for a missing one."""

    series: Text
    metric: Metric
    values: list[float | Literal[False]]
    role: Role = "predicted"


class FieldTable(Struct, frozen=True, forbid_unknown_fields=True):
    """A published table: where it is from, the setting, and what was measured.

    Either `requests` are in flight at any time, or they arrive at `rates_per_s`.
    """

    title: Annotated[Text, Meta(description="what was measured, in words")]
    source: Annotated[Text, Meta(description="who published it, where and when")]
    setting: Annotated[Text, Meta(description="hardware, engine and models, in words")]
    deployment: Annotated[Text, Meta(description="deployment that the prediction is made on")]
    prompt_tokens: Annotated[Text, Meta(description="lengths of prompts")]
    output_tokens: Annotated[Text, Meta(description="lengths of answers")]
    series: dict[str, FieldSeries]
    inputs: Annotated[list[FieldInput], Meta(description="what went into the prediction")]
    measured: list[MeasuredNumbers] = []
    requests: Annotated[list[Size], Meta(description="requests in flight, by point")] = []
    rates_per_s: Annotated[list[float], Meta(description="requests per second, by point")] = []
    max_batch: Annotated[Size, Meta(description="most requests of a step")] = 256
    step_tokens: Annotated[Size, Meta(description="most tokens of a step, prompts included")] = 8192
    kv_tokens: Annotated[
        str, Meta(description="tokens of KV that fit, or auto for what the weights leave free")
    ] = "auto"
    causes: Annotated[
        list[Text], Meta(description="named causes of what does not come out, if any")
    ] = []
    blind: Annotated[
        bool,
        Meta(
            description="whether everything that goes in was settled before a measured number was read"
        ),
    ] = False

    def __post_init__(self) -> None:
        if bool(self.requests) == bool(self.rates_per_s):
            raise ValueError("give requests or rates_per_s, one of them")
        for numbers in self.measured:
            if numbers.series not in self.series:
                raise ValueError(f"measured: there is no series '{numbers.series}'")
            if len(numbers.values) != len(self.loads):
                raise ValueError(
                    f"measured: {len(numbers.values)} values of {numbers.series}, {numbers.metric} for "
                    f"{len(self.loads)} loads"
                )

    @property
    def loads(self) -> list[float]:
        """The requests in flight, or the rates."""
        return [float(number) for number in self.requests] or self.rates_per_s

    def lengths(self, series: str) -> tuple[str, str]:
        """Return the lengths of a series' prompts and answers."""
        own = self.series[series]
        return own.prompt_tokens or self.prompt_tokens, own.output_tokens or self.output_tokens


@cache
def tables() -> dict[str, FieldTable]:
    """Return every table by its name, `field/NAME`."""
    return {f"{FIELD}/{path.stem}": read_table(path) for path in sorted(LIBRARY.glob("*.toml"))}


def read_table(path: Path) -> FieldTable:
    """Return the table in a TOML file."""
    return cards.parse_table(FieldTable, cards.read_toml(path), f"the table {path}")


def is_of_field(name: str) -> bool:
    """Return whether a name is one of a table that others published, or of all of them."""
    return name.partition("/")[0] == FIELD


def find_tables(names: list[str]) -> dict[str, FieldTable]:
    """Return the tables of these names; `field` is all of them."""
    known = tables()
    found: dict[str, FieldTable] = {}
    for name in names:
        if name == FIELD:
            found |= known
        elif name in known:
            found[name] = known[name]
        else:
            raise SkitError(
                f"unknown table '{name}'{did_you_mean(name, known, MOST_SUGGESTED)}; skit list experiments shows all"
            )
    return found
