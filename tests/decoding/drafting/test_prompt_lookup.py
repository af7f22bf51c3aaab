"""N-gram drafting, by hand."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.look_up import PromptLookupDrafting


def drafted(tokens: list[int], k: int, more: list[int] | None = None, **options: int) -> list[int]:
    """The next k tokens that are found behind `tokens`, of which all but `more` are learned."""
    index = PromptLookupDrafting(**options).index()
    index.learn("a", tokens)
    return [
        continuation.token
        for continuation, _ in zip(
            index.look_up("a", [*tokens, *(more or [])]), range(k), strict=False
        )
    ]


def test_the_longest_suffix_at_its_earliest_place() -> None:
    assert drafted([7, 8, 9, 7, 8, 5, 7, 8], 2) == [9, 7]


@pytest.mark.parametrize(
    ("tokens", "options", "found"),
    [
        ([1, 2, 3, 4], {}, []),
        ([5], {}, []),
        ([4, 4], {}, [4]),
        ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], {}, [9, 2, 3, 8]),
        ([1, 2, 3, 9, 2, 3, 8, 0, 2, 3], {"max": 1}, [9, 2, 3, 8]),
        ([1, 2, 5, 3, 2], {"min": 2}, []),
        ([2, 1, 2, 5, 1, 2], {"min": 2, "max": 2}, [5, 1, 2]),
    ],
)
def test_what_follows_a_match(tokens: list[int], options: dict[str, int], found: list[int]) -> None:
    assert drafted(tokens, 4, **options) == found


def test_the_round_s_own_draft_is_looked_up_but_not_learned() -> None:
    assert drafted([1, 2, 3, 1], 2, more=[2]) == [3, 1]
    assert drafted([1, 2, 3], 2, more=[9, 9]) == []


def test_requests_are_apart_and_forgotten() -> None:
    index = PromptLookupDrafting().index()
    index.learn("a", [1, 2, 3, 1])
    index.learn("b", [1])
    assert list(index.look_up("b", [1])) == []
    index.forget("a")
    index.learn("a", [1])
    assert list(index.look_up("a", [1])) == []


@pytest.mark.parametrize("options", [{"min": 0}, {"min": 4}])
def test_a_bad_range_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(SkitError, match=r"min must lie in 1\.\.max"):
        PromptLookupDrafting(**options)
