"""Suffix decoding, by hand and against a slow search of all matches."""

from random import Random

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.look_up import Continuation
from specbench_kit.decoding.drafting.suffix import SuffixDrafting

FIXTURE = [1, 2, 5, 6, 0, 1, 2, 5, 6, 9, 1, 2, 5, 6, 3, 1, 2, 7, 8, 1, 2]
"""1 2 stands in five places, the last of them at the end; 5 follows in three, and 6 always follows 1 2 5."""


def find(
    tokens: list[int], options: SuffixDrafting, outputs: list[list[int]] | None = None
) -> list[Continuation]:
    index = options.index()
    for number, output in enumerate(outputs or []):
        index.learn(str(number), [99])
        index.learn(str(number), [99, *output])
        index.forget(str(number))
    index.learn("own", tokens)
    return list(index.look_up("own", tokens))


def test_the_present_end_of_the_text_counts_as_a_place() -> None:
    """3/5, then 3/5 x 1: the shares of ArcticInference's suffix tree, whose counts include the suffix itself.

    Its tree, built from the authors' sources and run beside on 18,628 look-ups of one to four running requests, drafts
    the same in 99.0%; elsewhere equally frequent tokens differ, which it orders by the history of their counts.
    """
    index = SuffixDrafting().index()
    index.learn("own", FIXTURE)
    assert index.best("own", FIXTURE) == (
        1.2,
        True,
        2,
        [Continuation(5, 0.6), Continuation(6, 1.0)],
    )


def test_one_earlier_place_is_worth_a_half() -> None:
    assert find([1, 2, 3, 4, 1, 2], SuffixDrafting()) == [
        Continuation(3, 0.5),
        Continuation(4, 1.0),
    ]


def test_a_product_below_min_prob_ends_the_path() -> None:
    assert find(FIXTURE, SuffixDrafting(min_prob=0.8)) == []
    assert find(FIXTURE, SuffixDrafting(min_prob=0.6)) == [
        Continuation(5, 0.6),
        Continuation(6, 1.0),
    ]


def test_factor_and_offset_say_how_far() -> None:
    assert len(find(FIXTURE, SuffixDrafting(factor=0.5))) == 1
    assert [continuation.token for continuation in find(FIXTURE, SuffixDrafting(offset=1))][:2] == [
        5,
        6,
    ]
    assert find(FIXTURE, SuffixDrafting(factor=0.0)) == []


def test_a_match_is_scored_by_what_it_may_draft() -> None:
    """5 5 5 follows 0 1 2 with a share of 1/2, and 7 follows 2 with 3/5: three tokens outweigh it, one does not."""
    tokens = [2, 7, 2, 7, 2, 7, 0, 1, 2, 5, 5, 5, 0, 1, 2]
    assert find(tokens, SuffixDrafting()) == [
        Continuation(5, 0.5),
        Continuation(5, 1.0),
        Continuation(5, 1.0),
    ]
    assert find(tokens, SuffixDrafting(max_draft=1)) == [Continuation(7, 0.6)]


def test_a_match_and_its_draft_fit_in_the_depth() -> None:
    tokens = [*range(1, 10), 1, 2, 3, 4]
    assert [continuation.token for continuation in find(tokens, SuffixDrafting())] == [5, 6, 7, 8]
    assert [continuation.token for continuation in find(tokens, SuffixDrafting(max_depth=6))] == [
        5,
        6,
        7,
    ]
    assert find(tokens, SuffixDrafting(max_depth=2))[0] == Continuation(5, 0.5)


def test_ties_go_to_the_own_text_then_to_the_longer_match() -> None:
    # 2 is followed by 5 in two of four places, 1 2 by 8 in one of two
    assert find([2, 5, 2, 5, 1, 2, 8, 1, 2], SuffixDrafting(factor=0, offset=1)) == [
        Continuation(8, 0.5)
    ]
    assert find([2, 5, 2], SuffixDrafting(), [[2, 6], [2]]) == [Continuation(5, 0.5)]


def test_finished_outputs_are_shared_unless_told_otherwise() -> None:
    outputs = [[1, 2, 3, 4]]
    assert find([9, 1, 2], SuffixDrafting(), outputs) == [
        Continuation(3, 1.0),
        Continuation(4, 1.0),
    ]
    assert find([9, 1, 2], SuffixDrafting(shared=False), outputs) == []


@pytest.mark.parametrize("shared", [True, False])
def test_running_requests_share_their_outputs_too(shared: bool) -> None:
    """1 2 stands in the output of both requests, at the end of one: 3 has a share of 1/2."""
    index = SuffixDrafting(shared=shared).index()
    for tokens in ([9], [9, 1], [9, 1, 2, 3, 4]):
        index.learn("ahead", tokens)
    for tokens in ([8], [8, 1, 2]):
        index.learn("behind", tokens)
    drafted = [Continuation(3, 0.5), Continuation(4, 1.0)] if shared else []
    assert list(index.look_up("behind", [8, 1, 2])) == drafted


def test_nothing_matches_across_two_outputs_and_no_prompt_is_shared() -> None:
    assert find([1, 2], SuffixDrafting(), [[1], [2, 3]]) == [Continuation(3, 1.0)]
    assert find([9, 2], SuffixDrafting(), [[1, 2], [7]]) == []
    assert find([9, 99], SuffixDrafting(), [[1, 2]]) == []


def slow(tokens: list[int], options: SuffixDrafting) -> list[Continuation]:
    """Every match length on its own, over all places."""
    best: tuple[float, int, list[Continuation]] = (0.0, 0, [])
    for length in range(1, min(options.max_depth, len(tokens))):
        path: list[Continuation] = []
        score, product, suffix = 0.0, 1.0, tokens[-length:]
        longest = int(options.factor * length + options.offset)
        for _ in range(min(longest, options.max_draft, options.max_depth - length)):
            size = len(suffix)
            starts = [
                i + size for i in range(len(tokens) - size + 1) if tokens[i : i + size] == suffix
            ]
            after = [tokens[start] for start in starts if start < len(tokens)]
            if not after:
                break
            token = max(after, key=lambda one: (after.count(one), -after.index(one)))
            product *= after.count(token) / len(starts)
            if product < options.min_prob:
                break
            score, suffix = score + product, [*suffix, token]
            path.append(Continuation(token, after.count(token) / len(starts)))
        best = max(best, (score, length, path))
    return best[2]


@pytest.mark.parametrize(
    "options",
    [
        SuffixDrafting(),
        SuffixDrafting(factor=2, offset=1, min_prob=0.3),
        SuffixDrafting(max_depth=3),
        SuffixDrafting(max_draft=2),
        SuffixDrafting(max_depth=8, factor=3, max_draft=5),
    ],
)
def test_it_finds_what_a_slow_search_finds(options: SuffixDrafting) -> None:
    random = Random(4)
    for _ in range(60):
        tokens = [random.randrange(4) for _ in range(random.randrange(1, 60))]
        assert find(tokens, options) == slow(tokens, options)


@pytest.mark.parametrize(
    "options",
    [{"max_depth": 1}, {"factor": -1.0}, {"min_prob": 0.0}, {"min_prob": 2.0}, {"max_draft": 0}],
)
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(SkitError, match=f"suffix: {next(iter(options))} must"):
        SuffixDrafting(**options)  # type: ignore[arg-type]
