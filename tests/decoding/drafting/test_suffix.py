"""Suffix decoding, by hand and against a slow search of all matches."""

from random import Random

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.look_up import Continuation
from specbench_kit.decoding.drafting.suffix import SuffixDrafting

FIXTURE = [1, 2, 5, 6, 0, 1, 2, 5, 6, 9, 1, 2, 5, 6, 3, 1, 2, 7, 8, 1, 2]
"""After 1 2 comes 5 three times of four, and after 1 2 5 always 6."""


def find(tokens: list[int], options: SuffixDrafting, outputs: list[list[int]] | None = None) -> list[Continuation]:
    index = options.index()
    for number, output in enumerate(outputs or []):
        index.learn(str(number), [99])
        index.learn(str(number), [99, *output])
        index.forget(str(number))
    index.learn("own", tokens)
    return list(index.look_up("own", tokens))


def test_the_fixture_scores_one_and_a_half() -> None:
    index = SuffixDrafting().index()
    index.learn("own", FIXTURE)
    assert index.best("own", FIXTURE) == (1.5, 2, True, [Continuation(5, 0.75), Continuation(6, 1.0)])


def test_a_product_below_min_prob_ends_the_path() -> None:
    assert find(FIXTURE, SuffixDrafting(min_prob=0.8)) == []
    assert find(FIXTURE, SuffixDrafting(min_prob=0.75)) == [Continuation(5, 0.75), Continuation(6, 1.0)]


def test_factor_and_offset_say_how_far() -> None:
    assert len(find(FIXTURE, SuffixDrafting(factor=0.5))) == 1
    assert [found.token for found in find(FIXTURE, SuffixDrafting(offset=1))][:2] == [5, 6]
    assert find(FIXTURE, SuffixDrafting(factor=0.0)) == []


def test_ties_go_to_the_longer_match_then_to_the_own_text() -> None:
    # 2 is followed by 8 once and by 3 once; behind 1 2 stands 8 alone
    assert find([4, 2, 3, 1, 2, 8, 1, 2], SuffixDrafting(factor=0, offset=1)) == [Continuation(8, 1.0)]
    assert find([2, 5, 2], SuffixDrafting(), [[2, 6]]) == [Continuation(5, 1.0)]


def test_finished_outputs_are_shared_unless_told_otherwise() -> None:
    outputs = [[1, 2, 3, 4]]
    assert find([9, 1, 2], SuffixDrafting(), outputs) == [Continuation(3, 1.0), Continuation(4, 1.0)]
    assert find([9, 1, 2], SuffixDrafting(shared=False), outputs) == []


def test_nothing_matches_across_two_outputs_and_no_prompt_is_shared() -> None:
    assert find([1, 2], SuffixDrafting(), [[1], [2, 3]]) == [Continuation(3, 1.0)]
    assert find([2], SuffixDrafting(), [[1, 2], [7]]) == []
    assert find([99], SuffixDrafting(), [[1, 2]]) == []


def slow(tokens: list[int], options: SuffixDrafting) -> list[Continuation]:
    """Every match length on its own, over all places."""
    best: tuple[float, int, list[Continuation]] = (0.0, 0, [])
    for length in range(1, min(options.max_depth, len(tokens)) + 1):
        path: list[Continuation] = []
        score, product, said = 0.0, 1.0, tokens[-length:]
        for _ in range(int(options.factor * length + options.offset)):
            size = len(said)
            after = [tokens[i + size] for i in range(len(tokens) - size) if tokens[i : i + size] == said]
            if not after:
                break
            token = max(after, key=lambda one: (after.count(one), -after.index(one)))
            product *= after.count(token) / len(after)
            if product < options.min_prob:
                break
            score, said = score + product, [*said, token]
            path.append(Continuation(token, after.count(token) / len(after)))
        best = max(best, (score, length, path))
    return best[2]


@pytest.mark.parametrize(
    "options", [SuffixDrafting(), SuffixDrafting(factor=2, offset=1, min_prob=0.3), SuffixDrafting(max_depth=3)]
)
def test_it_finds_what_a_slow_search_finds(options: SuffixDrafting) -> None:
    random = Random(4)
    for _ in range(60):
        tokens = [random.randrange(4) for _ in range(random.randrange(1, 60))]
        assert find(tokens, options) == slow(tokens, options)


@pytest.mark.parametrize("options", [{"max_depth": 0}, {"factor": -1.0}, {"min_prob": 0.0}, {"min_prob": 2.0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SkitError, match=f"suffix: {next(iter(options))} must"):
        SuffixDrafting(**options)  # type: ignore[arg-type]
