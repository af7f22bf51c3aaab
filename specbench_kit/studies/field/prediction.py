"""Predicts a published table: one server under its engine, with requests in flight or at a rate."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

from specbench_kit.core.errors import require
from specbench_kit.core.option import OptionValues, from_keywords
from specbench_kit.decoding.latency import sums_of
from specbench_kit.deployments.description import corners
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.serving.lengths import longest, parse_lengths, shortest
from specbench_kit.serving.metrics import compute_metrics
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.studies.field.summary import FieldCell, FieldResult
from specbench_kit.studies.field.tables import FieldTable
from specbench_kit.studies.serving.scenario_builder import ScenarioBuilder
from specbench_kit.studies.serving.settings import PLAIN, ServingSettings

NO_DRAFTS = "iid:alpha=0.5,length=0"
"""The acceptance where nothing is drafted."""
BESIDE = "server"
"""The system whose server drafts."""
RESPONSES = 4
"""Responses of each place that a closed loop simulates, the first of which does not count."""
AT_RATE_S = 300.0
"""Simulated seconds of requests that arrive at a rate."""
WITHOUT = "plain_"
TYPICAL = ""
Figures = dict[str, float]
"""What a server does at one load, by name."""
Place = tuple[str, float]
"""A series and a load."""


class TablePrediction:
    """Predicts the cells of one table; decoding without drafts is simulated once for equal settings."""

    def __init__(self, table: FieldTable, replaced: tuple[str, ...] = ()) -> None:
        self._table = table
        self._replaced = replaced
        self._plain: dict[tuple[str, str, str, float], dict[str, Figures]] = {}
        self.break_even: dict[str, float] = {}

    def result(self, report: Callable[[int, int], None]) -> FieldResult:
        """Return the table with its predictions."""
        table = self._table
        named = dict.fromkeys(numbers.series for numbers in table.measured)
        places = [(series, load) for series in named for load in table.loads]
        report(0, len(places))
        found: dict[Place, dict[str, Figures]] = {}
        for place in places:
            found[place] = self._figures(*place)
            report(len(found), len(places))
        cells = [
            FieldCell(
                numbers.series,
                load,
                numbers.metric,
                float(value),
                *_over_range(found[numbers.series, load], numbers.metric),
                numbers.role,
            )
            for numbers in table.measured
            for load, value in zip(table.loads, numbers.values, strict=True)
            if value is not False
        ]
        return FieldResult(
            title=table.title,
            source=table.source,
            setting=table.setting,
            deployment=table.deployment,
            loads="requests in flight" if table.requests else "requests per second",
            inputs=table.inputs,
            cells=cells,
            causes=table.causes,
            blind=table.blind,
            break_even=self.break_even,
        )

    def _figures(self, series: str, load: float) -> dict[str, Figures]:
        """Return figures with and without speculation, as derived and at the ends of the range."""
        own = self._table.series[series]
        speculating = self._simulated(series, load, own.method, own.acceptance_at(load))
        key = (own.deployment, *self._table.lengths(series), load)
        if key not in self._plain:
            self._plain[key] = self._simulated(series, load, BASELINE, NO_DRAFTS)
        figures: dict[str, Figures] = {}
        for end, with_drafts in speculating.items():
            without = self._plain[key].get(end, self._plain[key][TYPICAL])
            figures[end] = {
                **with_drafts,
                **{f"{WITHOUT}{name}": value for name, value in without.items()},
                "speedup": with_drafts["throughput"] / without["throughput"],
                **{
                    name.replace("_s", "_ratio"): without[name] / with_drafts[name]
                    for name in ("response_p50_s", "response_p99_s")
                    if name in without and name in with_drafts
                },
            }
        typical = figures[TYPICAL]
        self.break_even[f"{series} at {load:g}"] = typical["acceptance_length"] / typical["speedup"]
        return figures

    def _simulated(
        self, series: str, load: float, method: str, acceptance: str
    ) -> dict[str, Figures]:
        settings = self._settings(series, load, method, acceptance)
        (point,) = settings.points()
        scenario = self._timed(series, load, ScenarioBuilder(settings).scenario(point))
        ends = {TYPICAL: scenario.deployment, **dict(corners(scenario.deployment))}
        return {
            end: _figures(replace(scenario, deployment=deployment))
            for end, deployment in ends.items()
        }

    def _settings(self, series: str, load: float, method: str, acceptance: str) -> ServingSettings:
        table = self._table
        in_flight = bool(table.requests)
        prompt, output = table.lengths(series)
        own = table.series[series]
        values: OptionValues = {
            "system": (BESIDE if method != BASELINE else PLAIN,),
            "method": (method,),
            "scheduler": (f"chunked:tokens={table.step_tokens}",),
            "acceptance": (acceptance,),
            "deployment": (own.deployment or table.deployment,),
            "replaced": self._replaced,
            "prompt_tokens": prompt,
            "output_tokens": output,
            "max_batch": table.max_batch,
            "kv_tokens": own.kv_tokens or table.kv_tokens
            if method != BASELINE
            else table.kv_tokens,
            "devices": (int(load),) if in_flight else (),
            "arrivals": "closed" if in_flight else f"poisson:rate_per_s={load:g}",
            "seeds": 1,
            "duration_s": AT_RATE_S,
            "warmup_s": AT_RATE_S / 6,
            "slo": ("1/s",),
            "jobs": 1,
        }
        return from_keywords(ServingSettings, values)

    def _timed(self, series: str, load: float, scenario: Scenario) -> Scenario:
        """Return the scenario with a duration in which every place of a closed loop answers several
        requests.
        """
        scenario = replace(scenario, require_attainable_slo=False)
        if not self._table.requests:
            return scenario
        prompt, output = map(_mean, self._table.lengths(series))
        memory = scenario.memory.tokens
        held = inf if memory == inf else max(1.0, memory // (prompt + output))
        in_flight = int(min(load, scenario.max_batch, held))
        verifier = scenario.deployment.verifier
        step_s = verifier.of_sums(sums_of([(1, int(prompt + output / 2))] * in_flight))
        response_s = output * step_s + in_flight * verifier.pass_s(((int(prompt), 0),))
        duration_s = RESPONSES * response_s * max(1.0, load / in_flight)
        return replace(scenario, duration_s=duration_s, warmup_s=duration_s / RESPONSES)


def _over_range(figures: dict[str, Figures], metric: str) -> tuple[float, float, float]:
    """Return a figure as derived, and the least and the greatest over all ends."""
    values = [of_end[metric] for of_end in figures.values() if metric in of_end]
    return figures[TYPICAL][metric], min(values), max(values)


def _mean(lengths: str) -> float:
    parsed = parse_lengths(lengths)
    return (shortest(parsed) + longest(parsed)) / 2


def _figures(scenario: Scenario) -> Figures:
    overall = compute_metrics(scenario, simulate(scenario, 0), "tpot").overall
    require(bool(overall.throughput), "nothing was decoded in the simulated time")
    figures = {"throughput": overall.throughput, "acceptance_length": overall.acceptance_length}
    if overall.response_s is not None:
        figures["response_p50_s"] = overall.response_s.p50
        figures["response_p99_s"] = overall.response_s.p99
    if overall.ttft_s is not None:
        figures["ttft_p50_s"] = overall.ttft_s.p50
    if overall.tpot_s is not None:
        figures["tpot_s"] = overall.tpot_s.mean
    return {name: value for name, value in figures.items() if value is not None}
