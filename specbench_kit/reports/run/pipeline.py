"""What a report says of a pipeline's steps."""

from specbench_kit.metrics.rounds import Metrics
from specbench_kit.papers.specpipe import GAINS
from specbench_kit.reports.writing.formatting import count, seconds, share, significant, times
from specbench_kit.reports.writing.markup import table


def pipeline_section(run: Metrics, summary: Metrics) -> str:
    """The part of a report; nothing where the method filled no pipeline."""
    found = summary.get("pipeline")
    if not found:
        return ""
    rows = [
        ("stages", count(found["stages"])),
        *((f"time between tokens (TBT), {name}", seconds(found["tbt"][name])) for name in ("mean", "p50", "p95")),
        *_gain(summary),
        ("hit rate: tree levels that held the true token", share(found["hit_rate"])),
        ("steps per token, counted", significant(found["steps_per_token"])),
        ("1 + (1 - hit rate) x (stages - 1)", significant(found["expected_steps_per_token"])),
        ("SpecPipe's Eq. 2: 1 + (1 - hit rate) x stages", significant(found["published_steps_per_token"])),
        ("steps", count(found["steps"])),
        ("steps without a token", _stalls(found)),
        *((f"{phase}, per step", seconds(busy_s)) for phase, busy_s in found["step_s"].items() if busy_s),
    ]
    return "\n\n".join(["## Pipeline", _where(run), table(["", ""], rows)])


def _where(run: Metrics) -> str:
    """What stood for the stages."""
    if run.get("time_kind") == "modelled":
        return "All stages work side by side in the deployment's modelled time."
    if (run.get("config") or {}).get("launch") == "processes":
        return "Every stage was a process of its own."
    return "One process stood for all stages, one after the other, so **the measured times are not a pipeline's**."


def _gain(summary: Metrics) -> list[tuple[str, str]]:
    """How many times longer plain decoding in the same place takes per token, beside what the paper found."""
    own_s, baseline = summary["pipeline"]["tbt"]["mean"], summary.get("baseline")
    plain_s = baseline["overall"]["itl"]["mean"] if baseline else None
    if not own_s or not plain_s:
        return []
    least, most = GAINS["autoregressive"]
    return [(f"TBT of autoregressive over this; SpecPipe's paper has {least:g} to {most:g}x", times(plain_s / own_s))]


def _stalls(found: Metrics) -> str:
    gaps = found["stalls"] - found["stalls_of_fills"]
    return (
        f"{count(found['stalls'])}: {count(found['stalls_of_fills'])} to fill it {count(found['fills'])} times, "
        f"{count(gaps)} behind a gap in the tree"
    )
