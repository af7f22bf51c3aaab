"""The three rules, on trees and distributions built by hand."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nightly import nightly_except
from scipy.stats import chisquare
from tiny_models import make_runner, plain_logits, tiny_llama
from torch import Tensor

from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.rules import match, residual, walk
from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import ModelVerifier, VerifiedRow, appended_row, verdict_on
from specbench_kit.models.executors.base import Forward, Padding
from specbench_kit.models.executors.pending import PendingToken, PendingTokens
from specbench_kit.models.runner import Runner

SAMPLER = Sampler(temperature=1.0)
NOWHERE = DraftForward(Forward([]), SAMPLER)


def family_tree() -> TokenTree:
    """root -> 1 (5), 2 (6); 1 -> 3 (7), 4 (8); 2 -> 5 (5); 4 -> 6 (9)."""
    tree = TokenTree(9)
    for token, parent in ((5, 0), (6, 0), (7, 1), (8, 1), (5, 2), (9, 4)):
        tree.add(token, parent, NOWHERE, 0)
    return tree


@pytest.mark.parametrize(
    ("nodes", "answers", "path", "extra"),
    [
        ([], [3], [], 3),
        ([1, 2, 3, 4, 5, 6], [3, 0, 0, 0, 0, 0, 0], [], 3),
        ([1, 2, 3, 4, 5, 6], [6, 0, 5, 0, 0, 4, 0], [2, 5], 4),
        ([1, 2, 3, 4, 5, 6], [5, 8, 0, 0, 9, 0, 2], [1, 4, 6], 2),
        ([1, 2, 3, 4, 5, 6], [5, 6, 0, 0, 0, 0, 0], [1], 6),
        ([1, 4, 6], [6, 0, 0, 0], [], 6),
        ([1, 4], [5, 8, 9], [1, 4], 9),
        ([2, 1, 5, 4], [5, 0, 8, 0, 1], [1, 4], 1),
    ],
)
def test_walk(nodes: list[int], answers: list[int], path: list[int], extra: int) -> None:
    """`answers` are the target's tokens after the root and after each chosen node; only chosen nodes count."""
    assert walk(family_tree(), nodes, answers.__getitem__) == (path, extra)


def certain(tokens: Sequence[int], vocabulary: int = 10) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(tokens), vocabulary).float()


def test_match_walks_the_targets_draws() -> None:
    target = certain([5, 8, 0, 0, 9, 0, 2])
    assert match(family_tree(), [1, 2, 3, 4, 5, 6], target, RequestRandom(0, "a")) == ([1, 4, 6], 2)


def test_match_spends_one_number_per_committed_token() -> None:
    """Plain decoding with the same seed therefore draws the same tokens."""
    target = torch.full((7, 10), 0.1)
    random, alone = RequestRandom(0, "a"), RequestRandom(0, "a")
    for _ in range(50):
        path, extra = match(family_tree(), [1, 2, 3, 4, 5, 6], target, random)
        tree = family_tree()
        expected = draw(
            torch.full((len(path) + 1, 10), 0.1),
            [alone.uniform("target") for _ in range(len(path) + 1)],
        )
        assert [*(tree.tokens[node] for node in path), extra] == expected
    assert random.uniform("target") == alone.uniform("target")


def sampled_chain(draft: Tensor, random: RequestRandom) -> TokenTree:
    """A chain drawn from the rows of `draft`, as the drafter draws it."""
    forward = DraftForward(Forward([draft.log()]), SAMPLER)
    tree = TokenTree(0)
    for row in range(len(draft)):
        (token,) = draw(forward.probabilities[row, None], [random.uniform("draft")])
        tree.add(token, tree.last, forward, row)
    return tree


def fixed_chain(draft: Tensor, tokens: Sequence[int]) -> TokenTree:
    forward = DraftForward(Forward([draft.log()]), SAMPLER)
    tree = TokenTree(0)
    for row, token in enumerate(tokens):
        tree.add(token, tree.last, forward, row)
    return tree


def test_residual_accepts_what_the_target_likes_no_less() -> None:
    draft = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]])
    target = torch.tensor([[0.5, 0.2, 0.3], [0.05, 0.9, 0.05], [0.0, 0.0, 1.0]])
    for trial in range(50):
        assert residual(
            fixed_chain(draft, [0, 1]), [1, 2], target, RequestRandom(0, str(trial))
        ) == ([1, 2], 2)


def test_residual_rejects_the_impossible_and_draws_from_what_is_left() -> None:
    """p - q is positive for token 3 alone, so it is the only possible extra token; nothing after it is looked at."""
    draft = torch.tensor([[0.4, 0.3, 0.2, 0.1], [0.25, 0.25, 0.25, 0.25]])
    target = torch.tensor([[0.0, 0.3, 0.1, 0.6], [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]])
    for trial in range(50):
        assert residual(
            fixed_chain(draft, [0, 0]), [1, 2], target, RequestRandom(0, str(trial))
        ) == ([], 3)


def test_residual_of_an_empty_draft_is_plain_sampling() -> None:
    target = torch.tensor([[0.2, 0.5, 0.3]])
    for trial in range(20):
        (expected,) = draw(target, [RequestRandom(0, str(trial)).uniform("target")])
        assert residual(TokenTree(0), [], target, RequestRandom(0, str(trial))) == ([], expected)


def test_residual_survives_distributions_that_are_equal_up_to_rounding() -> None:
    """A rejection where p - q is nowhere positive still gives a token of the vocabulary that p allows."""
    draft, target = (
        torch.tensor([[0.5, 0.5, 1e-9]]),
        torch.tensor([[0.25, 0.5, 0.0], [1.0, 0.0, 0.0]]),
    )
    outcomes = [
        residual(fixed_chain(draft, [0]), [1], target, RequestRandom(0, str(trial)))
        for trial in range(100)
    ]
    rejected = [extra for path, extra in outcomes if not path]
    assert len(rejected) > 20
    assert set(rejected) == {0, 1}


P = torch.tensor([0.35, 0.05, 0.3, 0.1, 0.2])
Q = torch.tensor([0.1, 0.4, 0.25, 0.2, 0.05])


def test_residual_gives_the_targets_distribution() -> None:
    counts = [0] * 5
    for trial in range(5_000):
        random = RequestRandom(1, str(trial))
        tree = sampled_chain(Q[None], random)
        path, extra = residual(tree, [1], P.expand(2, -1), random)
        counts[tree.tokens[path[0]] if path else extra] += 1
    expected = P.double() / P.double().sum() * sum(counts)
    assert chisquare(counts, expected.tolist()).pvalue > 1e-3


@pytest.mark.parametrize("length", nightly_except([4], [1, 4, 7]))
def test_committed_tokens_follow_the_geometric_law(length: int) -> None:
    """With acceptance alpha, independent of place, K drafted tokens commit (1 - alpha^(K+1)) / (1 - alpha)."""
    alpha, rounds = float(torch.minimum(P, Q).sum()), 3000
    committed = []
    for trial in range(rounds):
        random = RequestRandom(2, str(trial))
        tree = sampled_chain(Q.expand(length, -1), random)
        path, _ = residual(tree, list(range(1, length + 1)), P.expand(length + 1, -1), random)
        committed.append(len(path) + 1.0)
    mean = (1 - alpha ** (length + 1)) / (1 - alpha)
    chances = [alpha**n * (1 - alpha) for n in range(length)] + [alpha**length]
    variance = sum(chance * (n + 1 - mean) ** 2 for n, chance in enumerate(chances))
    assert sum(committed) / rounds == pytest.approx(mean, abs=3.3 * (variance / rounds) ** 0.5)


def test_candidates_are_those_after_the_root_and_the_nodes_where_states_are_read_too() -> None:
    """A drafter that reads hidden states has every token of a prompt answered, the candidates of which nobody asked."""
    model = tiny_llama()
    prompt, chain = [1, 9, 7, 30], [12, 3]
    request = Request("one", "test", tuple(prompt), 8)
    session = Session(
        request, RequestRandom(0, "one"), frozenset(), 0.0, RequestRecord("one", "test", [])
    )
    draft = Draft(session, TokenTree(prompt[-1]))
    for token in chain:
        draft.tree.add(token, draft.tree.last, NOWHERE, 0)
    verifier = ModelVerifier(make_runner(model, 1, 32), Sampler(), layers=(1,), candidates=2)
    verifier.admit(session)
    with torch.inference_mode():
        (verdict,) = verifier.send([draft], [[1, 2]])()
    expected = plain_logits(model, [*prompt, *chain]).topk(2).indices.tolist()
    assert [list(after) for after in verdict.candidates] == expected[len(prompt) - 1 :]


@pytest.mark.parametrize("takes_pending", [False, True])
@pytest.mark.parametrize(
    ("with_states", "states_apart", "kept"),
    [(False, False, (4, 0)), (True, False, (6, 6)), (True, True, (4, 6))],
)
def test_a_row_appends_what_is_not_in_kv_and_the_chosen_nodes_below_it(
    takes_pending: bool, with_states: bool, states_apart: bool, kept: tuple[int, int]
) -> None:
    """Two of five tokens are in KV; nodes 2, 1 and 5 stand below the root, the root and node 2."""
    record = RequestRecord("one", "test", [])
    session = Session(
        Request("one", "test", (1, 2, 3, 4, 9), 8),
        RequestRandom(0, "one"),
        frozenset(),
        0.0,
        record,
    )
    target: Any = SimpleNamespace(
        takes_pending=takes_pending, states_apart=states_apart, length={3: 2}.__getitem__
    )
    draft = Draft(session, family_tree())
    row = appended_row(target, 3, draft, [2, 1, 5], with_states)
    assert (row.slot, list(row.tokens), list(row.parents)) == (
        3,
        [3, 4, 9, 6, 5, 5],
        [-1, 0, 1, 2, 2, 3],
    )
    assert (row.keep, row.states) == kept
    assert not isinstance(row.tokens, PendingTokens)


def test_tokens_that_a_card_has_not_told_yet_are_appended_without_waiting_for_them() -> None:
    """Where the target is on the same card; any other one needs the numbers."""
    record = RequestRecord("one", "test", [])
    session = Session(
        Request("one", "test", (1, 2, 9), 8), RequestRandom(0, "one"), frozenset(), 0.0, record
    )
    waits: list[int] = []

    def token_of(row: int) -> int:
        waits.append(row)
        return 5 + row

    source: Any = SimpleNamespace(token_of=token_of)
    for takes_pending in (True, False):
        waits.clear()
        pending = PendingTokens([PendingToken(source, 0), PendingToken(source, 1)])
        target: Any = SimpleNamespace(takes_pending=takes_pending, length=lambda _: 1)
        draft: Any = SimpleNamespace(
            session=session,
            tree=SimpleNamespace(parents=[-1, 0, 1], tokens_of=lambda _, pending=pending: pending),
        )
        row = appended_row(target, 0, draft, [1, 2], with_states=False)
        assert isinstance(row.tokens, PendingTokens) == takes_pending
        assert waits == ([] if takes_pending else [0, 1])
        assert (row.slot, [*row.tokens], list(row.parents), row.keep) == (
            0,
            [2, 9, 5, 6],
            [-1, 0, 1, 2],
            3,
        )


def test_a_target_in_another_process_is_waited_for_when_its_verdicts_are() -> None:
    """Until then the drafter may go on; a target in this process has worked already."""
    model = tiny_llama()
    expected = [int(plain_logits(model, prompt)[-1].argmax()) for prompt in ([1, 9, 7], [4, 2])]
    for asynchronous in (True, False):
        runner = make_runner(model, 2, 32)
        waited: list[bool] = []

        def begin(rows: Any, layers: Any, runner: Any = runner, waited: list[bool] = waited) -> Any:
            forward = Runner.begin(runner, rows, layers)
            return lambda: (waited.append(True), forward())[1]

        runner.asynchronous, runner.begin = asynchronous, begin  # type: ignore[method-assign]
        verifier = ModelVerifier(runner, Sampler())
        drafts = []
        for name, prompt in (("a", (1, 9, 7)), ("b", (4, 2))):
            record = RequestRecord(name, "test", [])
            session = Session(
                Request(name, "test", prompt, 8), RequestRandom(0, name), frozenset(), 0.0, record
            )
            drafts.append(Draft(session, TokenTree(prompt[-1])))
            verifier.admit(session)
        with torch.inference_mode():
            pending = verifier.send(drafts, [[], []])
            assert waited == ([] if asynchronous else [True])
            assert [(verdict.draft, verdict.bonus) for verdict in pending()] == list(
                zip(drafts, expected, strict=True)
            )
        assert waited == [True]


def test_only_rows_of_a_batch_of_several_say_how_they_were_padded() -> None:
    """And greedy decoding needs no more than the likeliest tokens of its own row."""
    tree, record = family_tree(), RequestRecord("one", "test", [])
    session = Session(
        Request("one", "test", (9,), 8), RequestRandom(0, "one"), frozenset(), 0.0, record
    )
    draft, best = Draft(session, tree), [2, 5, 4]
    for rows, padded in ((1, ()), (2, Padding(2, 1, 3, 3, 0))):
        forward: Any = SimpleNamespace(padding=[None, Padding(rows, 1, 3, 3, 0)])
        verdict = verdict_on(draft, [1], VerifiedRow(forward, 1, 6, best), Sampler(), ())
        assert (verdict.path, verdict.bonus, verdict.computed, verdict.padded) == (
            [1],
            4,
            6,
            padded,
        )
    unpadded: Any = SimpleNamespace(padding=[])
    assert verdict_on(draft, [1], VerifiedRow(unpadded, 1, 6, best), Sampler(), ()).padded == ()
