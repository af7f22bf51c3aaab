"""Two servers compared over all loads: paired ratios, in a typical turn and in all, whose intervals
hold together.

The ratio of a typical turn says how many times as fast a server is, whatever the few turns took in
which the machine was slow. From some load on a server is over-saturated: it gets more requests than
it can answer.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, prod

import numpy as np

from specbench_kit.live.engines.answers import AnswerRecord, CounterChange, StreamedAnswer
from specbench_kit.metrics.simultaneous import (
    DRAWS,
    Flips,
    TableLimits,
    evenly,
    exceeded_by_equals,
    joint_limits,
    step_down,
)
from specbench_kit.metrics.statistics import (
    FEWEST_UNITS,
    LEVEL,
    Array,
    Ratio,
    interval_of_estimate,
)
from specbench_kit.metrics.typical import Typical, limit_of_one
from specbench_kit.metrics.verdicts import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    TOO_FEW,
    as_allowed,
    verdict,
)
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.studies.ab.figures import NO_TARGETS, Targets, server_figures, turn_spans
from specbench_kit.studies.ab.outputs import check_outputs
from specbench_kit.studies.ab.speculation import (
    acceptance_ratio,
    is_constant,
    rounds_of_answers,
    rounds_of_counters,
)
from specbench_kit.studies.ab.summary import (
    AbSummary,
    Figure,
    FigureComparison,
    Gate,
    Lengths,
    LoadSummary,
    OutputCheck,
)
from specbench_kit.studies.ab.tails import tails
from specbench_kit.studies.ab.thinking import length_unit, reply_start_s
from specbench_kit.studies.ab.validity import Judge, compare_validity, validity

Ratios = Mapping[tuple[int, int], float]
"""How many times faster the second server was, by repeat and turn."""


def turn_logs(ratios: Ratios, turns: int) -> Array:
    """Return the logarithmic ratio of each turn, the median over its repeats: [turns], nan where
    there is none.
    """
    by_turn: defaultdict[int, list[float]] = defaultdict(list)
    for (_, turn), ratio in ratios.items():
        by_turn[turn].append(log(ratio))
    logs = np.full(turns, np.nan)
    for turn, repeats in by_turn.items():
        logs[turn] = np.median(repeats)
    return logs


def typical_of(logs: Array) -> Typical | None:
    """Return the typical ratio over the turns that have one."""
    return Typical.of(logs[np.isfinite(logs)])


@dataclass(frozen=True, slots=True, eq=False)
class _FigureRatio:
    """How many times faster the second server is in one figure: in all, and the logarithm in each
    turn [turns].

    The turns of an acceptance length, by whose sums alone the servers are compared, are None.
    """

    ratio: Ratio | None
    turns: Array | None = None

    def is_shown(self, limit: float) -> bool:
        """Return True if the typical turn deviates by more than the limit, which few turns make
        larger.
        """
        typical = typical_of(self.turns) if self.turns is not None else None
        return typical is not None and abs(typical.deviation) > max(
            limit, limit_of_one(typical.units)
        )


def limits_of_turns(
    loads: Sequence[Sequence[_FigureRatio]], level: float = LEVEL, seed: int = 0
) -> TableLimits:
    """Return what the verdicts and intervals of a report go by, such that all of them hold
    together.

    `loads` holds the figures of each load. Equal servers could have had each other's times of any turn, all figures at
    once: exchanging them turn by turn says how far apart equal servers come out.
    """
    rng = np.random.default_rng(seed)
    turns = [_Turns(figures, rng) for figures in loads if figures]
    units = max((load.units for load in turns), default=1)
    shown, _ = step_down(
        [list(load.typical) for load in turns],
        lambda left: _limit_of(turns, left, level),
        lambda left, limit: [_not_shown(figures, limit) for figures in left],
    )
    typical = np.max(
        [np.zeros(DRAWS), *(load.typical_deviations(load.typical, centred=True) for load in turns)],
        axis=0,
    )
    in_all = np.max([np.zeros(DRAWS), *(load.sum_deviations() for load in turns)], axis=0)
    limit, level_in_all = joint_limits(typical, in_all, level, units)
    return TableLimits(shown, limit, level_in_all)


def _not_shown(figures: Sequence[_FigureRatio], limit: float) -> list[_FigureRatio]:
    return [figure for figure in figures if not figure.is_shown(limit)]


def _limit_of(
    turns: Sequence["_Turns"], left: Sequence[Sequence[_FigureRatio]], level: float
) -> float:
    """Return what the largest deviation of equal servers exceeds in no more reports than the level
    allows.
    """
    largest = np.zeros(DRAWS)
    for load, figures in zip(turns, left, strict=True):
        largest = np.maximum(largest, load.typical_deviations(figures))
    return exceeded_by_equals(largest, level)


class _Turns:
    """The turns of one load, whose figures move together, with random signs for them."""

    def __init__(self, figures: Sequence[_FigureRatio], rng: np.random.Generator) -> None:
        self.typical = [
            figure for figure in figures if figure.turns is not None and _is_enough(figure.turns)
        ]
        self._ratios = [figure.ratio for figure in figures if figure.ratio is not None]
        by_turn = [figure.turns for figure in self.typical if figure.turns is not None]
        by_turn += [ratio.residuals for ratio in self._ratios]
        self._rows = evenly(max(map(len, by_turn), default=0))
        self._flips = Flips.of(len(self._rows), rng)
        self._noise_of_ratios = rng.standard_normal((DRAWS, len(self._ratios)))

    @property
    def units(self) -> int:
        """The number of turns."""
        return len(self._rows)

    def typical_deviations(
        self, figures: Sequence[_FigureRatio], *, centred: bool = False
    ) -> Array:
        """Return the largest deviation of typical turns in each draw, `centred` without what the
        turns show.
        """
        if not figures:
            return np.zeros(DRAWS)
        columns = []
        for figure in figures:
            assert figure.turns is not None
            typical = typical_of(figure.turns)
            columns.append(figure.turns - (log(typical.value) if centred and typical else 0.0))
        logs = np.column_stack(columns)[self._rows]
        largest: Array = self._flips.rank_deviations(logs).max(axis=1)
        return largest

    def sum_deviations(self) -> Array:
        """Return the largest deviation of ratios of sums in each draw."""
        if not self._ratios:
            return np.zeros(DRAWS)
        residuals = np.column_stack([ratio.residuals for ratio in self._ratios])[self._rows]
        freedom = min(ratio.freedom for ratio in self._ratios)
        largest: Array = self._flips.sum_deviations(residuals, self._noise_of_ratios, freedom).max(
            axis=1
        )
        return largest


def _is_enough(turns: Array) -> bool:
    return int(np.isfinite(turns).sum()) >= FEWEST_UNITS


MAY_WIN: Mapping[Gate, bool | None] = {
    "identical": True,
    "as with itself": True,
    "alike in distribution": True,
    "different": False,
    "not compared": None,
}
"""Whether a faster server may be called so, by the result of the gate; None if outputs were not
compared.
"""
ACCEPTANCE = {FASTER: "longer", SLOWER: "shorter"}
"""What verdicts on ratios of speeds are called for acceptance lengths."""
BY_TURN = "faster in a typical turn or in all, and slower in the other"
IMPLAUSIBLE = "counts are implausible"
"""The verdict on acceptance by counts that cannot be right."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run asked for: the servers by name, the loads, and whether outputs are drawn at
    random.

    `open_loads` are those whose requests arrive at fixed times: their throughput is what arrives, no property of the
    servers. `concurrencies` are the requests in flight at the other loads. `schemas` are the JSON schemas of prompts
    that have one, by id, and `tools` the JSON of the tools of conversations. `planned` counts the requests to both
    servers; `left_out` names loads that were not run, because both servers were over-saturated before.
    """

    names: tuple[str, str]
    loads: Sequence[str]
    planned: int
    open_loads: Sequence[str] = ()
    sampled: bool = False
    targets: Targets = NO_TARGETS
    schemas: Mapping[str, str] = field(default_factory=dict)
    tools: Mapping[str, str] = field(default_factory=dict)
    concurrencies: Mapping[str, int] = field(default_factory=dict)
    left_out: Sequence[str] = ()


def saturation(plan: Plan, records: Sequence[AnswerRecord]) -> dict[str, dict[str, str]]:
    """Return the loads at which each server is over-saturated, with the reason."""
    found: dict[str, dict[str, str]] = {}
    for name in plan.names:
        own = [record for record in records if record.key.server == name]
        found[name] = {}
        for number, load in enumerate(plan.loads):
            lower = plan.loads[number - 1] if number else None
            reason = over_saturation(own, load, plan.concurrencies, lower)
            found[name] |= {load: reason} if reason else {}
    return found


Place = tuple[int, int]
"""A repeat and a turn."""


@dataclass(frozen=True, slots=True)
class _Pair:
    """The answers of both servers to one request, and its place: the repeat and the turn."""

    place: Place
    first: StreamedAnswer
    second: StreamedAnswer


def summarise(
    plan: Plan,
    records: Sequence[AnswerRecord],
    changes: Sequence[CounterChange] = (),
    cautions: Sequence[str] = (),
) -> AbSummary:
    """Return the summary of a run from its records, of which there is one for each key."""
    by_load: dict[str, list[AnswerRecord]] = {load: [] for load in plan.loads}
    for record in records:
        if record.key.load in by_load:
            by_load[record.key.load].append(record)
    by_load = {load: own for load, own in by_load.items() if own}
    by_change: dict[str, list[CounterChange]] = {load: [] for load in by_load}
    for change in changes:
        if change.load in by_change:
            by_change[change.load].append(change)
    ratios = {load: _ratios(plan, load, own, by_change[load]) for load, own in by_load.items()}
    limits = limits_of_turns([list(of_load.values()) for of_load in ratios.values()])
    loads = []
    judge = Judge(plan.schemas, plan.tools)
    for load, own in by_load.items():
        outputs = check_outputs(records, load, plan.loads, plan.names, sampled=plan.sampled)
        figures = {}
        outcomes = []
        for name in plan.names:
            answers = [record for record in own if record.key.server == name]
            counters = [change for change in by_change[load] if change.server == name]
            outcomes.append(judge.outcomes(answers))
            figures[name] = server_figures(
                answers,
                plan.targets,
                counters,
                validity(outcomes[-1]),
                length_unit(own),
            )
        is_doubtful = any(own.speculation and own.speculation.doubts for own in figures.values())
        comparisons = [
            _compared(figure, ratio, limits, outputs, is_doubtful)
            for figure, ratio in ratios[load].items()
        ]
        turns = {record.turn for record in own}
        firsts = Counter(
            record.turn
            for record in own
            if record.key.repeat == 0 and record.key.dialogue_turn == 0
        )
        largest = max(firsts.values(), default=0)
        lengths = _lengths(_pairs(plan.names, own))
        loads.append(
            LoadSummary(
                load,
                len(turns),
                -(-largest // 2),
                figures,
                comparisons,
                outputs,
                lengths,
                compare_validity(outcomes[0], outcomes[1], len(by_load)),
                tails(own, figures),
            )
        )
    failed = sum(record.answer is None for record in records)
    return AbSummary(
        list(plan.names),
        len(records) < plan.planned,
        plan.planned,
        len(records) - failed,
        failed,
        limits.level,
        loads,
        [*cautions, *_constant_rates(plan.names, loads)],
        saturation(plan, records),
        list(plan.left_out),
    )


def _constant_rates(names: Sequence[str], loads: Sequence[LoadSummary]) -> list[str]:
    """Return a caution for every server whose acceptance rate does not move from load to load."""
    lines = []
    for name in names:
        known = [entry for load in loads if (entry := load.servers[name].speculation)]
        repeated = [load.outputs.other_loads.get(name, OutputAgreement()) for load in loads]
        both = OutputAgreement(
            sum(entry.compared for entry in repeated), sum(entry.identical for entry in repeated)
        )
        if is_constant(known, both):
            lines.append(
                f"IMPLAUSIBLE COUNTS of {name}: its acceptance rate is {known[0].acceptance_rate:.1%} at every load, "
                "although its outputs differ from load to load. Do not quote its acceptance."
            )
    return lines


def _ratios(
    plan: Plan, load: str, records: Sequence[AnswerRecord], changes: Sequence[CounterChange]
) -> dict[Figure, _FigureRatio]:
    """Return how many times faster the second server is, by figure; a unit is a turn with its
    repeats.

    All turns of a dialogue belong to one turn of its server, so that they are one unit.
    """
    pairs = _pairs(plan.names, records)
    if not pairs:
        return {}
    # Every figure has a row for every turn of the load, so that all of them line up.
    rows = 1 + max(record.turn for record in records)

    def sums(value: Callable[[StreamedAnswer], float]) -> list[dict[Place, float]]:
        """Return what the values of each server's answers add up to in every place."""
        first: defaultdict[Place, float] = defaultdict(float)
        second: defaultdict[Place, float] = defaultdict(float)
        for pair in pairs:
            first[pair.place] += value(pair.first)
            second[pair.place] += value(pair.second)
        return [first, second]

    ratios: dict[Figure, _FigureRatio] = {}
    if load not in plan.open_loads:
        ratios["throughput"] = _throughput(plan, records)
    ttft_s = sums(lambda answer: answer.ttft_s)
    decode_s = sums(lambda answer: answer.decode_s)
    steps = sums(lambda answer: max(0, answer.tokens - 1))
    e2e_s = sums(lambda answer: answer.e2e_s)
    ratios["ttft"] = _figure_ratio(ttft_s[:1], ttft_s[1:], rows)
    if reply := _reply_starts(pairs):
        ratios["reply"] = _figure_ratio(reply[:1], reply[1:], rows)
    ratios["tpot"] = _figure_ratio([decode_s[0], steps[1]], [decode_s[1], steps[0]], rows)
    ratios["e2e"] = _figure_ratio(e2e_s[:1], e2e_s[1:], rows)
    acceptance = _acceptance(plan.names, records, changes, rows)
    return ratios | ({"acceptance": _FigureRatio(acceptance)} if acceptance else {})


def _reply_starts(pairs: Sequence[_Pair]) -> list[dict[Place, float]]:
    """Return what the times to the first token of the reply add up to in every place, for each
    server: over the pairs both of whose answers have a thinking part and a reply.
    """
    sums: list[defaultdict[Place, float]] = [defaultdict(float), defaultdict(float)]
    for pair in pairs:
        first_s, second_s = reply_start_s(pair.first), reply_start_s(pair.second)
        if first_s is not None and second_s is not None:
            sums[0][pair.place] += first_s
            sums[1][pair.place] += second_s
    return [dict(server) for server in sums] if sums[0] else []


def _figure_ratio(
    above: Sequence[Mapping[Place, float]], below: Sequence[Mapping[Place, float]], rows: int
) -> _FigureRatio:
    """Return the product of the sums of `above` over that of `below`, each by the same places."""

    def by_turn(values: Mapping[Place, float]) -> Array:
        turns = [turn for _, turn in values]
        return np.bincount(turns, weights=list(values.values()), minlength=rows).astype(np.float64)

    by_place = {}
    for place in above[0]:
        top = prod(part[place] for part in above)
        bottom = prod(part[place] for part in below)
        if top > 0 and bottom > 0:
            by_place[place] = top / bottom
    return _FigureRatio(
        Ratio.of(list(map(by_turn, above)), list(map(by_turn, below))), turn_logs(by_place, rows)
    )


def _acceptance(
    names: Sequence[str],
    records: Sequence[AnswerRecord],
    changes: Sequence[CounterChange],
    rows: int,
) -> Ratio | None:
    """Return the ratio of acceptance lengths where both servers speculate and say so in the same
    way.
    """
    answered: dict[str, set[tuple[str, int, int]]] = {name: set() for name in names}
    for record in records:
        if record.answer and record.key.server in answered:
            answered[record.key.server].add(record.key.request)
    both = set.intersection(*answered.values())
    by_answer = []
    by_counters = []
    for name in names:
        own = [
            record for record in records if record.key.server == name and record.key.request in both
        ]
        by_answer.append(rounds_of_answers(own))
        by_counters.append(
            rounds_of_counters([change for change in changes if change.server == name])
        )
    # Answers and counters do not count the same tokens, so that one of a kind is not held against
    # the other.
    first, second = by_answer if any(by_answer) else by_counters
    return acceptance_ratio(first, second, rows)


def _pairs(names: Sequence[str], records: Sequence[AnswerRecord]) -> list[_Pair]:
    """Return the requests that both servers answered."""
    answers: dict[tuple[str, int, int], dict[str, tuple[Place, StreamedAnswer]]] = {}
    for record in records:
        if record.answer is not None:
            place = record.key.repeat, record.turn
            answers.setdefault(record.key.request, {})[record.key.server] = place, record.answer
    both = [by_server for by_server in answers.values() if len(by_server) == len(names)]
    return [_Pair(by[names[0]][0], by[names[0]][1], by[names[1]][1]) for by in both]


def _lengths(pairs: Sequence[_Pair]) -> Lengths | None:
    if not pairs:
        return None
    first = sum(pair.first.tokens for pair in pairs)
    second = sum(pair.second.tokens for pair in pairs)
    equal = sum(pair.first.tokens == pair.second.tokens for pair in pairs)
    return Lengths([first / len(pairs), second / len(pairs)], len(pairs), equal)


def _throughput(plan: Plan, records: Sequence[AnswerRecord]) -> _FigureRatio:
    """Return the ratio of tokens per second over the turns in which no request failed at either
    server.
    """
    seconds: list[dict[Place, float]] = []
    tokens: list[Counter[Place]] = []
    for name in plan.names:
        own = [record for record in records if record.key.server == name]
        seconds.append(
            {place: end_s - begin_s for place, (begin_s, end_s) in turn_spans(own).items()}
        )
        counts: Counter[Place] = Counter()
        for record in own:
            counts[record.key.repeat, record.turn] += record.answer.tokens if record.answer else 0
        tokens.append(counts)
    broken = {(record.key.repeat, record.turn) for record in records if record.answer is None}
    places = [place for place in seconds[0] if place in seconds[1] and place not in broken]
    if not places:
        return _FigureRatio(None)

    def at_places(of_server: Mapping[Place, float]) -> dict[Place, float]:
        return {place: float(of_server[place]) for place in places}

    first_s, second_s = map(at_places, seconds)
    first, second = map(at_places, tokens)
    return _figure_ratio(
        [second, first_s], [first, second_s], 1 + max(record.turn for record in records)
    )


def _compared(
    figure: Figure,
    entry: _FigureRatio,
    limits: TableLimits,
    outputs: OutputCheck,
    is_doubtful: bool,
) -> FigureComparison:
    """Return what a figure shows: times by a typical turn, unless all turns together show the
    opposite.
    """
    ratio = entry.ratio
    if ratio is None:
        return FigureComparison(figure, None, None, 0, verdict(None, None, 0))
    bounds = ratio.interval(limits.level)
    in_all = verdict(ratio.value, bounds, ratio.units)
    if entry.turns is None:
        # A longer acceptance wins nothing by itself, so that outputs need not agree for it.
        shown = IMPLAUSIBLE if is_doubtful else ACCEPTANCE.get(in_all, in_all)
        return FigureComparison(figure, ratio.value, bounds, ratio.units, shown)
    typical = typical_of(entry.turns)
    if typical is None:
        return FigureComparison(figure, ratio.value, bounds, ratio.units, TOO_FEW)
    shown = TOO_FEW
    shown_bounds = typical.interval(max(limits.shown, limit_of_one(typical.units)))
    if shown_bounds is not None or typical.is_constant:
        shown = verdict(typical.value, shown_bounds, typical.units)
    if {shown, in_all} == {FASTER, SLOWER}:
        shown = BY_TURN
    shown = as_allowed(shown, MAY_WIN[outputs.gate])
    typical_bounds = typical.interval(max(limits.typical, limit_of_one(typical.units)))
    if shown == NO_DIFFERENCE and typical_bounds is None and not typical.is_constant:
        shown = TOO_FEW  # where no interval can be given, nothing could have been shown
    return FigureComparison(
        figure, ratio.value, bounds, ratio.units, shown, typical.value, typical_bounds
    )


MOST_GROWTH = 0.1
"""Seconds by which answers may take longer for every second that requests arrive later, as they do
in a warm-up.
"""
LEAST_GAIN = 0.1
"""Share of a proportional gain in throughput that more requests in flight must bring."""


def over_saturation(
    records: Sequence[AnswerRecord], load: str, concurrencies: Mapping[str, int], lower: str | None
) -> str | None:
    """Return why a server is over-saturated at a load; None if that is not shown, with 95%
    confidence.

    `records` are those of one server at all loads. `concurrencies` are the requests in flight at each load; a load that
    is not among them has arrivals at fixed times. `lower` is the next lower load.
    """
    own = [record for record in records if record.key.load == load]
    if load not in concurrencies:
        growth = _growth(own)
        if growth is None or growth[1] <= MOST_GROWTH:
            return None
        return f"answers take {growth[0]:.2g} s longer for every second that requests arrive later"
    if lower is None:
        return None
    gain = _gain([record for record in records if record.key.load == lower], own)
    needed = 1 + LEAST_GAIN * (concurrencies[load] / concurrencies[lower] - 1)
    if gain is None or gain[1] >= needed:
        return None
    return f"its throughput is {gain[0]:.2f} times that at {lower}"


def _growth(records: Sequence[AnswerRecord]) -> tuple[float, float] | None:
    """Return the slope of end-to-end times over times of arrival within turns, and the lower end of
    its interval.

    A server that keeps up answers late requests of a turn as fast as early ones; at one that does
    not they queue.
    """
    groups: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for record in records:
        if record.answer is not None and record.key.dialogue_turn == 0:
            place = record.key.repeat, record.turn
            groups.setdefault(place, []).append(
                (record.sent_s - record.late_s, record.answer.e2e_s)
            )
    rows = 1 + max((turn for _, turn in groups), default=0)
    products = np.zeros(rows)
    squares = np.zeros(rows)
    for (_, turn), points in groups.items():
        arrived_s, took_s = np.array(points).T
        arrived_s = arrived_s - arrived_s.mean()
        products[turn] += float(arrived_s @ took_s)
        squares[turn] += float(arrived_s @ arrived_s)
    if not squares.any() or (squares == squares.sum()).any():
        return None
    slope = float(products.sum() / squares.sum())
    without: Array = (products.sum() - products) / (squares.sum() - squares)
    bounds = interval_of_estimate(slope, without, squares)
    return (slope, bounds[0]) if bounds else None


def _gain(
    lower: Sequence[AnswerRecord], higher: Sequence[AnswerRecord]
) -> tuple[float, float] | None:
    """Return how many times higher the throughput at the higher load is, and the upper end of its
    interval.
    """
    first = _mean_throughput(lower)
    second = _mean_throughput(higher)
    if first is None or second is None:
        return None
    # Both loads have turns of their own, whose errors are taken to be independent.
    both = Ratio(
        second.value / first.value,
        np.concatenate([second.residuals, -first.residuals]),
        min(first.units, second.units),
        min(first.freedom, second.freedom),
    )
    bounds = both.interval()
    return (both.value, bounds[1]) if bounds else None


def _mean_throughput(records: Sequence[AnswerRecord]) -> Ratio | None:
    """Return the tokens per second in turns; the repeats of a turn are one unit."""
    rows = 1 + max((record.turn for record in records), default=0)
    tokens = np.zeros(rows)
    seconds = np.zeros(rows)
    for record in records:
        tokens[record.turn] += record.answer.tokens if record.answer else 0
    for (_, turn), (begin_s, end_s) in turn_spans(records).items():
        seconds[turn] += end_s - begin_s
    return Ratio.of([tokens], [seconds])
