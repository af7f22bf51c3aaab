"""Measure specpipe: hit rate by width, time between tokens in a modelled pipeline, cost of the bookkeeping."""

from collections.abc import Mapping

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Runners, Setting, over_rounds
from benchmarks.loop_overhead import Stopwatch
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.pipeline import (
    expected_steps,
    published_steps,
    summarise_pipeline,
    time_between_tokens,
)
from specbench_kit.metrics.rounds import Metrics
from specbench_kit.papers.quoted import SPECPIPE_GAINS

DEPLOYMENT = "specpipe"
WIDTHS = (1, 4, 16, 64)
SPECPIPE, SPECINFER = "specpipe", "specinfer"
STAGES = 8


def run(setting: Setting) -> Outcome:
    """Decode in modelled time; bookkeeping, all but model forwards, is timed in one process for all stages."""
    runners, deployment = _runners(setting), find(DEPLOYMENT).build()
    specs = {width: f"{SPECPIPE}:width={width}" for width in WIDTHS}
    methods = (AUTOREGRESSIVE, SPECINFER, *specs.values())
    runs = {
        spec: setting.decode(runners, spec, setting.requests, deployment=deployment)[0]
        for spec in methods
    }
    steps = {width: summarise_pipeline(runs[spec], STAGES) for width, spec in specs.items()}
    tbt_s = {spec: time_between_tokens(records)["mean"] for spec, records in runs.items()}
    figures = [
        *_hit_rates(steps),
        *(
            Figure(f"time between tokens, {spec}", 1e3 * seconds, "ms")
            for spec, seconds in tbt_s.items()
        ),
        *(
            Figure(f"{base} over {spec}", tbt_s[base] / tbt_s[spec], "x", Bound(least=1))
            for base, spec in _pairs(specs)
        ),
        _bookkeeping(setting, runners),
    ]
    notes = [
        f"SpecPipe's paper: {low:g} to {high:g} x over {base}"
        for base, (low, high) in SPECPIPE_GAINS.items()
    ]
    return Outcome(
        f"specpipe in {STAGES} stages, time as in the deployment {DEPLOYMENT}", figures, notes
    )


def _pairs(specs: Mapping[int, str]) -> list[tuple[str, str]]:
    return [(base, specs[width]) for width in (16, 64) for base in SPECPIPE_GAINS]


def _hit_rates(steps: Mapping[int, Metrics]) -> list[Figure]:
    figures: list[Figure] = []
    narrower = None
    for width, summary in steps.items():
        rate = summary["hit_rate"]
        laws = f"{expected_steps(STAGES, rate):.2f} by the law, {published_steps(STAGES, rate):.2f} by Eq. 2"
        figures.append(Figure(f"width {width}: hit rate", 100 * rate, "%", narrower))
        figures.append(
            Figure(f"width {width}: steps per token ({laws})", summary["steps_per_token"], "")
        )
        narrower = Bound(least=100 * rate)
    return figures


def _runners(setting: Setting) -> Runners:
    pipeline = parse_method(SPECPIPE).pipeline
    assert pipeline is not None
    return setting.runners(
        setting.executor_names[0], max_new_tokens=setting.max_new_tokens + pipeline.nodes
    )


def _bookkeeping(setting: Setting, runners: Runners) -> Figure:
    stopwatches = [Stopwatch(runner.executor) for runner in runners]
    shares = []
    for _ in range(setting.rounds):
        before_s = sum(stopwatch.seconds for stopwatch in stopwatches)
        records, _ = setting.decode(runners, SPECPIPE, setting.requests)
        decoding_s = sum(record.e2e_s or 0.0 for record in records)
        forwards_s = sum(stopwatch.seconds for stopwatch in stopwatches) - before_s
        shares.append(100 * (1 - forwards_s / decoding_s))
    return over_rounds(f"bookkeeping at width {WIDTHS[-1]}", shares, "%", Bound(most=15))
