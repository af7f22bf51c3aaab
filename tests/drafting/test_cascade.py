"""A cascade drafts what its first model would draft, in fewer of its forwards."""

from typing import Any

import pytest
from tiny_models import GREEDY, clear_prompts, disturbed, make_requests, make_runner, plain_greedy, tiny_llama

from specbench_kit.assembly import live_engine
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.drafting.base import DRAFT, parse_drafter
from specbench_kit.errors import SkitError
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

LONG = 24
MODELS = [tiny_llama(0), disturbed(tiny_llama(0), 0.01), disturbed(tiny_llama(0), 0.012)]
PROMPTS = clear_prompts(MODELS[0], [3, 12, 40], LONG)


def decoded(spec: str, sampler: Sampler = GREEDY) -> tuple[list[Any], int, int]:
    """Records, and how often the draft model and the smaller one were forwarded."""
    target, draft, smaller = (make_runner(model, 3, 200) for model in MODELS)
    counts = [_count(draft), _count(smaller)]
    shared: Any = {"seed": 0, "eos_ids": frozenset(), "batch_size": 3, "others": {"smaller": smaller}}
    engine = live_engine(parse_method(spec), target, draft, sampler=sampler, **shared)
    for request in make_requests(PROMPTS, LONG):
        engine.submit(request)
    records = []
    while not engine.idle:
        records += engine.step()
    return sorted(records, key=lambda one: one.request_id), len(counts[0]), len(counts[1])


def _count(runner: Runner) -> list[int]:
    """Is filled with the rows of every forward."""
    seen: list[int] = []
    forward = runner.forward
    runner.forward = lambda rows, layers=(): (seen.append(len(rows)), forward(rows, layers))[1]  # type: ignore[method-assign]
    return seen


def test_two_models_draft_what_the_first_would_with_fewer_of_its_forwards() -> None:
    alone, forwards, none = decoded("fixed-k:k=6")
    cascade, fewer, guesses = decoded("fixed-k:k=6,drafter=cascade.second=smaller+k2=3")
    assert none == 0 < guesses
    assert fewer < 0.8 * forwards
    for one, other, prompt in zip(alone, cascade, PROMPTS, strict=True):
        assert other.output_ids == one.output_ids == plain_greedy(MODELS[0], prompt, LONG)[0]
        assert [(r.drafted, r.accepted) for r in other.rounds] == [(r.drafted, r.accepted) for r in one.rounds]


def test_sampled_tokens_of_the_second_are_drawn_and_verified() -> None:
    records, fewer, guesses = decoded("fixed-k:k=6,drafter=cascade.second=smaller", Sampler(temperature=1.0))
    assert [len(record.output_ids) for record in records] == [LONG] * 3
    assert 0 < fewer < guesses


def test_it_needs_the_models_that_it_names() -> None:
    assert parse_drafter("cascade").models == (DRAFT,)
    assert parse_drafter("cascade.second=./small").models == (DRAFT, "./small")
    assert parse_drafter("cascade.first=./large+second=suffix").models == ("./large",)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("cascade.k2=0", "k2 must be at least 1, not 0"),
        ("cascade.second=model", "second must be a model or a drafter that needs none, not model"),
        ("cascade.third=x", "unknown option 'third'; known: first, second, k2"),
    ],
)
def test_bad_options_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(SkitError, match=problem):
        parse_drafter(spec)
