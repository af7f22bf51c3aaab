"""The draft model's side of a round."""

import pytest
import torch
from tiny_models import make_runner, plain_greedy, plain_logits, random_prompts, tiny_llama
from transformers import PreTrainedModel

from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom, Sampler, draw
from specbench_kit.decoding.session import Request, Session
from specbench_kit.models.executors.base import Forward
from specbench_kit.models.runner import Runner

CAPACITY = 60


def open_session(name: str, prompt: list[int]) -> Session:
    request = Request(name, "test", tuple(prompt), 1000)
    return Session(
        request, RequestRandom(0, name), frozenset(), 0.0, RequestRecord(name, "test", prompt)
    )


@pytest.fixture
def model() -> PreTrainedModel:
    return tiny_llama(0)


@pytest.fixture
def runner(model: PreTrainedModel) -> Runner:
    return make_runner(model, 3, CAPACITY)


def make_drafter(
    runner: Runner, sampler: Sampler | None = None, capacity: int = CAPACITY
) -> ModelDrafter:
    chosen = sampler or Sampler()
    return ModelDrafter(
        runner, chosen, MeasuringClock(torch.device("cpu")), sampler is not None, capacity
    )


def chain(drafter: ModelDrafter, sessions: list[Session], length: int) -> list[Draft]:
    drafts = drafter.begin(sessions)
    for _ in range(length):
        drafter.extend(drafts)
    return drafts


def test_chains_are_the_draft_models_greedy_text(model: PreTrainedModel, runner: Runner) -> None:
    prompts = random_prompts([1, 9, 30], 64)
    drafts = chain(
        make_drafter(runner), [open_session(str(i), prompt) for i, prompt in enumerate(prompts)], 5
    )
    for draft, prompt in zip(drafts, prompts, strict=True):
        assert draft.tree.tokens[1:] == plain_greedy(model, prompt, 5)[0]
        assert draft.tree.parents == [-1, 0, 1, 2, 3, 4]
        assert (draft.request_id, draft.context_length) == (draft.session.request.id, len(prompt))


@pytest.mark.parametrize("accepted", [0, 1, 3, 5])
def test_the_next_round_goes_on_from_what_was_accepted(
    model: PreTrainedModel, runner: Runner, accepted: int
) -> None:
    """The drafter goes on, whether the last accepted token had been forwarded or not."""
    (prompt,) = random_prompts([9], 64)
    drafter, session = make_drafter(runner), open_session("a", prompt)
    (draft,) = chain(drafter, [session], 5)
    session.tokens += [*draft.tree.tokens[1 : accepted + 1], 17]
    drafter.commit(draft, list(range(1, accepted + 1)))
    assert runner.length(0) == len(prompt) + min(accepted, 4)
    assert runner.provisional(0) == 0
    text = list(session.tokens)
    (draft,) = chain(drafter, [session], 4)
    assert draft.tree.tokens == [17, *plain_greedy(model, text, 4)[0]]


def test_a_round_without_a_draft_is_caught_up_with(model: PreTrainedModel, runner: Runner) -> None:
    (prompt,) = random_prompts([9], 64)
    drafter, session = make_drafter(runner), open_session("a", prompt)
    for length in (0, 2, 0, 0, 3):
        (draft,) = chain(drafter, [session], length)
        assert draft.tree.tokens[1:] == plain_greedy(model, session.tokens, length)[0]
        session.tokens += [*draft.tree.tokens[1:], 11]
        drafter.commit(draft, list(range(1, length + 1)))


def test_trees_get_the_distribution_of_every_path(model: PreTrainedModel, runner: Runner) -> None:
    prompts = random_prompts([12, 4], 64)
    drafter, sessions = (
        make_drafter(runner),
        [open_session(str(i), prompt) for i, prompt in enumerate(prompts)],
    )
    first_draft, second_draft = drafter.begin(sessions)
    first = drafter.expand([(first_draft, [0]), (second_draft, [0])])
    for draft, row in ((first_draft, 0), (second_draft, 1)):
        assert [draft.tree.add(token, 0, first, row) for token in (3, 4)] == [1, 2]
    second = drafter.expand([(first_draft, [1, 2]), (second_draft, [2])])
    assert [first_draft.tree.add(token, 2, second, 1) for token in (5, 6)] == [3, 4]
    assert second_draft.tree.add(7, 2, second, 2) == 3
    third = drafter.expand([(second_draft, [3, 1]), (first_draft, [4])])
    texts = {
        first: [prompts[0], prompts[1]],
        second: [[*prompts[0], 3], [*prompts[0], 4], [*prompts[1], 4]],
        third: [[*prompts[1], 4, 7], [*prompts[1], 3], [*prompts[0], 4, 6]],
    }
    for forward, rows in texts.items():
        expected = torch.stack([plain_logits(model, text)[-1] for text in rows])
        torch.testing.assert_close(forward.logits, expected, atol=1e-4, rtol=1e-4)
    sessions[0].tokens += [4, 6, 20]
    drafter.commit(first_draft, [2, 4])
    assert runner.length(0) == 12 + 2
    (draft,) = chain(drafter, sessions[:1], 3)
    assert draft.tree.tokens[1:] == plain_greedy(model, [*prompts[0], 4, 6, 20], 3)[0]


def test_what_is_kept_goes_on_as_the_next_rounds_tree(
    model: PreTrainedModel, runner: Runner
) -> None:
    """The kept node is not among the accepted: it is what the target itself said next."""
    (prompt,) = random_prompts([12], 64)
    session = open_session("a", prompt)
    drafter = make_drafter(runner)
    (draft,) = drafter.begin([session])
    first = drafter.expand([(draft, [0])])
    draft.tree.add(3, 0, first, 0)
    draft.tree.add(4, 0, first, 0)
    second = drafter.expand([(draft, [1, 2])])
    draft.tree.add(5, 2, second, 1)
    third = drafter.expand([(draft, [3])])
    for token in (6, 7):
        draft.tree.add(token, 3, third, 0)
    drafter.expand([(draft, [5])])
    session.tokens += [4, 5]
    drafter.commit(draft, [2], root=3)
    (draft,) = drafter.begin([session])
    assert (draft.tree.tokens, draft.tree.parents, draft.tree.inherited) == (
        [5, 6, 7],
        [-1, 0, 0],
        2,
    )
    assert draft.tree.drafted == 0
    draft.tree.add(8, 2, third, 0)
    forward = drafter.expand([(draft, [3, 1])])
    expected = torch.stack(
        [plain_logits(model, [*prompt, 4, 5, *path])[-1] for path in ([7, 8], [6])]
    )
    torch.testing.assert_close(forward.logits, expected, atol=1e-4, rtol=1e-4)
    assert draft.tree.drafted == 1
    session.tokens += [7, 8, 9]
    drafter.commit(draft, [2, 3])
    (draft,) = chain(drafter, [session], 3)
    assert draft.tree.tokens[1:] == plain_greedy(model, [*prompt, 4, 5, 7, 8, 9], 3)[0]


def test_nodes_that_no_model_proposed_can_be_expanded(
    model: PreTrainedModel, runner: Runner
) -> None:
    """A graft: the root is forwarded along with it."""
    (prompt,) = random_prompts([12], 64)
    drafter = make_drafter(runner)
    (draft,) = drafter.begin([open_session("a", prompt)])
    nowhere = DraftForward(Forward([]), Sampler())
    draft.tree.add(5, 0, nowhere, 0)
    draft.tree.add(6, 1, nowhere, 0)
    forward = drafter.expand([(draft, [1, 2])])
    expected = plain_logits(model, [*prompt, 5, 6])[-2:]
    torch.testing.assert_close(forward.logits, expected, atol=1e-4, rtol=1e-4)


def test_sampled_chains_use_the_requests_own_numbers(
    model: PreTrainedModel, runner: Runner
) -> None:
    sampler, prompts = Sampler(temperature=1.5), random_prompts([7, 2], 64)
    drafts = chain(
        make_drafter(runner, sampler), [open_session(str(i), p) for i, p in enumerate(prompts)], 4
    )
    for draft, prompt in zip(drafts, prompts, strict=True):
        random, text = RequestRandom(0, draft.request_id), list(prompt)
        for token in draft.tree.tokens[1:]:
            assert draw(
                sampler.probabilities(plain_logits(model, text)[-1:]), [random.uniform("draft")]
            ) == [token]
            text.append(token)


@pytest.mark.parametrize("capacity", [CAPACITY, 40])
def test_drafts_stop_where_the_slot_is_full(runner: Runner, capacity: int) -> None:
    drafter = make_drafter(runner, capacity=capacity)
    sessions = [open_session("a", [1] * (capacity - 4)), open_session("b", [1] * (capacity - 1))]
    drafts = drafter.begin(sessions)
    assert [drafter.room(draft) for draft in drafts] == [3, 0]
    grown = [[draft.request_id for draft in drafter.extend(drafts)] for _ in range(5)]
    assert grown == [["a"], ["a"], ["a"], [], []]
    assert [drafter.room(draft) for draft in drafts] == [0, 0]


def test_a_released_slot_serves_another_request(model: PreTrainedModel) -> None:
    drafter = make_drafter(make_runner(model, 1, CAPACITY))
    for name, prompt in zip("abc", random_prompts([9, 30, 3], 64), strict=True):
        session = open_session(name, prompt)
        (draft,) = chain(drafter, [session], 3)
        assert draft.tree.tokens[1:] == plain_greedy(model, prompt, 3)[0]
        drafter.release(session)
    drafter.release(open_session("never drafted", [1]))
