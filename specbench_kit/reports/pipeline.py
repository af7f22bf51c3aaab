"""What a pipeline did with its steps: the numbers, and their part of a report."""

from collections.abc import Sequence

from specbench_kit.decoding.pipeline.time import expected_steps, published_steps
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.metrics.statistics import ratio_of_sums
from specbench_kit.papers.specpipe import GAINS
from specbench_kit.reports.formatting import count, seconds, share, significant, times
from specbench_kit.reports.markup import table
from specbench_kit.reports.metrics import Group, Metrics, Rounds, distribution, inter_token_gaps, phases


def time_between_tokens(records: Sequence[RequestRecord]) -> Metrics:
    """Mean and percentiles of TBT, in seconds."""
    return distribution(inter_token_gaps(Group(records).rounds))


def summarise_pipeline(records: Sequence[RequestRecord], stages: int) -> Metrics:
    """Hit rate, stalls, steps per token beside what follows from the hit rate, and seconds per step by phase.

    A request's first token comes when the pipeline is full for the first time, so it counts in no steps per token.
    """
    rounds = Group(records).rounds
    steps, tokens, fills = (int(rounds.sum(column)) for column in ("steps", "committed", "rounds"))
    hit_rate = ratio_of_sums(rounds.sum("accepted"), tokens)
    return {
        "stages": stages,
        "hit_rate": hit_rate,
        "tbt": time_between_tokens(records),
        "steps": steps,
        "fills": fills,
        "stalls": steps - tokens,
        "stalls_of_fills": fills * (stages - 1),
        "steps_per_token": ratio_of_sums(steps - rounds.requests * stages, tokens - rounds.requests),
        "expected_steps_per_token": None if hit_rate is None else expected_steps(stages, hit_rate),
        "published_steps_per_token": None if hit_rate is None else published_steps(stages, hit_rate),
        "step_s": {phase: ratio_of_sums(busy_s, steps) for phase, busy_s in _busy_s(rounds).items()},
    }


def _busy_s(rounds: Rounds) -> Metrics:
    """Seconds by phase, without the draft model's prompts, which are no steps."""
    return {phase: busy_s for phase, busy_s in phases(rounds)["phase_seconds"].items() if phase != "prefill"}


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
