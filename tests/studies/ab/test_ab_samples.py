"""The test of sampled outputs: its false alarms, also with common seeds, and its power; and rates that never move."""

from random import Random

import pytest

from specbench_kit.live.engines.answers import Burst, StreamedAnswer
from specbench_kit.runs.document import OutputAgreement
from specbench_kit.studies.ab.outputs import FEWEST_PAIRS, Pairs, compare_samples
from specbench_kit.studies.ab.speculation import is_constant
from specbench_kit.studies.ab.summary import Speculation

PROMPTS, REPEATS = 8, 4
TRIALS = 30
MOST_ALARMS = 5
"""Of 30 trials at 5%, more than five alarms come with a chance of 0.3%."""


def answer(tokens: list[int], has_ids: bool = True) -> StreamedAnswer:
    text = " ".join(map(str, tokens))
    return StreamedAnswer(
        text, [Burst(0.1, len(tokens))], "token ids", token_ids=tokens if has_ids else None
    )


def drawn(prompt: int, random: Random, shift: float = 0.0) -> list[int]:
    """An answer of 1 to 12 tokens; tokens lean to one side by `shift`."""
    length = 1 + sum(random.random() < 0.8 for _ in range(11))
    return [min(5, int(6 * random.random() ** (1 + shift + prompt % 3))) for _ in range(length)]


def pairs_of(trial: int, shift: float = 0.0, common: float = 0.0) -> Pairs:
    """Pairs of answers, of which a share has common seeds; the second ones are shifted."""
    random = Random(f"{trial}/{shift}/{common}")
    pairs = {}
    for prompt in range(PROMPTS):
        first = [drawn(prompt, random) for _ in range(REPEATS)]
        second = [
            own if random.random() < common else drawn(prompt, random, shift) for own in first
        ]
        pairs[f"p{prompt}"] = [
            ([answer(first_s)], [answer(second_s)])
            for first_s, second_s in zip(first, second, strict=True)
        ]
    return pairs


def alarms(shift: float, common: float = 0.0) -> int:
    tests = [compare_samples(pairs_of(trial, shift, common), 0.05) for trial in range(TRIALS)]
    return sum(bool(test and test.shown) for test in tests)


@pytest.mark.parametrize("common", [0.0, 0.5, 1.0])
def test_equal_servers_seldom_raise_an_alarm(common: float) -> None:
    assert alarms(0.0, common) <= MOST_ALARMS


def test_a_shift_of_all_tokens_is_found() -> None:
    assert alarms(3.0) >= TRIALS - 2 * MOST_ALARMS


def test_a_fault_of_one_prompt_is_named() -> None:
    pairs = {**pairs_of(1), "odd": [([answer([1, 2, 3])], [answer([4] * 9)]) for _ in range(12)]}
    test = compare_samples(pairs, 0.05)
    assert test is not None
    assert {"first tokens of odd", "lengths of odd"} <= set(test.shown)
    assert test.chance < test.level


def test_words_are_compared_where_one_server_does_not_name_its_tokens() -> None:
    rows = {
        f"p{n}": [([answer([n, 2, 3])], [answer([n, 2, 3], has_ids=False)])] * 3
        for n in range(PROMPTS)
    }
    test = compare_samples(rows, 0.05)
    assert test is not None
    assert (test.chance, test.shown) == (1.0, [])


def test_all_turns_of_a_dialogue_are_compared() -> None:
    rows = {
        f"p{n}": [([answer([1]), answer([n])], [answer([1]), answer([n + 50])]) for _ in range(4)]
        for n in range(PROMPTS)
    }
    test = compare_samples(rows, 0.05)
    assert test is not None
    assert "first tokens" in test.shown


def test_few_pairs_are_not_compared() -> None:
    assert (
        compare_samples({"p": [([answer([1])], [answer([2])])] * (FEWEST_PAIRS - 1)}, 0.05) is None
    )
    assert (
        compare_samples(
            {f"p{n}": [([answer([1])], [answer([2])])] for n in range(FEWEST_PAIRS)}, 0.05
        )
        is None
    )


def rates(random: Random | None, drafted: int = 2000) -> list[Speculation]:
    """Four loads of drafts of which 60% are accepted: each by chance, or exactly so many."""
    counts = [
        sum(random.random() < 0.6 for _ in range(drafted)) if random else int(0.6 * drafted)
        for _ in range(4)
    ]
    return [
        Speculation("counters", 2.0, accepted / drafted, 500, drafted, accepted)
        for accepted in counts
    ]


def test_a_rate_that_never_moves_is_doubted_only_where_outputs_do() -> None:
    assert is_constant(rates(None), OutputAgreement(40, 3))
    assert not is_constant(
        rates(None), OutputAgreement(40, 40)
    )  # the same outputs have the same acceptance
    assert not is_constant(rates(None)[:2], OutputAgreement(40, 3))
    assert not is_constant(rates(None, drafted=100), OutputAgreement(40, 3))
    assert sum(is_constant(rates(Random(seed)), OutputAgreement(40, 3)) for seed in range(100)) <= 4
