"""Sentences and cells that a simulation's report shares with the terminal."""

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.core.typed_json import convert
from specbench_kit.datasets.description import DatasetDescription
from specbench_kit.metrics.vocabulary import Percentiles, Unit
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports.document import Cell, Column, Estimate, code
from specbench_kit.reports.sections.cautions import (
    TOY_PAIR,
    is_toy,
    other_deployments,
    predictor_cautions,
)
from specbench_kit.reports.sections.wording import outcome
from specbench_kit.reports.writing.formatting import (
    ABSENT,
    count,
    seconds,
    share,
    significant,
    span,
    times,
)
from specbench_kit.runs.document import PreparedInputs, RunDescription, TraceReference
from specbench_kit.serving.figures import (
    AXES,
    FEWEST_SEEDS,
    AxisValue,
    Interval,
    SearchedRow,
    ServingPoint,
    SimulatedRow,
    is_higher,
    varied,
)
from specbench_kit.serving.golden import golden_curves
from specbench_kit.serving.schedulers.base import schedulers
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.serving.summary import (
    CapacitySummary,
    RecordedAcceptance,
    SeriesDescription,
    ServingConfig,
    ServingDescription,
    ServingSummary,
    SimulationSummary,
    axis_values,
    point_in_words,
)

NOT_AT_HAND = "not at hand"
GOLDEN = "golden:"
"""The beginning of an acceptance that is a published mean."""
MOST_WAITING = 0.02
"""Share of the time of responses, from which on it is said that they wait for devices."""
NO_WAIT = Interval(0.0)
MOST_EVICTIONS = 2.0
"""Evictions of KV per finished response from which on a server thrashes; real servers with
preemption have under 1.
"""


def estimate(figure: Interval | None) -> Estimate | None:
    """Return a figure's mean over seeds with its interval."""
    return None if figure is None else Estimate(figure.mean, figure.bounds)


def mean_of(percentiles: Percentiles[Interval] | None) -> Interval | None:
    """Return the mean of a quantity; None if nothing of the kind happened."""
    return percentiles.mean if percentiles else None


def p95_of(percentiles: Percentiles[Interval] | None) -> Interval | None:
    """Return the 95th percentile of a quantity; None if nothing of the kind happened."""
    return percentiles.p95 if percentiles else None


def estimate_text(figure: Interval | None, unit: Unit = "number") -> str:
    """Return a figure's mean with its interval as text."""
    return Column(unit=unit).text(estimate(figure))


def seeds_in_words(config: ServingConfig) -> str:
    """Return how many seeds were simulated, as `1 seed` or `5 seeds`."""
    return f"{config.seeds} {'seed' if config.seeds == 1 else 'seeds'}"


def capacity(row: SearchedRow) -> str:
    """Return the capacity of a row with its unit."""
    return (
        f"{estimate_text(row.capacity, 'count' if row.unit == 'devices' else 'number')} {row.unit}"
    )


def servers(entry: SeriesDescription) -> str:
    """Return the verification servers of a series and, if there are several, their router."""
    return entry.servers if entry.servers == "1" else f"{entry.servers}, {entry.router}"


def plain_note(run: ServingDescription, summary: ServingSummary) -> list[str]:
    """Return how to learn what a server serves without drafts, where a search for capacity does
    not say it.
    """
    if isinstance(summary, SimulationSummary) or any(
        entry.drafting == "none" for entry in run.series
    ):
        return []
    return ["Without drafting: name --method autoregressive as well, or --system centralized."]


def acceptance_cautions(run: ServingDescription) -> list[str]:
    """Return what limits the acceptance that a simulation goes by."""
    lines: list[str] = []
    for entry in run.series:
        if entry.recorded is not None:
            lines += _recorded_cautions(run, entry, entry.recorded)
    of_models = [*_other_model_cautions(run), *_golden_cautions(run), *_prompt_cautions(run)]
    return [*dict.fromkeys(lines), *_fixed_cautions(run), *_colocated_cautions(run), *of_models]


def _recorded_cautions(
    run: ServingDescription, entry: SeriesDescription, recorded: RecordedAcceptance
) -> list[str]:
    """Return what a benchmark of a series' method would say of it on the same trace."""
    described = replace(
        RunDescription(models=recorded.models, dataset=recorded.dataset or DatasetDescription()),
        method=entry.method,
        uses=entry.uses,
        seen_prompts=entry.seen_prompts,
        deployment=run.deployments.get(entry.deployment),
        trace=TraceReference(),
    )
    # The models of a trace that was recorded for this run are those of the run, of which the
    # setting tells.
    of_named_trace = entry.acceptance is not None and is_toy(described.models)
    return [
        *([TOY_PAIR] if of_named_trace else []),
        *predictor_cautions(described),
        *other_deployments([described]),
    ]


def _colocated_cautions(run: ServingDescription) -> list[str]:
    """Return one line with the factor of every series that drafts at the edge, if a single request
    of any would be faster with the draft model on the server.
    """
    known = [entry for entry in run.series if entry.colocated_ratio is not None]
    if not any((entry.colocated_ratio or 1) < 1 for entry in known):
        return []
    factors = ", ".join(
        f"{times(1 / (entry.colocated_ratio or 1))} ({entry.label})" for entry in known
    )
    return [
        f"SERVER-ONLY IS FASTER for a request that has the server to itself: {factors} as fast with the "
        "draft model there; what an edge gains is how many devices a busy server serves."
    ]


def _fixed_cautions(run: ServingDescription) -> list[str]:
    """Return a line on every method that decides how far to draft and always drafted as far as it
    may.
    """
    lines = []
    for entry in run.series:
        longest = entry.typical.longest
        from_record = entry.acceptance is None or entry.recorded is not None
        # Drafts at the end of an answer are shorter than a method would have them.
        stopped_by_nothing = entry.typical.submitted > 0.98 * longest > 0
        if (
            from_record
            and stopped_by_nothing
            and _decides(entry.method)
            and not _lets_all_pass(entry)
        ):
            lines.append(
                f"FIXED LENGTH: {entry.label}: {entry.method} drafts {longest:g} tokens in every round here, as "
                f"fixed-k:k={longest:g} does."
            )
    return lines


def _lets_all_pass(entry: SeriesDescription) -> bool:
    """Return True if the predictor's threshold is 0, of which another line tells."""
    predictor = convert(PreparedInputs, entry.uses).predictor
    return predictor is not None and predictor.threshold == 0


def _decides(method: str) -> bool:
    return method.partition(":")[0] not in ("fixed-k", "autoregressive")


def _other_model_cautions(run: ServingDescription) -> list[str]:
    """Return a line for every model whose acceptance stands in for that of another target."""
    labels: dict[tuple[str, str], list[str]] = {}
    for entry in run.series:
        accepted = _model_of_acceptance(entry)
        if (
            entry.drafting != "none"
            and accepted
            and entry.target
            and not is_same_model(accepted, entry.target)
        ):
            labels.setdefault((accepted, entry.target), []).append(entry.label)
    return [
        f"ANOTHER MODEL'S ACCEPTANCE: {'; '.join(map(code, named))}: drafts are right as often as for {accepted}, and "
        f"times are those of {target}, for which nobody has measured it."
        for (accepted, target), named in labels.items()
    ]


def _model_of_acceptance(entry: SeriesDescription) -> str:
    """Return the target whose answers decided what is accepted; nothing where rates are stated."""
    if entry.recorded is not None:
        recorded = entry.recorded.models.get("target")
        return (recorded.name or "") if recorded is not None else ""
    text = str(entry.acceptance)
    if not text.startswith(GOLDEN):
        return ""
    name = text.removeprefix(GOLDEN).partition(",")[0].removeprefix("name=")
    curve = golden_curves().get(name)
    return name if curve is None else curve.summary


def is_same_model(one: str, other: str) -> bool:
    """Return whether two names are of one model, by the letters and digits behind their owners.

    One may say more, as `Qwen/Qwen3-32B-AWQ` does beside `qwen3-32b`.
    """
    names = sorted(
        ("".join(filter(str.isalnum, name.rpartition("/")[2].lower())) for name in (one, other)),
        key=len,
    )
    return names[0] in names[1]


def _prompt_cautions(run: ServingDescription) -> list[str]:
    """Return a line if some servers compute prompts beside running requests, and others let all wait
    for them: that alone makes a third of a speed.
    """
    # A result may name parts of a package that is not installed here.
    known, kinds = systems.all(), schedulers.all()
    named = [(entry, entry.scheduler.partition(":")[0]) for entry in run.series]
    mixes = {
        entry.label: kinds[name].mixes_prompts
        for entry, name in named
        if name in kinds and entry.system in known and known[entry.system].drafting != "edge"
    }
    beside = [label for label, is_mixed in mixes.items() if is_mixed]
    apart = [label for label, is_mixed in mixes.items() if not is_mixed]
    if not beside or not apart:
        return []
    return [
        f"UNLIKE PROMPTS: {', '.join(beside)} computes prompts beside running requests, and in {', '.join(apart)} all "
        "requests wait for every prompt, so that they differ by more than drafts: give --scheduler chunked for all."
    ]


def _golden_cautions(run: ServingDescription) -> list[str]:
    """Return a line on the series whose acceptance is a published mean."""
    named = [entry.label for entry in run.series if str(entry.acceptance).startswith(GOLDEN)]
    if not named:
        return []
    return [
        f"GOLDEN ACCEPTANCE: {', '.join(named)}: how often drafts are right is one published mean without an interval, "
        "of other prompts and one drafter; it cannot rank policies, which differ in which tokens they send."
    ]


def cautions(summary: ServingSummary) -> list[str]:
    """Return what a reader must know before quoting a number, beyond what holds for every modelled
    run.
    """
    if isinstance(summary, SimulationSummary):
        return [
            *derived_range(summary),
            *unsteady(summary),
            *livelocks(summary),
            *thrashing(summary),
            *waiting(summary),
        ]
    lines = []
    for row in summary.rows:
        where = f"{row.series}, {slo_in_words(row.slo)}"
        if row.refused:
            lines.append(f"REFUSED: {where}: {row.refused}.")
        if row.bounded:
            lines.append(f"AT LEAST: {where}: even the highest load was served.")
        if row.monotone is False:
            lines.append(
                f"NOT MONOTONE: {where}: a load was served although a lower one was not; the capacity is the highest "
                "load that was served."
            )
        if row.steady is not None and row.steady < 1:
            lines.append(
                f"NOT STEADY: {where}: {share(1 - row.steady)} of the runs still drifted after twice their time and "
                "count as not served; simulate for longer."
            )
    return [*lines, *derived_capacities(summary)]


ONE_SEED_AT_ENDS = "One seed was run at each end."


def derived_range(summary: SimulationSummary) -> list[str]:
    """Return one line on what the figures may be where times are derived, at each series' last
    point.
    """
    last = {row.series: row for row in summary.ranges}
    if not last:
        return []
    throughputs = {(row.series, row.place): row.figures.overall.throughput for row in summary.rows}
    parts = []
    for series, row in last.items():
        low, high = row.throughput or (0.0, 0.0)
        late = ""
        if row.violation_rate is not None:
            late = f" with {' to '.join(dict.fromkeys(map(share, row.violation_rate)))} late"
        part = f"{series} {span(significant(low), significant(high))} tokens/s{late}"
        if row.throughput_ratio:
            pair = [throughputs.get((name, row.place)) for name in (series, str(row.against))]
            part += f", {_ratio_over_range(row.throughput_ratio, str(row.against), pair)}"
        parts.append(part)
    devices = next(iter(last.values())).devices
    return [
        f"DERIVED TIMES: what profiles, host and interconnects may be leaves, at {devices} devices: "
        f"{'; '.join(parts)}. {ONE_SEED_AT_ENDS}"
    ]


def _ratio_over_range(
    ratio: tuple[float, float], against: str, pair: Sequence[Interval | None]
) -> str:
    """Return a ratio of two series over the range of derived times, and whether a verdict on the
    pair holds there.

    Where the seeds show no difference between the pair, there is no verdict that could hold or
    fail.
    """
    low, high = ratio
    is_one_sided = low > 1 or high < 1
    one, other = pair
    is_shown = (
        one is not None and other is not None and (is_higher(one, other) or is_higher(other, one))
    )
    if is_shown:
        holds = (
            "over the whole range" if is_one_sided else "the verdict does not hold over the range"
        )
    else:
        holds = (
            "seeds show no difference" if is_one_sided else "no difference is shown there either"
        )
    return f"{span(times(low), times(high))} {against} ({holds})"


def derived_capacities(summary: CapacitySummary) -> list[str]:
    """Return one line on what the capacities of the best series may be where times are derived."""
    if not summary.ranges:
        return []
    named = [axis for axis in AXES[1:] if axis in varied(summary.rows)]
    capacities = {(row.series, row.place): row.capacity for row in summary.rows}
    parts = []
    for row in summary.ranges:
        show = count if row.unit == "devices" else significant
        low, high = map(show, row.capacity)
        where = f" at {point_in_words(row, named)}" if named else ""
        part = f"{row.series} {span(low, high)} {row.unit}{where}"
        if row.capacity_ratio:
            pair = [capacities.get((name, row.place)) for name in (row.series, str(row.against))]
            part += f", {_ratio_over_range(row.capacity_ratio, str(row.against), pair)}"
        parts.append(part)
    others = sum(not row.refused for row in summary.rows) - len(summary.ranges)
    more = (
        f"; {others} more {'was' if others == 1 else 'were'} not searched at the ends"
        if others > 0
        else ""
    )
    return [
        f"DERIVED TIMES: what profiles, host and interconnects may be leaves {'; '.join(parts)}{more}. "
        f"{ONE_SEED_AT_ENDS}"
    ]


def unsteady(summary: SimulationSummary) -> list[str]:
    """Return a line on the points whose throughput drifted."""
    drifting = [row for row in summary.rows if not row.figures.steady.steady]
    if not drifting:
        return []
    names = ", ".join(
        dict.fromkeys(f"{row.series} at {row.devices} devices" for row in drifting[:4])
    )
    more = f" and {len(drifting) - 4} more" if len(drifting) > 4 else ""
    return [
        f"NOT STEADY: the throughput of the two halves differs by more than 5% for {names}{more}; simulate for longer, "
        "or take the server as overloaded or unevenly loaded."
    ]


def waiting(summary: SimulationSummary) -> list[str]:
    """Return a line on the point at which requests waited longest for a device, if they did to
    speak of.
    """
    shares = {id(row): (row.figures.device_wait_share or NO_WAIT).mean for row in summary.rows}
    row = max(summary.rows, key=lambda one: shares[id(one)])
    if shares[id(row)] <= MOST_WAITING:
        return []
    return [
        f"TOO FEW DEVICES: {row.series} at {row.devices} devices: requests spend {share(shares[id(row)])} of their "
        "time waiting for a device that is busy with an earlier one, which is in their latencies; leave out --devices "
        "for as many as the arrivals need, or raise it."
    ]


def livelocks(summary: SimulationSummary) -> list[str]:
    """Return a line for each point at which requests waited at an idle server for longer than it
    worked.
    """
    lines = []
    for row in summary.rows:
        server = row.figures.server
        idle_s = server.idle_while_waiting_s.mean
        if idle_s > 60 and server.utilisation.mean < 0.5:
            lines.append(
                f"LIVELOCK: {row.series} at {row.devices} devices: requests waited at an idle server for "
                f"{seconds(idle_s)}, and the scheduler returned no batch {count(server.refusals.mean)} times."
            )
    return lines


def thrashing(summary: SimulationSummary) -> list[str]:
    """Return a line for each point at which KV was evicted more often than responses finished."""
    lines = []
    for row in summary.rows:
        evictions = row.figures.server.evictions_per_response.mean
        if evictions > MOST_EVICTIONS:
            lines.append(
                f"THRASHING: {row.series} at {row.devices} devices evicted KV {count(evictions)} times per finished "
                "response, and computed it again each time; give it more memory or fewer devices."
            )
    return lines


BUSY = (
    "Busy is the share of time in which a server verifies anything: a batch of one as well as a full one. A server "
    "that is always busy keeps its promises for as long as larger batches still end in time; `skit capacity` finds how "
    "many devices that is."
)
ALWAYS_BUSY = 0.9
"""Share of time from which on a reader may take a server for overloaded."""
FEW_LATE = 0.05
"""Share of broken promises below which it is not."""


def busy_note(summary: ServingSummary) -> list[str]:
    """Return what busy means if a server is nearly always busy and yet keeps its promises; nothing
    elsewhere.
    """
    if not isinstance(summary, SimulationSummary):
        return []
    for row in summary.rows:
        late = row.figures.overall.violation_rate
        if (
            row.figures.server.utilisation.mean >= ALWAYS_BUSY
            and late is not None
            and late.mean < FEW_LATE
        ):
            return [BUSY]
    return []


def guard_sentence(guard: ServingPoint) -> str:
    """Return which guard time compensates for a wrong estimator."""
    error = f"times {guard.estimator_factor:g}, noise {guard.estimator_noise:g}"
    subject = f"{guard.series}, {slo_in_words(guard.slo)}, estimator {error}"
    if guard.guard_s is None:
        return f"{subject}: no guard time that was tried compensates for it."
    return f"{subject}: a guard time of {guard.guard_s:g} s compensates for it."


PUBLISHED_COLUMNS = (
    "system",
    "at",
    "metric",
    "published",
    "simulated (95%)",
    "simulated / published",
)


def ratio_columns(against: str) -> list[str]:
    """Return the titles of the columns that compare the ratios between series."""
    return [f"published {against} / series", f"simulated {against} / series", "ratio of ratios"]


def published_cells(pair: ComparedNumber) -> list[Cell]:
    """Return published and simulated number, their ratio, then the ratios to the reference series
    and theirs.
    """
    column = Column(unit=unit_of(pair))
    published = f"{pair.bound} {column.text(pair.value)}".strip()
    simulated = Estimate(pair.simulated.mean, pair.simulated.bounds) if pair.simulated else None
    ratios = pair.ratio_of_ratios
    factors = (ratios.published, ratios.simulated, ratios.ratio) if ratios else (None, None, None)
    return [
        pair.series,
        axis_values(pair.where) or ABSENT,
        metric_name(pair.metric),
        NOT_AT_HAND if pair.value is None else published,
        column.text(simulated),
        outcome(pair),
        *map(times, factors),
    ]


def unit_of(pair: ComparedNumber) -> Unit:
    """Return the unit of a published figure, by its name."""
    name = pair.metric.removesuffix(".mean")
    return "share" if name.endswith("_rate") else "seconds" if name.endswith("_s") else "number"


def metric_name(path: str) -> str:
    """Return a path such as figures.overall.violation_rate in words."""
    parts = [
        part.removesuffix("_s")
        for part in path.split(".")
        if part not in ("figures", "overall", "mean")
    ]
    return " ".join(parts).replace("_", " ").replace("classes", "class")


def winners(run: ServingDescription, summary: ServingSummary) -> list[str]:
    """Return a sentence on the best of several series, for every promised speed and other setting
    of a search.

    Of simulations it is the one under the highest load.
    """
    few = too_few_seeds(run.config.seeds)
    named = varied(summary.rows)
    if isinstance(summary, CapacitySummary):
        searched = _at_same_place([row for row in summary.rows if not row.refused])
        return [
            _most_served(rows, point_in_words(rows[0], named or ["slo"]), few)
            for rows in searched[:MOST_WINNERS]
        ]
    judged = [row for row in summary.rows if row.figures.overall.violation_rate is not None]
    highest = _at_same_place(judged)[-1:]
    return [_fewest_broken(rows, _load(rows[0], named), few) for rows in highest]


def _load(row: SimulatedRow, axes: Sequence[str]) -> str:
    """Return a simulated load: its devices, what they were promised, and its values of other
    axes.
    """
    others = [axis for axis in axes if axis not in ("devices", "slo")]
    further = f", {point_in_words(row, others)}" if others else ""
    return f"{row.devices} devices, promised {slo_in_words(row.slo)}{further},"


R = TypeVar("R", bound=ServingPoint)


def _at_same_place(rows: Sequence[R]) -> list[list[R]]:
    """Return the rows of several series at every place that has such."""
    places: dict[tuple[AxisValue, ...], list[R]] = {}
    for row in rows:
        places.setdefault(row.place, []).append(row)
    return [members for members in places.values() if len(members) > 1]


MOST_WINNERS = 6
"""Settings of a search for each of which the headline names the best series."""


def too_few_seeds(seeds: int) -> str:
    """Return why so many seeds give no verdict; empty if they do."""
    if seeds >= FEWEST_SEEDS:
        return ""
    subject = (
        "one seed shows no difference" if seeds == 1 else f"{seeds} seeds are too few for a verdict"
    )
    return f"{subject}, so run --seeds {FEWEST_SEEDS}"


def _most_served(rows: Sequence[SearchedRow], where: str, few: str) -> str:
    best, second = sorted(rows, key=lambda row: row.capacity.mean, reverse=True)[:2]
    served = f"serves {capacity(best)}"
    if not best.capacity.mean:
        return f"At {where} none of them serves any {best.unit}."
    if few:
        return f"At {where} {best.series} {served}, {second.series} {capacity(second)}: {few}."
    if not is_higher(best.capacity, second.capacity):
        return (
            f"At {where} no difference is shown between {best.series}, which {served}, and "
            f"{second.series}: run more seeds, or take either."
        )
    return f"At {where} take {best.series}: it {served}, {_lead(best.capacity, second.capacity)} {second.series}."


def _lead(most: Interval, second: Interval) -> str:
    if not second.mean:
        return "where nothing is served by"
    ratio = most.mean / second.mean
    return f"{ratio:.1f} times as many as" if ratio >= 2 else f"{ratio - 1:.0%} more than"


def _fewest_broken(rows: Sequence[SimulatedRow], where: str, few: str) -> str:
    judged = [(row.figures.overall.violation_rate, row) for row in rows]
    rated = [(rate, row) for rate, row in judged if rate is not None]
    (least, best), (more, second) = sorted(rated, key=lambda entry: entry[0].mean)[:2]
    broken = f"breaks {estimate_text(least, 'share')} of its promises"
    others = estimate_text(more, "share")
    if few:
        return f"At {where} {best.series} {broken}, {second.series} {others}: {few}."
    if not is_higher(more, least):
        tokens, tokens_of_second = (
            estimate_text(row.figures.overall.throughput) for row in (best, second)
        )
        return (
            f"At {where} {best.series} {broken} and {second.series} {others}: no difference is shown, at "
            f"{tokens} and {tokens_of_second} tokens/s."
        )
    return f"At {where} take {best.series}: it {broken}, {second.series} {others}."


NOTHING = "No series has a result."


def headlines(run: ServingDescription, summary: ServingSummary) -> list[str]:
    """Return which series is best or, where that cannot be asked, the result of every series in one
    sentence.
    """
    return winners(run, summary) or _results(summary)


def _results(summary: ServingSummary) -> list[str]:
    """Return the result of every series in one sentence."""
    lines = []
    names = dict.fromkeys(row.series for row in summary.rows)
    if isinstance(summary, CapacitySummary):
        for name in names:
            searched = [row for row in summary.rows if row.series == name]
            axes = varied(searched) or ["slo"]
            capacities = [f"{capacity(row)} at {point_in_words(row, axes)}" for row in searched[:6]]
            lines.append(f"{name} serves {'; '.join(capacities)}.")
        return lines
    for name in names:
        last = [row for row in summary.rows if row.series == name][-1]
        late = last.figures.overall.violation_rate
        broken = (
            f"breaks {estimate_text(late, 'share')} of its promises"
            if late
            else "has no response that fell due"
        )
        throughput = estimate_text(last.figures.overall.throughput)
        lines.append(
            f"At {_load(last, varied(summary.rows))} {name} {broken}, at {throughput} tokens/s."
        )
    return lines
