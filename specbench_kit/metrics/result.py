"""The result of a benchmark as one typed document: every number, curve and description of its
pages, and no requests.

Whoever has its file, `result.json`, makes every page again, without the requests, a model or a
server.
"""

from collections.abc import Mapping
from typing import Annotated, Generic, Literal, Protocol, TypeVar

from msgspec import Meta, Struct, field, structs

from specbench_kit.methods.base import GROUPS, Group, Method
from specbench_kit.methods.spec import known_class
from specbench_kit.metrics.acceptance import DrafterRounds
from specbench_kit.metrics.run_summary import MethodRow, RunSummary
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE
from specbench_kit.runs.document import RunDocument

MANY = 10
"""Number of rows up to which tables and figures are not divided into groups of methods."""

Kind = Literal["overall", "dataset", "category"]


class FailedRequest(Struct, frozen=True):
    """A request that ended in an error."""

    request_id: Annotated[str, Meta(description="id of the request")]
    error: Annotated[str, Meta(description="message of the error")]


class ExampleOutput(Struct, frozen=True):
    """A request's prompt, if its text is known, and its output, both as lines."""

    request_id: Annotated[str, Meta(description="id of the request")]
    prompt: Annotated[
        list[str] | None, Meta(description="lines of the prompt; null if its text is not known")
    ]
    output: Annotated[list[str], Meta(description="lines of the output")]
    tokens: Annotated[int, Meta(description="tokens of the output")]
    finish_reason: Annotated[
        str, Meta(description="what ended the output: 'eos', or 'length' for the token limit")
    ]


class RunResult(Struct, frozen=True, kw_only=True):
    """One run without its requests."""

    name: Annotated[str, Meta(description="name of the run's folder")]
    fields: Annotated[
        RunDocument, Meta(description="the content of run.json, less the hashes of prompts")
    ]
    summary: Annotated[RunSummary, Meta(description="the content of summary.json")]
    problems: Annotated[list[str], Meta(description="lines on what could not be read")] = field(
        default_factory=list
    )
    drafters: Annotated[
        list[DrafterRounds], Meta(description="rounds by drafter, where there are several")
    ] = field(default_factory=list)
    failures: Annotated[
        list[FailedRequest], Meta(description="requests that ended in an error")
    ] = field(default_factory=list)
    example: Annotated[
        ExampleOutput | None,
        Meta(
            description="the first request that did not fail; "
            "null in a comparison of several runs, and if all failed"
        ),
    ] = None

    @property
    def method(self) -> str:
        """The method's spec."""
        return str(self.fields.method)


class HasMethod(Protocol):
    """What a series asks of a run."""

    @property
    def method(self) -> str:
        """The method's spec."""


R = TypeVar("R", bound=HasMethod)


class MethodSeries(Struct, Generic[R], frozen=True):
    """A row of every table: one method's runs by dataset."""

    label: Annotated[
        str,
        Meta(
            description="label of the row: the method's spec, with a number if several rows have the same"
        ),
    ]
    runs: Annotated[dict[str, R], Meta(description="the method's runs, by the name of the dataset")]
    is_baseline: Annotated[bool, Meta(description="whether the row is autoregressive decoding")] = (
        False
    )
    is_bound: Annotated[
        bool,
        Meta(
            description="whether the method cannot be deployed, so that it is no candidate for the fastest"
        ),
    ] = False
    is_derived: Annotated[
        bool,
        Meta(
            description="whether the row is a baseline that was decoded within other methods' runs, without a "
            "run of its own"
        ),
    ] = False

    @property
    def spec(self) -> str:
        """The method with its options."""
        return next(iter(self.runs.values())).method

    @property
    def method(self) -> type[Method] | None:
        """The method's class; None for a method that this kit does not know."""
        return known_class(self.spec)

    @property
    def group(self) -> Group:
        """The method's group; `other` for a method that this kit does not know."""
        return self.method.group if self.method else "other"

    @property
    def drafts_on_server(self) -> bool:
        """True if the method has its draft model beside the target, whatever a deployment says."""
        return self.method is not None and self.method.placement == "server"

    @property
    def reads_answers(self) -> bool:
        """True for an oracle, which reads the target's answers."""
        return self.method is not None and self.method.needs_reference

    @property
    def is_rung(self) -> bool:
        """True if the method shows how much of the oracle's gap a rule over the draft's own signals
        can close.
        """
        return self.method is not None and self.method.is_rung

    @property
    def name(self) -> str:
        """The method without its options."""
        return self.spec.partition(":")[0]


class AcceptedByLength(Struct, frozen=True):
    """What rounds accept by the length of their draft; a pipeline's steps have none."""

    lengths: Annotated[
        list[float],
        Meta(
            description="draft lengths in tokens, as they were sent to be verified; rare ones are left out"
        ),
    ]
    accepted: Annotated[
        list[float],
        Meta(description="mean accepted tokens of the rounds with each of these lengths"),
    ]
    rounds: Annotated[list[float], Meta(description="number of rounds with each of these lengths")]


class Curves(Struct, frozen=True):
    """What figures draw of a row's requests beside its metrics."""

    accepted_by_length: Annotated[
        AcceptedByLength, Meta(description="mean accepted tokens by draft length")
    ]
    itl_ms: Annotated[
        list[float], Meta(description="quantiles of the inter-token latency, at equal distances")
    ]


class ComparisonTable(Struct, frozen=True):
    """One table: the metrics of every series over all requests, those of a dataset, or those of a
    category.
    """

    kind: Annotated[
        Kind,
        Meta(
            description="which requests the table is over: all ('overall'), those of a dataset, or those of a "
            "category"
        ),
    ]
    name: Annotated[
        str, Meta(description="name of the dataset or of the category, or 'all requests'")
    ]
    rows: Annotated[dict[str, MethodRow], Meta(description="metrics by the label of the row")]


class Comparison(Struct, frozen=True, kw_only=True):
    """The result of runs side by side, or of one."""

    series: Annotated[
        list[MethodSeries[RunResult]],
        Meta(description="the rows of every table, the baselines first"),
    ]
    parts: Annotated[
        list[ComparisonTable], Meta(description="the tables; the first is over all requests")
    ]
    reference: Annotated[str, Meta(description="label of the row that others are compared with")]
    overruled: Annotated[
        list[str], Meta(description="differences that forbid a comparison, which was forced")
    ] = field(default_factory=list)
    remarks: Annotated[list[str], Meta(description="differences that a reader must know")] = field(
        default_factory=list
    )
    problems: Annotated[list[str], Meta(description="lines on what could not be read")] = field(
        default_factory=list
    )
    curves: Annotated[dict[str, Curves], Meta(description="what figures draw, by label")] = field(
        default_factory=dict
    )
    unchecked: Annotated[
        list[str], Meta(description="labels whose outputs were not checked for losslessness")
    ] = field(default_factory=list)
    undecided: Annotated[
        list[str], Meta(description="labels of which too few tokens were drawn to tell")
    ] = field(default_factory=list)
    is_named: Annotated[bool, Meta(description="whether the user named the reference")] = False
    folders: Annotated[
        list[str], Meta(description="folders of the runs on this machine; empty in a file")
    ] = field(default_factory=list)

    @property
    def overall(self) -> Mapping[str, MethodRow]:
        """The rows over all requests."""
        return self.parts[0].rows

    def from_fast_to_slow(self) -> "Comparison":
        """Return the comparison with the rows of every table in the order of their speed over all
        requests.

        That is the typical speedup, which is 1 for the baseline, or the throughput where no
        baseline was decoded.
        """
        rows = self.overall
        paired = any(row.typical_speedup for row in rows.values())
        speeds = {
            label: row.typical_speedup or 1.0 if paired else row.throughput or 0.0
            for label, row in rows.items()
        }
        labels = sorted(rows, key=lambda label: -speeds[label])
        parts = []
        for part in self.parts:
            ordered = {label: part.rows[label] for label in labels if label in part.rows}
            parts.append(structs.replace(part, rows=ordered))
        series = sorted(self.series, key=lambda series: labels.index(series.label))
        return structs.replace(self, parts=parts, series=series, folders=[])

    @property
    def by_group(self) -> dict[str, list[str]]:
        """The labels of every group of methods; empty if there are few enough rows for one
        table.
        """
        if len(self.series) <= MANY:
            return {}
        labels: dict[str, list[str]] = {group: [] for group in GROUPS}
        for series in self.series:
            labels[series.group].append(series.label)
        return {group: members for group, members in labels.items() if members}

    @property
    def folded(self) -> list[str]:
        """The labels of the rows that tables fold: of methods that few readers look for, where
        nobody named them.

        A row that is level with the reference, or ahead of it, is not folded.
        """
        rows = self.overall
        return [
            series.label
            for series in self.series
            if series.method
            and series.method.is_folded
            and series.label != self.reference
            and rows[series.label].verdict not in (FASTER, NO_DIFFERENCE)
            and not any(run.fields.is_named for run in series.runs.values())
        ]

    @property
    def runs(self) -> list[RunResult]:
        """Every run, in the order of the rows."""
        return [
            run for series in self.series if not series.is_derived for run in series.runs.values()
        ]

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets, in order of first appearance."""
        return list(dict.fromkeys(name for series in self.series for name in series.runs))
