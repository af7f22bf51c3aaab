"""A run's timeline as a Chrome trace, which Perfetto also opens, and as a picture of one request's
first rounds.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from specbench_kit.core.option import OptionValues
from specbench_kit.decoding.timeline import REQUESTS, Span, Timeline
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDS_SHOWN = 8
ORDER = (REQUESTS, "edge", "drafter", "link", "server queue", "server")
"""Kinds of resources from top to bottom; others, such as pipeline stages, follow in the order of
their first work.
"""
STYLES = {
    "prefill": (COLOURS[4], "xx"),
    "draft": (COLOURS[0], ""),
    "proactive": (COLOURS[2], "//"),
    "policy": (GREY, ""),
    "transfer": (COLOURS[5], ".."),
    "queue": ("white", "oo"),
    "verify": (COLOURS[1], ""),
    "prune": (COLOURS[3], "\\\\"),
    "commit": (COLOURS[3], ""),
    "stall": ("white", "//"),
}
"""Face and hatch of every kind of work; each pair is distinct without colour too."""
OTHER = (GREY, "++")


class EventDetails(Struct, omit_defaults=True):
    """What a viewer shows of an event: the name or the place of a resource, or the requests of a
    span.
    """

    name: str = ""
    sort_index: int = 0
    requests: list[str] = []


class TraceEvent(Struct, omit_defaults=True, kw_only=True):
    """A span, whose `ph` is X, or the name or the place of a resource, whose `ph` is M."""

    ph: Literal["X", "M"]
    name: str
    cat: str = ""
    pid: int
    tid: int
    ts: float | None = None
    dur: float | None = None
    args: EventDetails


class ChromeTrace(Struct):
    """The content of a file in the trace event format."""

    traceEvents: list[TraceEvent]
    displayTimeUnit: str
    otherData: OptionValues


def chrome_trace(timeline: Timeline, metadata: OptionValues) -> ChromeTrace:
    """Return the trace event format: a process per kind of resource, a thread per resource, times
    in microseconds.
    """
    resources = _ordered(span.resource for span in timeline.spans)
    kinds = list(dict.fromkeys(map(_kind, resources)))
    threads = {
        name: (kinds.index(_kind(name)) + 1, thread) for thread, name in enumerate(resources, 1)
    }
    processes = list(enumerate(kinds, 1))
    events = [
        _metadata_event("process_name", process, 0, EventDetails(name=kind))
        for process, kind in processes
    ]
    events += [
        _metadata_event("process_sort_index", process, 0, EventDetails(sort_index=process))
        for process, _ in processes
    ]
    events += [
        _metadata_event("thread_name", *thread, EventDetails(name=name))
        for name, thread in threads.items()
    ]
    for span in timeline.spans:
        process, thread = threads[span.resource]
        # Both ends in whole nanoseconds, so that rounding lets no neighbours overlap.
        start_ns = round(span.start_s * 1e9)
        end_ns = round(span.end_s * 1e9)
        events.append(
            TraceEvent(
                ph="X",
                name=span.label,
                cat="round" if _kind(span.resource) == REQUESTS else span.label,
                pid=process,
                tid=thread,
                ts=start_ns / 1e3,
                dur=(end_ns - start_ns) / 1e3,
                args=EventDetails(requests=list(span.request_ids)),
            )
        )
    left_out = {"spans_left_out": timeline.left_out} if timeline.left_out else {}
    return ChromeTrace(events, "ms", {**metadata, **left_out})


def _metadata_event(name: str, process: int, thread: int, args: EventDetails) -> TraceEvent:
    return TraceEvent(ph="M", name=name, pid=process, tid=thread, args=args)


def _kind(resource: str) -> str:
    return resource.partition("/")[0]


def _ordered(resources: Iterable[str]) -> list[str]:
    names = list(dict.fromkeys(resources))
    kinds = [*ORDER, *(kind for kind in dict.fromkeys(map(_kind, names)) if kind not in ORDER)]
    return sorted(names, key=lambda name: kinds.index(_kind(name)))


def write_pictures(folder: Path, timeline: Timeline, where: str) -> bool:
    """Write the first rounds of the first request as `timeline.png` and `.svg`; return whether
    there were any.
    """
    rounds = _first_rounds(timeline.spans)
    if not rounds:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    request_id = rounds[0].request_ids[0]
    rows = _rows(timeline.spans, rounds, request_id)
    texts = [span.label.removeprefix("round ") for span in rounds]
    numbers = " to ".join(dict.fromkeys(text.partition(" ")[0] for text in (texts[0], texts[-1])))
    with plot(folder / "timeline.png", (11, 0.5 * len(rows) + 2.1)) as axes:
        _draw(axes, rows, rounds)
        axes.set_title(f"Request {request_id}, rounds {numbers}\n{where}".replace("$", r"\$"))
    return True


def _first_rounds(spans: Sequence[Span]) -> list[Span]:
    """Return the first rounds of a request, less a first one so long, for its prefill, that the
    others would vanish.
    """
    rounds = [span for span in spans if _kind(span.resource) == REQUESTS]
    rounds = [span for span in rounds if span.resource == rounds[0].resource]
    if len(rounds) > 1 and _duration_s(rounds[0]) > 3 * _duration_s(rounds[1]):
        del rounds[0]
    return rounds[:ROUNDS_SHOWN]


def _duration_s(span: Span) -> float:
    return span.end_s - span.start_s


def _rows(spans: Sequence[Span], rounds: Sequence[Span], request_id: str) -> dict[str, list[Span]]:
    """Return the spans of the request in these rounds, by the resource's name without the
    request's.
    """
    start_s = rounds[0].start_s
    end_s = rounds[-1].end_s
    shown = [
        span
        for span in spans
        if span.start_s < end_s
        and span.end_s > start_s
        and _kind(span.resource) != REQUESTS
        and (not span.request_ids or request_id in span.request_ids)
    ]
    resources = _ordered(span.resource for span in shown)
    rows: dict[str, list[Span]] = {name: [] for name in resources}
    for span in shown:
        rows[span.resource].append(span)
    return {
        name.removesuffix(f"/{request_id}").replace("/", " "): row for name, row in rows.items()
    }


def _draw(axes: "Axes", rows: Mapping[str, Sequence[Span]], rounds: Sequence[Span]) -> None:
    start_s = rounds[0].start_s
    end_s = rounds[-1].end_s
    labels = {span.label for spans in rows.values() for span in spans}
    for label in sorted(labels, key=[*STYLES, *sorted(labels)].index):
        face, hatch = STYLES.get(label, OTHER)
        for row, spans in enumerate(rows.values()):
            bars = [
                ((s.start_s - start_s) * 1e3, _duration_s(s) * 1e3)
                for s in spans
                if s.label == label
            ]
            # Only the first row's bars carry the label, so that the legend names each kind of work
            # once.
            axes.broken_barh(
                bars,
                (row - 0.38, 0.76),
                facecolor=face,
                hatch=hatch,
                edgecolor="black",
                linewidth=0.4,
                label=None if row else label,
            )
    for span in rounds:
        begin_ms = (span.start_s - start_s) * 1e3
        axes.axvline(begin_ms, color="black", linewidth=0.8, linestyle=":")
        middle_ms = begin_ms + _duration_s(span) * 500
        text = span.label.removeprefix("round ")
        axes.text(middle_ms, -0.66, text, ha="center", va="center", fontsize=9)
    axes.set(xlabel="ms", xlim=(0, (end_s - start_s) * 1e3), ylim=(len(rows) - 0.5, -0.9))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.figure.legend(fontsize=9, loc="outside lower center", ncols=len(labels))
