"""A run's timeline as a Chrome trace, which Perfetto opens too, and as a picture of one request's first rounds."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench_kit.decoding.timeline import REQUESTS, Span, Timeline
from specbench_kit.reports.writing.drawing import plot
from specbench_kit.reports.writing.palette import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = ("timeline.png", "timeline.svg")
ROUNDS_SHOWN = 8
ORDER = (REQUESTS, "edge", "drafter", "link", "server queue", "server")
"""Of the resources; others, such as the stages of a pipeline, follow in the order in which they began to work."""
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
"""Face and hatch of every label, told apart without colour too."""
OTHER = (GREY, "++")


def chrome_trace(timeline: Timeline, about: Mapping[str, Any]) -> dict[str, Any]:
    """The trace event format: a process per kind of resource, a thread per resource, times in microseconds."""
    resources = _ordered(span.resource for span in timeline.spans)
    kinds = list(dict.fromkeys(map(_kind, resources)))
    places = {name: (kinds.index(_kind(name)) + 1, thread) for thread, name in enumerate(resources, 1)}
    names = [_name("process_name", place, 0, kind) for place, kind in enumerate(kinds, 1)]
    names += [_sort_index(place) for place in range(1, len(kinds) + 1)]
    names += [_name("thread_name", *place, name) for name, place in places.items()]
    events = [_event(span, *places[span.resource]) for span in timeline.spans]
    left_out = {"spans_left_out": timeline.left_out} if timeline.left_out else {}
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {**about, **left_out}}


def _ordered(resources: Iterable[str]) -> list[str]:
    kinds = [*ORDER]
    found = list(dict.fromkeys(resources))
    kinds += [kind for kind in dict.fromkeys(map(_kind, found)) if kind not in ORDER]
    return sorted(found, key=lambda name: kinds.index(_kind(name)))


def _kind(resource: str) -> str:
    return resource.partition("/")[0]


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _sort_index(process: int) -> dict[str, Any]:
    return {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}


def _event(span: Span, process: int, thread: int) -> dict[str, Any]:
    # Both ends in whole nanoseconds, so that rounding lets no neighbours overlap.
    start_ns, end_ns = round(span.start_s * 1e9), round(span.end_s * 1e9)
    times = {"ts": start_ns / 1e3, "dur": (end_ns - start_ns) / 1e3}
    args = {"requests": list(span.request_ids)} if span.request_ids else {}
    kind = "round" if _kind(span.resource) == REQUESTS else span.label
    return {"ph": "X", "name": span.label, "cat": kind, "pid": process, "tid": thread, **times, "args": args}


def write_pictures(folder: Path, timeline: Timeline, where: str) -> bool:
    """The first rounds of the first request as `timeline.png` and `.svg`; whether there were any."""
    rounds = _first_rounds(timeline.spans)
    if not rounds:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    request_id = rounds[0].request_ids[0]
    rows = _rows(timeline.spans, rounds, request_id)
    numbers = " to ".join(dict.fromkeys(_number(one) for one in (rounds[0], rounds[-1])))
    with plot(folder / PICTURES[0], (11, 0.5 * len(rows) + 2.1), formats=("png", "svg")) as axes:
        _draw(axes, rows, rounds)
        axes.set_title(f"Request {request_id}, rounds {numbers}\n{where}".replace("$", r"\$"))
    return True


def _first_rounds(spans: Sequence[Span]) -> list[Span]:
    """Less the very first where reading the prompt makes it so long that the others could not be seen."""
    rounds = [span for span in spans if _kind(span.resource) == REQUESTS]
    rounds = [span for span in rounds if span.resource == rounds[0].resource]
    if len(rounds) > 1 and _length(rounds[0]) > 3 * _length(rounds[1]):
        del rounds[0]
    return rounds[:ROUNDS_SHOWN]


def _length(span: Span) -> float:
    return span.end_s - span.start_s


def _number(span: Span) -> str:
    return span.label.removeprefix("round ").partition(" ")[0]


def _rows(spans: Sequence[Span], rounds: Sequence[Span], request_id: str) -> dict[str, list[Span]]:
    """What every resource does for the request in these rounds, by the resource's name less the request's."""
    start_s, end_s = rounds[0].start_s, rounds[-1].end_s
    shown = [
        span
        for span in spans
        if span.start_s < end_s
        and span.end_s > start_s
        and _kind(span.resource) != REQUESTS
        and (not span.request_ids or request_id in span.request_ids)
    ]
    names = _ordered(span.resource for span in shown)
    by_name = {name: [span for span in shown if span.resource == name] for name in names}
    return {name.removesuffix(f"/{request_id}").replace("/", " "): found for name, found in by_name.items()}


def _draw(axes: "Axes", rows: Mapping[str, Sequence[Span]], rounds: Sequence[Span]) -> None:
    start_s, end_s = rounds[0].start_s, rounds[-1].end_s
    labels = {span.label for spans in rows.values() for span in spans}
    for label in sorted(labels, key=[*STYLES, *sorted(labels)].index):
        face, hatch = STYLES.get(label, OTHER)
        style: dict[str, Any] = {"facecolor": face, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}
        for place, spans in enumerate(rows.values()):
            bars = [((s.start_s - start_s) * 1e3, _length(s) * 1e3) for s in spans if s.label == label]
            axes.broken_barh(bars, (place - 0.38, 0.76), **style)
        axes.broken_barh([], (0, 0), label=label, **style)
    _mark_rounds(axes, rounds)
    axes.set(xlabel="ms", xlim=(0, (end_s - start_s) * 1e3), ylim=(len(rows) - 0.5, -0.9))
    axes.set_yticks(range(len(rows)), list(rows))
    axes.figure.legend(fontsize=9, loc="outside lower center", ncols=len(labels))


def _mark_rounds(axes: "Axes", rounds: Sequence[Span]) -> None:
    """Each round's beginning as a line, its number and what it committed above."""
    for one in rounds:
        begun_ms = (one.start_s - rounds[0].start_s) * 1e3
        axes.axvline(begun_ms, color="black", linewidth=0.8, linestyle=":")
        text = one.label.removeprefix("round ")
        axes.text(begun_ms + _length(one) * 500, -0.66, text, ha="center", va="center", fontsize=9)
