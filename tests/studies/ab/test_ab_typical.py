"""Verdicts on two servers by a typical turn: what slow turns hide, how often equal servers differ, and conditions."""

from collections.abc import Callable, Sequence
from random import Random

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.live.engines.answers import AnswerKey, AnswerRecord, Burst, StreamedAnswer
from specbench_kit.metrics.verdicts import FASTER, NO_DIFFERENCE, TOO_FEW
from specbench_kit.studies.ab import report
from specbench_kit.studies.ab.comparison import BY_TURN, Plan, summarise
from specbench_kit.studies.ab.summary import AbCondition, AbSummary, FigureComparison

LOAD = "concurrency 1"
NAMES = ("plain", "spec")
TRIALS = 100
MOST_ALARMS = 11
"""Of 100 reports at 5%, more than eleven with a false verdict come with a chance of 0.4%."""


def compared(seconds: Callable[[str, int, int], float], turns: int, repeats: int = 1) -> AbSummary:
    """Compare two servers whose answers take such seconds, by server, turn and repeat."""
    loads = [LOAD, "concurrency 2"]
    records, now_s = [], 0.0
    for load in loads:
        for repeat in range(repeats):
            for turn in range(turns):
                for name in NAMES:
                    took_s = seconds(name, turn, repeat)
                    bursts = [Burst(took_s * share, 1) for share in (0.2, 0.6, 1.0)]
                    answer = StreamedAnswer(f"answer {turn}", bursts, "token ids")
                    records.append(
                        AnswerRecord(AnswerKey(load, name, f"p{turn}", repeat), turn, now_s, answer)
                    )
                    now_s += took_s
    return summarise(Plan(NAMES, loads, planned=len(records)), records)


def end_to_end(summary: AbSummary) -> FigureComparison:
    return next(entry for entry in summary.loads[0].comparisons if entry.figure == "e2e")


def test_a_turn_that_the_machine_held_up_hides_no_difference() -> None:
    """The second server is 1.25 times as fast, and one of its 20 answers takes 60 times as long as the others."""

    def seconds(name: str, turn: int, _: int) -> float:
        usual_s = (1.0 + turn % 5) * Random(f"{name}/{turn}").uniform(0.97, 1.03)
        return (
            usual_s * (1 if name == "plain" else 0.8) * (60 if (name, turn) == ("spec", 7) else 1)
        )

    summary = compared(seconds, turns=20)
    duration = end_to_end(summary)
    assert duration.ratio is not None
    assert duration.ratio < 1
    assert duration.typical == pytest.approx(1.25, rel=0.03)
    assert duration.typical_interval is not None
    assert duration.typical_interval[0] > 1.15
    assert {entry.verdict for load in summary.loads for entry in load.comparisons} == {FASTER}
    sentence = report.headline(summary)
    assert f"{duration.typical:.2f}x" in sentence or f"{duration.typical:.3g}" in sentence
    assert "*" not in sentence, "its page sets the whole of it in bold"
    assert "in a typical turn" in sentence


def test_the_median_of_its_repeats_stands_for_a_turn() -> None:
    """The second server is slower by a fifth in one of three repeats, and twice as fast in the other two."""

    def seconds(name: str, turn: int, repeat: int) -> float:
        slow = 1.2 if repeat == turn % 3 else 0.5
        return (1 + turn / 10) * (1.0 if name == "plain" else slow)

    duration = end_to_end(compared(seconds, turns=8, repeats=3))
    assert duration.typical == pytest.approx(2.0)
    assert duration.ratio == pytest.approx(3 / 2.2)
    assert (duration.units, duration.typical_interval, duration.verdict) == (8, None, FASTER)


def test_what_is_faster_in_most_turns_and_slower_in_all_is_neither() -> None:
    """36 turns of a second are faster, and four of 100 seconds take twice as long."""

    def seconds(name: str, turn: int, _: int) -> float:
        is_long = turn % 10 == 9
        factor = 1.0 if name == "plain" else (2.0 if is_long else 0.7)
        return (100.0 if is_long else 1.0) * factor * Random(f"{name}/{turn}").uniform(0.99, 1.01)

    summary = compared(seconds, turns=40)
    duration = end_to_end(summary)
    assert duration.typical is not None
    assert duration.ratio is not None
    assert duration.typical > 1 > duration.ratio
    assert duration.verdict == BY_TURN
    assert "as fast at concurrency 1, but 0.5" in report.headline(summary)


def test_few_turns_show_nothing() -> None:
    duration = end_to_end(
        compared(lambda name, turn, _: 1 + turn if name == "plain" else 0.1 + turn, turns=5)
    )
    assert duration.verdict == TOO_FEW
    assert duration.typical is not None
    assert duration.typical > 1


def reports(loss: float, noise: Callable[[Random], float], turns: int = 20) -> list[AbSummary]:
    """Return reports of servers of which the second is slower by a loss."""
    summaries = []
    for trial in range(TRIALS):
        random = Random(f"{trial}/{turns}")
        factor = {"plain": 1.0, "spec": 1 / (1 - loss)}
        summaries.append(compared(lambda name, *_: factor[name] * noise(random), turns))  # noqa: B023
    return summaries


def spells(random: Random) -> float:
    """Times that vary by a tenth, and one in twenty of which takes up to six times as long."""
    return random.lognormvariate(0, 0.1) * (random.uniform(2, 6) if random.random() < 0.05 else 1)


def are_shown(summary: AbSummary) -> Sequence[bool]:
    return [
        entry.verdict not in (NO_DIFFERENCE, TOO_FEW)
        for load in summary.loads
        for entry in load.comparisons
    ]


@pytest.mark.parametrize("turns", [6, 20])
def test_equal_servers_seldom_have_any_verdict(turns: int) -> None:
    """Four figures at two loads together, with slow answers that move all figures of a turn."""
    assert sum(any(are_shown(summary)) for summary in reports(0.0, spells, turns)) <= MOST_ALARMS


def test_a_loss_is_found_in_spite_of_slow_turns() -> None:
    """A tenth at 20 turns, by a typical turn and by ratios of sums."""
    summaries = reports(0.1, spells)
    by_typical = sum(end_to_end(summary).verdict == "slower" for summary in summaries)
    by_sums = sum((end_to_end(summary).interval or [1, 1])[1] < 1 for summary in summaries)
    assert by_typical >= 40
    assert by_typical >= 2 * by_sums


@pytest.mark.parametrize(
    ("text", "holds"), [("typical_speedup<1.2", False), ("typical_tpot_speedup.low<2", True)]
)
def test_conditions_read_the_typical_turn(text: str, holds: bool) -> None:
    def seconds(name: str, turn: int, _: int) -> float:
        return Random(f"{name}/{turn}").uniform(0.9, 1.1) / (1.0 if name == "plain" else 1.5)

    summary = compared(seconds, turns=10)
    assert bool(AbCondition.parse(text).violations(summary)) is holds
    with pytest.raises(SkitError, match="typical_speed"):
        AbCondition.parse("typical_speed<1")
