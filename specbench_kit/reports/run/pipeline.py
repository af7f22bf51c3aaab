"""The section on the steps of a pipeline."""

from specbench_kit.papers.specpipe import GAINS
from specbench_kit.reports.document import Blocks, Heading, Paragraph, facts
from specbench_kit.reports.stored import RunFile, Summary
from specbench_kit.reports.writing.formatting import count, seconds, share, significant, times


def pipeline_section(run: RunFile, summary: Summary) -> Blocks:
    """Return the section, or nothing if the method fills no pipeline."""
    steps = summary.get("pipeline")
    if not steps:
        return []
    stalls = (
        f"{count(steps['stalls'])}: {count(steps['stalls_of_fills'])} to fill the pipeline {count(steps['fills'])} "
        f"times, {count(steps['stalls'] - steps['stalls_of_fills'])} behind a gap in the tree"
    )
    rows = [
        ("stages", count(steps["stages"])),
        *((f"time between tokens (TBT), {name}", seconds(steps["tbt"][name])) for name in ("mean", "p50", "p95")),
        *_gain(summary),
        ("hit rate: tree levels that held the true token", share(steps["hit_rate"])),
        ("steps per token, counted", significant(steps["steps_per_token"])),
        ("1 + (1 - hit rate) x (stages - 1)", significant(steps["expected_steps_per_token"])),
        ("SpecPipe's Eq. 2: 1 + (1 - hit rate) x stages", significant(steps["published_steps_per_token"])),
        ("steps", count(steps["steps"])),
        ("steps without a token", stalls),
        *((f"{phase}, per step", seconds(busy_s)) for phase, busy_s in steps["step_s"].items() if busy_s),
    ]
    return [Heading("Pipeline"), Paragraph(_stages_sentence(run)), facts(rows)]


def _stages_sentence(run: RunFile) -> str:
    if run.get("time_kind") == "modelled":
        return "All stages work in parallel in the deployment's modelled time."
    if (run.get("config") or {}).get("launch") == "processes":
        return "Every stage was a process of its own."
    return "One process ran all stages, one after the other, so **the measured times are not those of a pipeline**."


def _gain(summary: Summary) -> list[tuple[str, str]]:
    """Return how much longer a token of autoregressive decoding takes in this deployment, next to the paper's range."""
    own_s, baseline = summary["pipeline"]["tbt"]["mean"], summary.get("baseline")
    plain_s = baseline["overall"]["itl"]["mean"] if baseline else None
    if not own_s or not plain_s:
        return []
    low, high = GAINS["autoregressive"]
    name = f"TBT of autoregressive decoding over this; {low:g} to {high:g}x in SpecPipe's paper"
    return [(name, times(plain_s / own_s))]
