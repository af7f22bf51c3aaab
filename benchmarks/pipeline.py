"""specpipe on the pair: hit rate by width, time between tokens in a modelled pipeline, cost of the bookkeeping."""

from collections.abc import Mapping, Sequence

from benchmarks.common import AUTOREGRESSIVE, Bound, Figure, Outcome, Runners, Setting, over_rounds
from benchmarks.loop_overhead import TimedExecutor
from specbench_kit.decoding.engine import live_engine
from specbench_kit.decoding.pipeline_time import expected_steps, published_steps
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import find
from specbench_kit.methods.spec import parse_method
from specbench_kit.papers.specpipe import GAINS
from specbench_kit.reports.metrics import Metrics
from specbench_kit.reports.pipeline import summarise_pipeline, time_between_tokens

DEPLOYMENT = "specpipe"
WIDTHS = (1, 4, 16, 64)
SPECPIPE, SPECINFER = "specpipe", "specinfer"
STAGES = 8


def run(setting: Setting) -> Outcome:
    """Bookkeeping is everything but model forwards, measured on this machine with one process for all stages."""
    runners, deployment = _runners(setting), find(DEPLOYMENT).build()
    specs = {width: f"{SPECPIPE}:width={width}" for width in WIDTHS}
    runs = {spec: _decode(setting, runners, spec, deployment) for spec in (AUTOREGRESSIVE, SPECINFER, *specs.values())}
    steps = {width: summarise_pipeline(runs[spec], STAGES) for width, spec in specs.items()}
    tbt_s = {spec: time_between_tokens(records)["mean"] for spec, records in runs.items()}
    figures = [
        *_hit_rates(steps),
        *(Figure(f"time between tokens, {spec}", 1e3 * seconds, "ms") for spec, seconds in tbt_s.items()),
        *(
            Figure(f"{base} over {spec}", tbt_s[base] / tbt_s[spec], "x", Bound(least=1))
            for base, spec in _pairs(specs)
        ),
        _bookkeeping(setting, runners),
    ]
    notes = [f"SpecPipe's paper: {least:g} to {most:g} x over {base}" for base, (least, most) in GAINS.items()]
    return Outcome(f"specpipe in {STAGES} stages, time as in the deployment {DEPLOYMENT}", figures, notes)


def _pairs(specs: Mapping[int, str]) -> list[tuple[str, str]]:
    return [(base, specs[width]) for width in (16, 64) for base in GAINS]


def _hit_rates(steps: Mapping[int, Metrics]) -> list[Figure]:
    figures, least = [], 0.0
    for width, found in steps.items():
        rate = found["hit_rate"]
        laws = f"{expected_steps(STAGES, rate):.2f} by the law, {published_steps(STAGES, rate):.2f} by Eq. 2"
        figures.append(Figure(f"width {width}: hit rate", 100 * rate, "%", Bound(least=100 * least)))
        figures.append(Figure(f"width {width}: steps per token ({laws})", found["steps_per_token"], ""))
        least = rate
    return figures


def _runners(setting: Setting) -> Runners:
    pipeline = parse_method(SPECPIPE).pipeline
    assert pipeline is not None
    return setting.runners(setting.executor_names[0], max_new_tokens=setting.max_new_tokens + pipeline.nodes)


def _decode(
    setting: Setting, runners: Runners, spec: str, deployment: Deployment | None = None
) -> Sequence[RequestRecord]:
    ends, records = setting.pair.eos_ids, []
    engine = live_engine(
        parse_method(spec), *runners, sampler=Sampler(), seed=0, eos_ids=ends, batch_size=1, deployment=deployment
    )
    for request in setting.requests:
        engine.submit(request)
    while not engine.idle:
        records += engine.step()
    return records


def _bookkeeping(setting: Setting, runners: Runners) -> Figure:
    stopwatches = [TimedExecutor(runner.executor) for runner in runners]
    for runner, stopwatch in zip(runners, stopwatches, strict=True):
        runner.executor = stopwatch
    shares = []
    for _ in range(setting.rounds):
        before_s = sum(stopwatch.seconds for stopwatch in stopwatches)
        decoding_s = sum(record.e2e_s or 0.0 for record in _decode(setting, runners, SPECPIPE))
        forwards_s = sum(stopwatch.seconds for stopwatch in stopwatches) - before_s
        shares.append(100 * (1 - forwards_s / decoding_s))
    return over_rounds(f"bookkeeping at width {WIDTHS[-1]}", shares, "%", Bound(most=15))
