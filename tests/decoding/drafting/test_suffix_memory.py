"""The suffix index of a long-running engine keeps the newest outputs alone."""

from specbench_kit.decoding.drafting.suffix import SuffixDrafting, SuffixIndex


def answer(index: SuffixIndex, name: str, tokens: list[int]) -> None:
    index.learn(name, [1, 2])
    index.learn(name, [1, 2, *tokens])
    index.forget(name)


def test_old_outputs_are_forgotten_and_new_ones_found() -> None:
    index = SuffixIndex(SuffixDrafting(), remembered=40)
    for number in range(50):
        answer(index, str(number), [100 + number, 200 + number, 300 + number])
        assert index._outputs.size <= 40
    index.learn("new", [7, 149])
    assert [token for token, _ in index.look_up("new", [7, 149])] == [249]
    index.learn("old", [7, 101])
    assert not list(index.look_up("old", [7, 101]))


def test_without_a_limit_all_outputs_are_kept() -> None:
    index = SuffixIndex(SuffixDrafting())
    for number in range(50):
        answer(index, str(number), [100 + number, 200 + number])
    assert index._outputs.size == 100
