"""Two servers compared over all loads: paired ratios, whose intervals hold together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specbench_kit.metrics.ab.answers import AnswerRecord, CounterChange, StreamedAnswer
from specbench_kit.metrics.ab.figures import NO_TARGETS, Targets, server_figures, turn_spans
from specbench_kit.metrics.ab.outputs import check_outputs
from specbench_kit.metrics.ab.summary import (
    AbSummary,
    Figure,
    FigureComparison,
    Gate,
    Lengths,
    LoadSummary,
    OutputCheck,
)
from specbench_kit.metrics.statistics import Array, ComparisonFamily, Ratio
from specbench_kit.metrics.verdicts import FASTER, SLOWER, as_allowed, verdict

MAY_WIN: Mapping[Gate, bool | None] = {
    "identical": True,
    "as with itself": True,
    "alike in distribution": True,
    "different": False,
    "not compared": None,
}
"""Whether a faster server may be called so, by the result of the gate; None if outputs were not compared."""
ACCEPTANCE = {FASTER: "longer", SLOWER: "shorter"}
"""What verdicts on ratios of speeds are called for acceptance lengths."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run asked for: the servers by name, the loads, and whether outputs are drawn at random.

    `open_loads` are those whose requests arrive at fixed times: their throughput is what arrives, no property of the
    servers. `planned` counts the requests to both servers.
    """

    names: tuple[str, str]
    loads: Sequence[str]
    planned: int
    open_loads: Sequence[str] = ()
    sampled: bool = False
    targets: Targets = NO_TARGETS


@dataclass(frozen=True, slots=True)
class _Pair:
    """The answers of both servers to one request."""

    turn: int
    first: StreamedAnswer
    second: StreamedAnswer


def summarise(
    plan: Plan, records: Sequence[AnswerRecord], changes: Sequence[CounterChange] = (), cautions: Sequence[str] = ()
) -> AbSummary:
    """Return the summary of a run from its records, of which there is one for each key."""
    by_load = {load: [record for record in records if record.key.load == load] for load in plan.loads}
    by_load = {load: own for load, own in by_load.items() if own}
    ratios = {load: _ratios(plan, load, own) for load, own in by_load.items()}
    level = _family({load: [r for r in of_load.values() if r] for load, of_load in ratios.items()}).level()
    loads = []
    for load, own in by_load.items():
        outputs = check_outputs(records, load, plan.loads, plan.names, sampled=plan.sampled)
        comparisons = [_compared(figure, ratio, level, outputs) for figure, ratio in ratios[load].items()]
        figures = {
            name: server_figures(
                [record for record in own if record.key.server == name],
                plan.targets,
                [change for change in changes if (change.load, change.server) == (load, name)],
            )
            for name in plan.names
        }
        turns = {record.turn for record in own}
        largest = max(sum(r.turn == turn and r.key.repeat == 0 for r in own) for turn in turns)
        lengths = _lengths(_pairs(plan.names, own))
        loads.append(LoadSummary(load, len(turns), -(-largest // 2), figures, comparisons, outputs, lengths))
    failed = sum(record.answer is None for record in records)
    return AbSummary(
        list(plan.names),
        len(records) < plan.planned,
        plan.planned,
        len(records) - failed,
        failed,
        level,
        loads,
        list(cautions),
    )


def _ratios(plan: Plan, load: str, records: Sequence[AnswerRecord]) -> dict[Figure, Ratio | None]:
    """Return how many times faster the second server is, by figure; a unit is a turn with its repeats."""
    pairs = _pairs(plan.names, records)
    if not pairs:
        return {}
    first, second = ([getattr(pair, side) for pair in pairs] for side in ("first", "second"))
    turns = [pair.turn for pair in pairs]

    # Every figure has a row for every turn of the load, so that all of them line up.
    rows = 1 + max(record.turn for record in records)

    def sums(values: Sequence[float]) -> Array:
        return np.bincount(turns, weights=values, minlength=rows).astype(np.float64)

    ratios: dict[Figure, Ratio | None] = {} if load in plan.open_loads else {"throughput": _throughput(plan, records)}
    steps = [[max(0, answer.tokens - 1) for answer in side] for side in (first, second)]
    ratios["ttft"] = Ratio.of([sums([a.ttft_s for a in first])], [sums([a.ttft_s for a in second])])
    ratios["tpot"] = Ratio.of(
        [sums([a.decode_s for a in first]), sums(steps[1])], [sums([a.decode_s for a in second]), sums(steps[0])]
    )
    ratios["e2e"] = Ratio.of([sums([a.e2e_s for a in first])], [sums([a.e2e_s for a in second])])
    rounds = [[answer.drafts.rounds or 0 if answer.drafts else 0 for answer in side] for side in (first, second)]
    if all(map(any, rounds)):
        tokens = [[answer.committed for answer in side] for side in (first, second)]
        ratios["acceptance"] = Ratio.of([sums(tokens[1]), sums(rounds[0])], [sums(tokens[0]), sums(rounds[1])])
    return ratios


def _pairs(names: Sequence[str], records: Sequence[AnswerRecord]) -> list[_Pair]:
    """Return the requests that both servers answered."""
    answers: dict[tuple[str, int], dict[str, tuple[int, StreamedAnswer]]] = {}
    for record in records:
        if record.answer is not None:
            key = record.key.request_id, record.key.repeat
            answers.setdefault(key, {})[record.key.server] = record.turn, record.answer
    both = [by_server for by_server in answers.values() if len(by_server) == len(names)]
    return [_Pair(by[names[0]][0], by[names[0]][1], by[names[1]][1]) for by in both]


def _lengths(pairs: Sequence[_Pair]) -> Lengths | None:
    if not pairs:
        return None
    sides = [[getattr(pair, side).tokens for pair in pairs] for side in ("first", "second")]
    equal = sum(first == second for first, second in zip(*sides, strict=True))
    return Lengths([sum(side) / len(pairs) for side in sides], len(pairs), equal)


def _throughput(plan: Plan, records: Sequence[AnswerRecord]) -> Ratio | None:
    """Return the ratio of tokens per second over the turns in which no request failed at either server."""
    sides = [[record for record in records if record.key.server == name] for name in plan.names]
    spans = [turn_spans(side) for side in sides]
    seconds = [{place: end_s - begin_s for place, (begin_s, end_s) in side.items()} for side in spans]
    broken = {(record.key.repeat, record.turn) for record in records if record.answer is None}
    places = [place for place in spans[0] if place in spans[1] and place not in broken]
    tokens: list[dict[tuple[int, int], int]] = []
    for side in sides:
        counts: dict[tuple[int, int], int] = {}
        for record in side:
            place = record.key.repeat, record.turn
            counts[place] = counts.get(place, 0) + (record.answer.tokens if record.answer else 0)
        tokens.append(counts)
    if not places:
        return None
    turns, rows = [turn for _, turn in places], 1 + max(record.turn for record in records)
    span_sums, token_sums = (
        [np.bincount(turns, weights=[side[place] for place in places], minlength=rows) for side in columns]
        for columns in (seconds, tokens)
    )
    return Ratio.of([token_sums[1], span_sums[0]], [token_sums[0], span_sums[1]])


def _family(ratios: Mapping[str, Sequence[Ratio]]) -> ComparisonFamily:
    """Return the family of all comparisons from the ratios of each load."""
    # The figures of one load share its turns, so that a slow turn moves all of them; other loads have other turns.
    blocks = [np.column_stack([ratio.residuals for ratio in of_load]) for of_load in ratios.values() if of_load]
    rows, columns = (sum(block.shape[axis] for block in blocks) for axis in (0, 1))
    residuals, row, column = np.zeros((rows, columns)), 0, 0
    for block in blocks:
        residuals[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    freedom = min((ratio.freedom for of_load in ratios.values() for ratio in of_load), default=1.0)
    return ComparisonFamily(residuals, (), [True] * columns, freedom)


def _compared(figure: Figure, ratio: Ratio | None, level: float, outputs: OutputCheck) -> FigureComparison:
    if ratio is None:
        return FigureComparison(figure, None, None, 0, verdict(None, None, 0))
    bounds = ratio.interval(level)
    shown = verdict(ratio.value, bounds, ratio.units)
    # A longer acceptance wins nothing by itself, so that outputs need not agree for it.
    shown = ACCEPTANCE.get(shown, shown) if figure == "acceptance" else as_allowed(shown, MAY_WIN[outputs.gate])
    return FigureComparison(figure, ratio.value, bounds, ratio.units, shown)
