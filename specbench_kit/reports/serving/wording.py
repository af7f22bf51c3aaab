"""Sentences and cells that a simulation's report shares with the terminal."""

from collections.abc import Sequence

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.metrics.serving_rows import AXES, FEWEST_SEEDS, look_up, varied
from specbench_kit.metrics.vocabulary import Unit
from specbench_kit.papers.comparison import ComparedNumber
from specbench_kit.reports.document import Cell, Column, Estimate, Row, RunFile, Summary
from specbench_kit.reports.experiments.wording import outcome
from specbench_kit.reports.sections.cautions import TOY_PAIR, is_toy, predictor_cautions
from specbench_kit.reports.serving.charts import axis_values
from specbench_kit.reports.writing.formatting import ABSENT, count, seconds, share, significant, times
from specbench_kit.runs.document import RunDescription

NOT_AT_HAND = "not at hand"
GOLDEN = "golden:"
"""The beginning of an acceptance that is a published mean."""
MOST_EVICTIONS = 2.0
"""Evictions of KV per finished response from which on a server thrashes; real servers with preemption have under 1."""


def estimate(figure: Row | None) -> Estimate | None:
    """Return a figure's mean over seeds with its interval."""
    if figure is None or figure["mean"] is None:
        return None
    # A figure that is derived from others, such as a share of missed deadlines, has no interval.
    is_exact = figure.get("low") is None
    return Estimate(figure["mean"], None if is_exact else (figure["low"], figure["high"]))


def estimate_text(figure: Row | None, unit: Unit = "number") -> str:
    """Return a figure's mean with its interval as text."""
    return Column(unit=unit).text(estimate(figure))


def capacity_unit(summary: Summary) -> str:
    """Return the unit of capacities: devices, or a rate of arrivals."""
    return next((str(row["unit"]) for row in summary["rows"] if "unit" in row), "devices")


def seeds_in_words(config: Row) -> str:
    """Return how many seeds were simulated, as `1 seed` or `5 seeds`."""
    return f"{config['seeds']} {'seed' if config['seeds'] == 1 else 'seeds'}"


def capacity(row: Row) -> str:
    """Return the capacity of a row with its unit."""
    return f"{estimate_text(row['capacity'], 'count' if row['unit'] == 'devices' else 'number')} {row['unit']}"


def servers(entry: Row) -> str:
    """Return the verification servers of a series and, if there are several, their router."""
    described = str(entry.get("servers", "1"))
    return described if described == "1" else f"{described}, {entry['router']}"


def acceptance_cautions(run: RunFile) -> list[str]:
    """Return what limits the acceptance that a simulation goes by."""
    lines: list[str] = []
    for entry in run["series"]:
        if "recorded" in entry:
            lines += _recorded_cautions(run, entry)
    return [*dict.fromkeys(lines), *_fixed_cautions(run), *_colocated_cautions(run), *_golden_cautions(run)]


def _recorded_cautions(run: RunFile, entry: Row) -> list[str]:
    """Return what a benchmark of a series' method would say of it on the same trace."""
    replayed = {name: entry.get(name) for name in ("method", "uses", "seen_prompts")}
    deployment = (run.get("deployments") or {}).get(entry.get("deployment"))
    described = RunDescription.read({**entry["recorded"], **replayed, "deployment": deployment, "trace": {}})
    # The models of a trace that was recorded for this run are those of the run, of which the setting tells.
    of_named_trace = entry["acceptance"] is not None and is_toy(described.models)
    return [*([TOY_PAIR] if of_named_trace else []), *predictor_cautions(described)]


def _colocated_cautions(run: RunFile) -> list[str]:
    """Return one line on the series whose single request would be faster with the draft model on the server."""
    slower = [
        f"{times(1 / ratio)} ({entry['label']})"
        for entry in run["series"]
        if (ratio := entry.get("colocated_ratio")) is not None and ratio < 1
    ]
    if not slower:
        return []
    return [
        f"SERVER-ONLY IS FASTER for a request that has the server to itself: {', '.join(slower)} as fast with the "
        "draft model there; what an edge gains is how many devices a busy server serves."
    ]


def _fixed_cautions(run: RunFile) -> list[str]:
    """Return a line on every method that decides how far to draft and always drafted as far as it may."""
    stopped_by_nothing = [
        (entry, entry["typical"]["longest"])
        for entry in run["series"]
        if (entry["acceptance"] is None or "recorded" in entry)
        and _decides(entry["method"])
        and not _lets_all_pass(entry)
        # Drafts at the end of an answer are shorter than a method would have them.
        if entry["typical"]["submitted"] > 0.98 * entry["typical"]["longest"] > 0
    ]
    return [
        f"FIXED LENGTH: {entry['label']}: {entry['method']} drafts {longest:g} tokens in every round here, as "
        f"fixed-k:k={longest:g} does."
        for entry, longest in stopped_by_nothing
    ]


def _lets_all_pass(entry: Row) -> bool:
    """Return True if the predictor's threshold is 0, of which another line tells."""
    return bool(((entry.get("uses") or {}).get("predictor") or {}).get("threshold") == 0)


def _decides(method: str) -> bool:
    return method.partition(":")[0] not in ("fixed-k", "autoregressive")


def _golden_cautions(run: RunFile) -> list[str]:
    """Return a line on the series whose acceptance is a published mean."""
    named = [entry["label"] for entry in run["series"] if str(entry["acceptance"]).startswith(GOLDEN)]
    if not named:
        return []
    return [
        f"GOLDEN ACCEPTANCE: {', '.join(named)}: how often drafts are right is one published mean without an interval, "
        "of other prompts and one drafter; it cannot rank policies, which differ in which tokens they send."
    ]


def cautions(summary: Summary) -> list[str]:
    """Return what a reader must know before quoting a number, beyond what holds for every modelled run."""
    lines = []
    for row in summary["rows"]:
        where = f"{row['series']}, {slo_in_words(row['slo'])}"
        if "refused" in row:
            lines.append(f"REFUSED: {where}: {row['refused']}.")
        if row.get("bounded"):
            lines.append(f"AT LEAST: {where}: even the highest load was served.")
        if not row.get("monotone", True):
            lines.append(
                f"NOT MONOTONE: {where}: a load was served although a lower one was not; the capacity is the highest "
                "load that was served."
            )
        if "capacity" in row and row.get("steady", 1) < 1:
            lines.append(
                f"NOT STEADY: {where}: {share(1 - row['steady'])} of the runs still drifted after twice their time and "
                "count as not served; simulate for longer."
            )
    ranges = [*derived_range(summary), *derived_capacities(summary)]
    return [*lines, *ranges, *unsteady(summary), *livelocks(summary), *thrashing(summary)]


ONE_SEED_AT_ENDS = "One seed was run at each end."


def derived_range(summary: Summary) -> list[str]:
    """Return one line on what the figures may be where times are derived, at each series' last point."""
    last = {row["series"]: row for row in summary.get("ranges") or () if "throughput" in row}
    if not last:
        return []
    parts = []
    for series, row in last.items():
        low, high = row["throughput"] or (0.0, 0.0)
        late = (
            ""
            if row["violation_rate"] is None
            else f" with {' to '.join(dict.fromkeys(map(share, row['violation_rate'])))} late"
        )
        part = f"{series} {significant(low)} to {significant(high)} tokens/s{late}"
        if row["throughput_ratio"]:
            slowest, fastest = row["throughput_ratio"]
            part += f", {times(slowest)} to {times(fastest)} {row['against']} ({_holds(slowest > 1 or fastest < 1)})"
        parts.append(part)
    devices = next(iter(last.values()))["devices"]
    return [
        f"DERIVED TIMES: what profiles, host and interconnects may be leaves, at {devices} devices: "
        f"{'; '.join(parts)}. {ONE_SEED_AT_ENDS}"
    ]


def _holds(holds: bool) -> str:
    return "over the whole range" if holds else "the verdict does not hold over the range"


def derived_capacities(summary: Summary) -> list[str]:
    """Return one line on what the capacities of the best series may be where times are derived."""
    ranges = [row for row in summary.get("ranges") or () if "capacity" in row]
    if not ranges:
        return []
    named = [axis for axis in AXES[1:] if axis in varied(summary["rows"])]
    parts = []
    for row in ranges:
        show = count if row["unit"] == "devices" else significant
        low, high = map(show, row["capacity"])
        where = f" at {axis_values(row, named)}" if named else ""
        part = f"{row['series']} {low} to {high} {row['unit']}{where}"
        if row["capacity_ratio"]:
            least, most = row["capacity_ratio"]
            part += f", {times(least)} to {times(most)} {row['against']} ({_holds(least > 1 or most < 1)})"
        parts.append(part)
    others = sum(not row.get("refused") for row in summary["rows"]) - len(ranges)
    more = f"; {others} more {'was' if others == 1 else 'were'} not searched at the ends" if others > 0 else ""
    return [
        f"DERIVED TIMES: what profiles, host and interconnects may be leaves {'; '.join(parts)}{more}. "
        f"{ONE_SEED_AT_ENDS}"
    ]


def unsteady(summary: Summary) -> list[str]:
    """Return a line on the points whose throughput drifted."""
    drifting = [row for row in _simulated(summary) if not row["figures"]["steady"]["steady"]]
    if not drifting:
        return []
    names = ", ".join(dict.fromkeys(f"{row['series']} at {row['devices']} devices" for row in drifting[:4]))
    more = f" and {len(drifting) - 4} more" if len(drifting) > 4 else ""
    return [
        f"NOT STEADY: the throughput of the two halves differs by more than 5% for {names}{more}; simulate for longer, "
        "or take the server as overloaded or unevenly loaded."
    ]


def livelocks(summary: Summary) -> list[str]:
    """Return a line for each point at which requests waited at an idle server for longer than it worked."""
    lines = []
    for row in _simulated(summary):
        server = row["figures"]["server"]
        idle_s = server["idle_while_waiting_s"]["mean"]
        busy = server["utilisation"]["mean"]
        if idle_s > 60 and busy < 0.5:
            lines.append(
                f"LIVELOCK: {row['series']} at {row['devices']} devices: requests waited at an idle server for "
                f"{seconds(idle_s)}, and the scheduler returned no batch {count(server['refusals']['mean'])} times."
            )
    return lines


def thrashing(summary: Summary) -> list[str]:
    """Return a line for each point at which KV was evicted more often than responses finished."""
    return [
        f"THRASHING: {row['series']} at {row['devices']} devices evicted KV {count(evictions)} times per finished "
        "response, and computed it again each time; give it more memory or fewer devices."
        for row in _simulated(summary)
        if (evictions := look_up(row, "figures.server.evictions_per_response.mean") or 0.0) > MOST_EVICTIONS
    ]


def guard_sentence(guard: Row) -> str:
    """Return which guard time compensates for a wrong estimator."""
    error = f"times {guard['estimator_factor']:g}, noise {guard['estimator_noise']:g}"
    subject = f"{guard['series']}, {slo_in_words(guard['slo'])}, estimator {error}"
    if guard["guard_s"] is None:
        return f"{subject}: no guard time that was tried compensates for it."
    return f"{subject}: a guard time of {guard['guard_s']:g} s compensates for it."


PUBLISHED_COLUMNS = ("system", "at", "metric", "published", "simulated (95%)", "simulated / published")


def ratio_columns(against: str) -> list[str]:
    """Return the titles of the columns that compare the ratios between series."""
    return [f"published {against} / series", f"simulated {against} / series", "ratio of ratios"]


def published_cells(pair: ComparedNumber) -> list[Cell]:
    """Return published and simulated number, their ratio, then the ratios to the reference series and theirs."""
    column = Column(unit=unit_of(pair))
    published = f"{pair.bound} {column.text(pair.value)}".strip()
    simulated = Estimate(pair.simulated.mean, pair.simulated.bounds) if pair.simulated else None
    ratios = pair.ratio_of_ratios
    factors = (ratios.published, ratios.simulated, ratios.ratio) if ratios else (None, None, None)
    return [
        pair.series,
        axis_values(pair.where, list(pair.where)) or ABSENT,
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
    parts = [part.removesuffix("_s") for part in path.split(".") if part not in ("figures", "overall", "mean")]
    return " ".join(parts).replace("_", " ").replace("classes", "class")


def _simulated(summary: Summary) -> Sequence[Row]:
    """Return the rows of simulations; those of a search for capacity have no figures."""
    return [row for row in summary["rows"] if "figures" in row]


def winners(run: RunFile, summary: Summary) -> list[str]:
    """Return a sentence on the best of several series, for every promised speed and other setting of a search.

    Of simulations it is the one under the highest load.
    """
    is_search = run["command"] == "capacity"
    axes = AXES[1:] if is_search else AXES
    places: dict[tuple[object, ...], list[Row]] = {}
    for row in summary["rows"]:
        if row.get("refused") or (not is_search and estimate(look_up(row, BROKEN)) is None):
            continue
        places.setdefault(tuple(row.get(axis) for axis in axes), []).append(row)
    compared = [rows for rows in places.values() if len(rows) > 1]
    if not is_search:
        compared = compared[-1:]
    say = _most_served if is_search else _fewest_broken
    named = [axis for axis in axes if axis in varied(summary["rows"])] or ["slo"]
    few = too_few_seeds(run["config"]["seeds"])
    where = axis_values if is_search else _load
    return [say(rows, where(rows[0], named), few) for rows in compared[:MOST_WINNERS]]


def _load(row: Row, axes: Sequence[str]) -> str:
    """Return a simulated load: its devices, what they were promised, and its values of other axes."""
    others = [axis for axis in axes if axis not in ("devices", "slo")]
    further = f", {axis_values(row, others)}" if others else ""
    return f"{row['devices']} devices, promised {slo_in_words(str(row['slo']))}{further},"


BROKEN = "figures.overall.violation_rate"
MOST_WINNERS = 6
"""Settings of a search for each of which the headline names the best series."""


def too_few_seeds(seeds: int) -> str:
    """Return why so many seeds give no verdict; empty if they do."""
    if seeds >= FEWEST_SEEDS:
        return ""
    subject = "one seed shows no difference" if seeds == 1 else f"{seeds} seeds are too few for a verdict"
    return f"{subject}, so run --seeds {FEWEST_SEEDS}"


def _most_served(rows: Sequence[Row], where: str, few: str) -> str:
    best, next_best, is_shown = _best_two(rows, "capacity", most=True)
    most = best["capacity"]
    second = next_best["capacity"]
    served = f"serves {capacity(best)}"
    if not most["mean"]:
        return f"At {where} none of them serves any {best['unit']}."
    if few:
        return f"At {where} {best['series']} {served}, {next_best['series']} {capacity(next_best)}: {few}."
    if not is_shown:
        return (
            f"At {where} no difference is shown between {best['series']}, which {served}, and "
            f"{next_best['series']}: run more seeds, or take either."
        )
    return f"At {where} take {best['series']}: it {served}, {_lead(most, second)} {next_best['series']}."


def _lead(most: Row, second: Row) -> str:
    if not second["mean"]:
        return "where nothing is served by"
    ratio = most["mean"] / second["mean"]
    return f"{ratio:.1f} times as many as" if ratio >= 2 else f"{ratio - 1:.0%} more than"


def _fewest_broken(rows: Sequence[Row], where: str, few: str) -> str:
    best, next_best, is_shown = _best_two(rows, BROKEN, most=False)
    least, second = (estimate_text(look_up(row, BROKEN), "share") for row in (best, next_best))
    broken = f"breaks {least} of its promises"
    if few:
        return f"At {where} {best['series']} {broken}, {next_best['series']} {second}: {few}."
    if not is_shown:
        tokens, others = (estimate_text(look_up(row, "figures.overall.throughput")) for row in (best, next_best))
        return (
            f"At {where} {best['series']} {broken} and {next_best['series']} {second}: no difference is shown, at "
            f"{tokens} and {others} tokens/s."
        )
    return f"At {where} take {best['series']}: it {broken}, {next_best['series']} {second}."


def _best_two(rows: Sequence[Row], path: str, *, most: bool) -> tuple[Row, Row, bool]:
    """Return the best two by a figure, and whether their intervals show a difference."""
    best, next_best, *_ = sorted(rows, key=lambda row: look_up(row, path)["mean"], reverse=most)
    higher, lower = (look_up(row, path) for row in ((best, next_best) if most else (next_best, best)))
    shown = higher["low"] is not None and lower["high"] is not None and higher["low"] > lower["high"]
    return best, next_best, shown


def headlines(run: RunFile, summary: Summary) -> list[str]:
    """Return which series is best or, where that cannot be asked, the result of every series in one sentence."""
    rows = summary["rows"]
    lines = winners(run, summary)
    if lines:
        return lines
    by_series: dict[str, list[Row]] = {}
    for row in rows:
        by_series.setdefault(row["series"], []).append(row)
    for name, members in by_series.items():
        if run["command"] == "capacity":
            axes = [axis for axis in AXES[1:] if len({row[axis] for row in members}) > 1] or ["slo"]
            capacities = [f"{capacity(row)} at {axis_values(row, axes)}" for row in members[:6]]
            lines.append(f"{name}: {'; '.join(capacities)}.")
        else:
            last = members[-1]
            violations = estimate_text(look_up(last, "figures.overall.violation_rate"), "share")
            throughput = estimate_text(look_up(last, "figures.overall.throughput"))
            where = _load(last, varied(rows)).removesuffix(",")
            lines.append(f"{name} at {where}: {violations} of responses are slower; {throughput} tokens/s.")
    return lines
