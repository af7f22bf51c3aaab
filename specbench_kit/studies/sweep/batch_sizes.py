"""The same benchmark at several batch sizes: each method's throughput against its time per token.

Its table says up to which batch size each method pays off; its figure has one line per method
through its batch sizes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta, Struct, to_builtins

from specbench_kit.methods.base import GROUPS, methods
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.result import MANY
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.reports import render_terminal
from specbench_kit.reports.comparison.scene import legend, legend_in, short
from specbench_kit.reports.document import Blocks, Document, Figure, Paragraph, Table, caution, code
from specbench_kit.reports.sections.cautions import setting_cautions
from specbench_kit.reports.sections.wording import time_kind
from specbench_kit.reports.study import StoredFiles, Study, StudyKind, Tables
from specbench_kit.reports.writing.drawing import Picture
from specbench_kit.reports.writing.formatting import ABSENT, rate, share, times
from specbench_kit.reports.writing.palette import BASELINE_STYLE, method_styles
from specbench_kit.runs.document import RunDescription

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console


NOTE = "Numbers are batch sizes. Up and to the left is better; a method pays off above autoregressive decoding."
WHY_NEVER_FULL = (
    "There was no time in which all places were taken: answers end as they begin, or fail. A "
    "speed needs longer ones."
)
FILLINGS = 4
"""How many times as many requests as places a batch gets, so that it is full for most of the
time.
"""


class BatchSizePoint(Struct, frozen=True):
    """One method at one batch size, while the batch was full."""

    method: Annotated[str, Meta(description="spec of the method")]
    batch_size: Annotated[int, Meta(description="requests that may be decoded at once")]
    throughput: Annotated[float, Meta(description="committed tokens per second")]
    tpot_s: Annotated[
        float,
        Meta(
            description="seconds per output token, mean over the requests that ended in that time"
        ),
    ]
    full: Annotated[
        float | None,
        Meta(
            description="share of the run's time in which the batch was full; null if that is not known"
        ),
    ]
    requests: Annotated[int, Meta(description="requests of the run")]


class NeverFull(Struct, frozen=True):
    """A method and a batch size at which no time was found in which all places were taken."""

    method: Annotated[str, Meta(description="spec of the method")]
    batch_size: Annotated[int, Meta(description="requests that may be decoded at once")]


class LengthAtContext(Struct, frozen=True):
    """The number of drafted tokens that is fastest for a batch whose requests have one context."""

    context: Annotated[int, Meta(description="tokens before the new ones, of every request")]
    batch_size: Annotated[int, Meta(description="requests that are decoded at once")]
    tokens: Annotated[int, Meta(description="drafted tokens of the fastest, 0 if it drafts none")]
    speedup: Annotated[
        float, Meta(description="its tokens per second over those of plain decoding")
    ]


class BatchSizeSummary(Struct):
    """The content of `summary.json` of a sweep over batch sizes."""

    places: Annotated[
        list[BatchSizePoint],
        Meta(description="speed of every method at every batch size at which the batch was full"),
    ]
    never_full: Annotated[
        list[NeverFull],
        Meta(description="methods and batch sizes at which the batch was never full"),
    ] = []
    runs: Annotated[list[str], Meta(description="names of the runs' folders")] = []
    left_out: Annotated[
        dict[str, str], Meta(description="methods that could not run, with the reason")
    ] = {}
    by_context: Annotated[
        list[LengthAtContext],
        Meta(description="the fastest number of drafted tokens by context and batch size"),
    ] = []


BatchSizeStudy = Study[RunDescription, BatchSizeSummary]


class BatchSizeKind(StudyKind[RunDescription, BatchSizeSummary]):
    """The same benchmark at several batch sizes."""

    command = "batch-sizes"
    description = RunDescription
    result = BatchSizeSummary

    def headline(self, study: BatchSizeStudy) -> str:
        """Return which method has the highest throughput at the largest batch size."""
        return headline(study.result.places)

    def cautions(self, study: BatchSizeStudy) -> list[str]:
        """Return what limits the speeds."""
        return _cautions(study.run, study.result.never_full)

    def document(self, study: BatchSizeStudy, figures: Sequence[Figure]) -> Document:
        """Return the page."""
        result = study.result
        return build(result.places, study.run, figures, result.never_full, result.by_context)

    def pictures(self, study: BatchSizeStudy) -> Iterable[Picture]:
        """Return the curves of all methods, or of each group of them if there are many."""
        return curves(study.result.places)

    def setting(self, study: BatchSizeStudy) -> str:
        """Return the prompts, their number, and on which time."""
        run = study.run
        return f"{run.dataset.name}, {_requests(study.result.places)}, {time_kind(run)}"

    def files(self, study: BatchSizeStudy) -> Tables:
        """Return a row per method and batch size."""
        return {"curves.csv": to_builtins(study.result.places)}

    def upgraded(self, files: StoredFiles) -> StoredFiles:
        """Return files of 0.2, in which every size had the same requests, whose number stood in
        `run.json`.
        """
        run, summary = files
        places = [{"requests": run["requests"], **point} for point in summary["places"]]
        return StoredFiles(run, {**summary, "places": places})

    def print(self, console: "Console", study: BatchSizeStudy) -> None:
        """Print the sentence, the table and what limits them."""
        render_terminal.show(
            console,
            terminal(
                study.result.places,
                study.run,
                study.result.never_full,
                study.result.by_context,
            ),
        )


BATCH_SIZES = BatchSizeKind()


def build(
    rows: Sequence[BatchSizePoint],
    run: RunDescription,
    figures: Sequence[Figure],
    never_full: Sequence[NeverFull] = (),
    by_context: Sequence[LengthAtContext] = (),
) -> Document:
    """Return the report."""
    title = f"Batch sizes on {run.dataset.name}"
    result: Blocks = [Paragraph(f"**{headline(rows)}**"), *caution(_cautions(run, never_full))]
    tables = [*_table(rows, run), *_by_context(by_context)]
    return Document.of(title, result, figures[:1], tables, figures[1:])


def terminal(
    rows: Sequence[BatchSizePoint],
    run: RunDescription,
    never_full: Sequence[NeverFull],
    by_context: Sequence[LengthAtContext] = (),
) -> Blocks:
    """Return what the command prints: the sentence, the table and what limits them."""
    return [
        Paragraph(f"**{headline(rows)}**"),
        *_table(rows, run),
        *_by_context(by_context),
        *caution(_cautions(run, never_full)),
    ]


def _cautions(run: RunDescription, never_full: Sequence[NeverFull]) -> list[str]:
    by_size: dict[int, list[str]] = {}
    for missing in never_full:
        by_size.setdefault(missing.batch_size, []).append(code(missing.method))
    where = "; ".join(
        f"{', '.join(names)} with {size} place{'s'[: size > 1]}" for size, names in by_size.items()
    )
    return [*([f"NEVER FULL: {where}. {WHY_NEVER_FULL}"] if where else []), *setting_cautions(run)]


def _table(rows: Sequence[BatchSizePoint], run: RunDescription) -> Blocks:
    """Return the speeds by method and batch size, and what they mean."""
    sizes = sorted({row.batch_size for row in rows})
    points = {(row.method, row.batch_size): row for row in rows}
    cells = []
    for label in dict.fromkeys(row.method for row in rows):
        of_sizes = [points.get((label, size)) for size in sizes]
        speeds = [
            ABSENT if row is None else f"{row.throughput:.1f}/{1e3 * row.tpot_s:.1f}"
            for row in of_sizes
        ]
        baselines = [points.get((BASELINE, size)) for size in sizes]
        limit = (
            ABSENT
            if label == BASELINE or baselines[0] is None
            else _largest_faster(of_sizes, baselines)
        )
        cells.append((code(label), *speeds, limit))
    shares = [row.full for row in rows if row.full is not None]
    when = (
        f"of the time in which all B places were taken: {share(min(shares))} to {share(max(shares))} of each run, from "
        "when the first B requests have begun to answer until the last one is admitted"
        if shares
        else "of the whole run, its filling and emptying batches included"
    )
    text = (
        f"{_requests(rows)}, {time_kind(run)}. Below each batch size B: tokens per second of the batch / mean "
        f"milliseconds per token of a request, both {when}. A method pays off up to the largest B at which, and at "
        "every smaller one, its tokens per second exceed those of autoregressive decoding."
    )
    return [
        Table(("method", *(f"B = {size}" for size in sizes), "pays off to"), cells),
        Paragraph(text),
        *_for_engines(rows),
    ]


class BatchRange(NamedTuple):
    """The drafted tokens that are fastest for batches from one size to another."""

    smallest: int
    largest: int
    tokens: int


def schedule(rows: Sequence[BatchSizePoint]) -> list[BatchRange]:
    """Return the fastest fixed length by batch size, 0 where nothing is drafted; nothing unless two
    lengths were compared with each other and with plain decoding.

    A batch between two measured sizes has the length of the larger one, where less pays.
    """
    lengths = {row.method: fixed_length(row.method) for row in rows}
    tried = {tokens for tokens in lengths.values() if tokens is not None}
    if 0 not in tried or len(tried) < 3:
        return []
    ranges: list[BatchRange] = []
    for size in sorted({row.batch_size for row in rows}):
        there = [row for row in rows if row.batch_size == size and lengths[row.method] is not None]
        best = lengths[max(there, key=lambda row: row.throughput).method] or 0
        if ranges and ranges[-1].tokens == best:
            ranges[-1] = ranges[-1]._replace(largest=size)
        else:
            ranges.append(BatchRange(ranges[-1].largest + 1 if ranges else 1, size, best))
    return ranges


def fixed_length(spec: str) -> int | None:
    """Return the drafted tokens of a spec that drafts as many in every round, 0 for one that drafts
    none; None for any other method.
    """
    if spec == BASELINE:
        return 0
    return parse_method(spec).longest_draft if spec.partition(":")[0] == "fixed-k" else None


def _by_context(lengths: Sequence[LengthAtContext]) -> Blocks:
    """Return the fastest length and its speedup by context and batch size."""
    if not lengths:
        return []
    sizes = sorted({one.batch_size for one in lengths})
    found = {(one.context, one.batch_size): one for one in lengths}

    def cell(one: LengthAtContext | None) -> str:
        if one is None:
            return ABSENT
        return f"{one.tokens} ({times(one.speedup)})" if one.tokens else "none"

    rows = [
        (f"{context:,}", *(cell(found.get((context, size))) for size in sizes))
        for context in sorted({one.context for one in lengths})
    ]
    return [
        Table(("context", *(f"B = {size}" for size in sizes)), rows),
        Paragraph(
            "Drafted tokens of the fastest round by context and batch size B, and its speed over plain decoding, by "
            "the deployment's step times alone, without prompts, and with the acceptance of these runs at every "
            "context. In the field acceptance falls with the context, so that long ones gain less. What is missing "
            "does not fit: so many tokens of KV beside the weights, or a context longer than the model's."
        ),
    ]


def _for_engines(rows: Sequence[BatchSizePoint]) -> Blocks:
    """Return the fastest lengths as vLLM and TensorRT-LLM take them."""
    ranges = schedule(rows)
    if not ranges:
        return []
    words = ", ".join(
        f"{one.tokens or 'none'} for {one.smallest}"
        + (f" to {one.largest}" if one.smallest < one.largest else "")
        for one in ranges
    )
    longest = max(1, *(one.tokens for one in ranges))
    vllm = {
        "num_speculative_tokens": longest,
        "num_speculative_tokens_per_batch_size": [list(one) for one in ranges],
    }
    # TensorRT-LLM drafts nothing in batches that are larger than the last of its schedule.
    drafting = [one for one in ranges if one.tokens]
    trtllm = ", ".join(
        f"{one.largest}: {one.tokens}"
        for one in ranges
        if drafting and one.largest <= drafting[-1].largest
    )
    return [
        Paragraph(
            f"The fastest number of drafted tokens by requests in a batch: {words}. In vLLM's "
            f"`--speculative-config`: {code(json.dumps(vllm))}. In TensorRT-LLM's `speculative_config`: "
            f"{code(f'max_draft_len: {longest}, draft_len_schedule: {{{trtllm}}}')}"
        )
    ]


def _requests(rows: Sequence[BatchSizePoint]) -> str:
    """Return how many requests there were at each batch size, as words."""
    counts = {row.batch_size: row.requests for row in rows}
    few, most = min(counts.values()), max(counts.values())
    return (
        f"{few} requests per size"
        if few == most
        else f"{few:,} to {most:,} requests per size, at least {FILLINGS} x B"
    )


def headline(rows: Sequence[BatchSizePoint]) -> str:
    """Return in a sentence which method has the highest throughput at the largest batch size."""
    size = max(row.batch_size for row in rows)
    there = {row.method: row.throughput for row in rows if row.batch_size == size}
    best = max(there, key=there.__getitem__)
    at = f"At a batch size of {size}"
    if best == BASELINE:
        return f"{at} no method is faster than autoregressive decoding."
    ratio = (
        f", {times(there[best] / there[BASELINE])} that of autoregressive decoding"
        if BASELINE in there
        else ""
    )
    return f"{at} {code(best)} has the highest throughput: {rate(there[best])}{ratio} (without an interval)."


def _largest_faster(
    rows: Sequence[BatchSizePoint | None], baselines: Sequence[BatchSizePoint | None]
) -> str:
    """Return the largest batch size up to which a method is faster than the baseline at every
    size.
    """
    largest = "none"
    for row, baseline in zip(rows, baselines, strict=True):
        if row is None or baseline is None or row.throughput <= baseline.throughput:
            break
        largest = str(row.batch_size)
    return largest


def curves(rows: Sequence[BatchSizePoint]) -> Iterator[Picture]:
    """Yield the figure of all methods, or one per group if there are many."""
    labels = list(dict.fromkeys(row.method for row in rows))
    for group, members in group_labels(labels).items():
        yield _picture([row for row in rows if row.method in members], members, group)


def group_labels(labels: Sequence[str]) -> dict[str, list[str]]:
    """Return the methods of each figure by its group; the baseline is part of every figure."""
    if len(labels) <= MANY:
        return {"": list(labels)}
    types = methods.all()
    groups = {
        label: types[name].group for label in labels if (name := label.partition(":")[0]) in types
    }
    members: dict[str, list[str]] = {group: [] for group in GROUPS}
    baseline: list[str] = []
    for label in labels:
        of_label = baseline if label == BASELINE else members[groups.get(label, "other")]
        of_label.append(label)
    return {group: [*baseline, *own] for group, own in members.items() if own}


def _picture(rows: Sequence[BatchSizePoint], labels: Sequence[str], group: str) -> Picture:
    styles = {BASELINE: BASELINE_STYLE} | method_styles(
        {label: label for label in labels if label != BASELINE}
    )

    def paint(axes: "Axes") -> None:
        for label in labels:
            points = [row for row in rows if row.method == label]
            x = [1e3 * row.tpot_s for row in points]
            y = [row.throughput for row in points]
            style = styles[label]
            axes.plot(
                x,
                y,
                color=style.colour,
                linestyle=style.line,
                marker=style.marker,
                label=short(label),
            )
            for row, point in zip(points, zip(x, y, strict=True), strict=True):
                axes.annotate(
                    str(row.batch_size),
                    point,
                    fontsize=6,
                    xytext=(2, 2),
                    textcoords="offset points",
                )
        axes.set(
            xlabel="mean time per output token of a request (ms)",
            ylabel="tokens per second of the batch",
        )
        legend(axes)

    title = f"Throughput against TPOT{f': {group}' if group else ''}"
    name = f"throughput_tpot{f'-{group}' if group else ''}"
    return Picture(name, title, NOTE, 3.2 + legend_in(labels), paint)
