"""The section that compares drafting beyond a link with the same method co-located with its
target.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from specbench_kit.methods.spec import known_class
from specbench_kit.metrics.vocabulary import BASELINE, MetricValues
from specbench_kit.reports.document import Blocks, Column, Estimate, Heading, Paragraph, Table, code
from specbench_kit.reports.sections.columns import estimate_of
from specbench_kit.reports.writing.formatting import seconds, times
from specbench_kit.runs.deployment import DeploymentDescription

WINDOWS = {
    "rtt_window_s": "beats server-only below",
    "rtt_window_overlapped_s": "with all drafting hidden, below",
    "rtt_window_autoregressive_s": "beats AR, streamed, below",
}
"""The round trips up to which drafting at the edge wins, by metric."""
FOLLOWING_THE_LINK = ("link", "latency-aware", "overlapping", "bandit")
"""Groups of methods whose rounds become others on another link: no round trip follows from the
rounds of one.
"""
RATIOS = {
    "speedup": "speedup at the edge (95%)",
    "colocated_speedup": "server-only (95%)",
    "colocated_ratio": "edge / server-only",
}
COLUMNS = (
    *(Column(title, "times") for title in RATIOS.values()),
    *(Column(title, "seconds") for title in WINDOWS.values()),
    Column("capacity factor", "number"),
)
NOTE = (
    "Server-only: the same rounds with draft and target both at the server, which streams its tokens, so that a "
    "request crosses the link only once and tokens that were drafted during verification are drafted after it. The "
    "round-trip times follow in closed form from this run's durations, all else unchanged; 0 means that the edge never "
    "wins, and – that the method's rounds become others on another link, so that only `skit sweep` tells. The capacity "
    "factor: a busy server keeps up with this many times as many clients if they draft for "
    'themselves, even where a single request gains nothing from the edge ("Speculation at a Distance", '
    "arXiv 2606.25091)."
)
CAPACITY_NOTE = (
    "The capacity factor is 1 + drafting time / verifying time of a server at this batch size, for the rounds of this "
    "method. It knows no promise, no waiting and no link. Longer drafts raise it, and larger batches lower it, since "
    "verification then takes longer and a step of drafting hardly does. `skit plan` therefore finds a smaller gain: it "
    "simulates the batches that form on a full replica, and gives each way to decode the method that serves most "
    "devices within the promise."
)
"""Why the capacity factor is not what a plan gains from devices that draft."""
LIVE_NOTE = (
    "Server-only: the same requests, decoded by the server with the same method and a draft model of its own, and "
    "streamed. The capacity factor: a busy server keeps up with this many times as many clients if they draft for "
    "themselves."
)


def has_edge(overall: MetricValues) -> bool:
    """Return True if a method's metrics compare an edge with a co-located draft model."""
    return overall.colocated_ratio is not None


def section(
    methods: Mapping[str, MetricValues], deployment: DeploymentDescription | None
) -> Blocks:
    """Return the section, with a row for each label in `methods` that drafted beyond a link."""
    rows = [
        [code(label), *cells(label, overall)]
        for label, overall in methods.items()
        if has_edge(overall)
    ]
    if not rows:
        return []
    table = Table(("method", *COLUMNS), rows).without_empty_columns()
    if deployment is None:
        return [Heading("Edge or server-only"), table, Paragraph(LIVE_NOTE)]
    return [
        Heading("Edge or server-only (modelled)"),
        table,
        Paragraph(f"{NOTE} {assumption(deployment)}"),
    ]


def assumption(deployment: DeploymentDescription) -> str:
    """Return in a sentence how fast the draft model is taken to be on the server."""
    if deployment.colocated:
        return f"On the server, the draft model runs on {deployment.colocated.device}."
    return "Lacking data, we assume that the draft model runs as fast on the server as at the edge."


def cells(label: str, overall: MetricValues) -> list[Estimate | float | None]:
    """Return a method's cells below `COLUMNS`."""
    ratios = [estimate_of(overall, name) for name in RATIOS]
    return [*ratios, *windows(label, overall), overall.capacity_factor]


def windows(label: str, overall: MetricValues) -> list[float | None]:
    """Return the round trips up to which drafting at the edge wins; None where they do not follow
    from the rounds.
    """
    return [None if follows_link(label) else overall.value(name) for name in WINDOWS]


def follows_link(label: str) -> bool:
    """Return whether a method's rounds become others on another link, as its label names it."""
    method = known_class(label.strip("`").partition(" ")[0])
    return method is not None and method.group in FOLLOWING_THE_LINK


def cautions(label: str, overall: MetricValues) -> list[str]:
    """Return a line if a server that holds both models would be faster than drafting at the
    edge.
    """
    ratio = overall.colocated_ratio
    if ratio is None or ratio >= 1:
        return []
    factor = times(1 / ratio)
    rtt_s = None if follows_link(label) else overall.rtt_window_s
    if rtt_s is None:
        return [
            f"SERVER-ONLY IS FASTER: drafting at the server as well, {label} was {factor} as fast: the edge costs time "
            "here."
        ]
    window = f"only below a round trip of {seconds(rtt_s)}" if rtt_s else "at no round-trip time"
    return [
        f"SERVER-ONLY IS FASTER: beside the server the same draft model would make {label} {factor} as fast as at the "
        f"edge: the edge costs time here, and drafting there wins {window}."
    ]


@dataclass(frozen=True, slots=True)
class AtServer:
    """The method that is the fastest with its draft model on the server, the one that is the
    fastest with it at the edge, and their speedups over autoregressive decoding.
    """

    method: str
    speedup: float
    rival: str
    rival_speedup: float

    @property
    def gain(self) -> float:
        """How many times as fast the former is."""
        return self.speedup / self.rival_speedup


def best_at_server(rows: Iterable[tuple[str, MetricValues]]) -> AtServer | None:
    """Return the fastest of these methods with draft models on the server, if it is faster than
    what is fastest with them at the edge, autoregressive decoding included.
    """
    beside: dict[str, float] = {}
    # Where no method pays at the edge, autoregressive decoding is the fastest there.
    edge = {BASELINE: 1.0}
    for label, overall in rows:
        if has_edge(overall) and overall.colocated_speedup is not None:
            beside[label] = overall.colocated_speedup
        if overall.speedup is not None:
            edge[label] = overall.speedup
    if not beside:
        return None
    method = max(beside, key=beside.__getitem__)
    rival = max(edge, key=edge.__getitem__)
    found = AtServer(method, beside[method], rival, edge[rival])
    return found if found.gain > 1 else None


def server_only(
    found: Sequence[AtServer], points: int, deployment: DeploymentDescription | None
) -> list[str]:
    """Return a line if draft models on the server would be faster than any at the edge: at so many
    of the points of a grid, or for the one table of a benchmark, whose methods are named.
    """
    if not found:
        return []
    best = max(found, key=lambda one: one.gain)
    of_grid = points > 1
    where = f" at {len(found)} of {points} points" if of_grid else ""
    method = "" if of_grid else f" ({code(best.method)}, {times(best.speedup)})"
    rival = "" if of_grid else f" ({code(best.rival)}, {times(best.rival_speedup)})"
    return [
        f"SERVER-ONLY IS FASTER{where}: with draft models on the server the fastest method{method} is "
        f"{'up to ' if of_grid else ''}{times(best.gain)} as fast as what is fastest with them at the edge{rival}, "
        "autoregressive decoding included." + (f" {assumption(deployment)}" if deployment else "")
    ]
