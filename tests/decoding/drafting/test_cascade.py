"""A cascade drafts what its first model would draft, in fewer of its forwards."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from environments import DEPLOYMENT
from tiny_models import (
    GREEDY,
    clear_prompts,
    disturbed,
    make_requests,
    make_runner,
    plain_greedy,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import DRAFT, parse_drafter
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

LONG = 24
MODELS = [tiny_llama(0), disturbed(tiny_llama(0), 0.01), disturbed(tiny_llama(0), 0.012)]
PROMPTS = clear_prompts(MODELS[0], [3, 12, 40], LONG)


def decoded(spec: str, sampler: Sampler = GREEDY) -> tuple[list[RequestRecord], int, int]:
    """Records, and how often the draft model and the smaller one were forwarded."""
    target, draft, smaller = (make_runner(model, 3, 200) for model in MODELS)
    counts = [_count(draft), _count(smaller)]
    setup = DecodingSetup(sampler=sampler, batch_size=3)
    engine = local_loop(parse_method(spec), target, draft, setup=setup, others={"smaller": smaller})
    for request in make_requests(PROMPTS, LONG):
        engine.submit(request)
    records: list[RequestRecord] = []
    while not engine.idle:
        records += engine.step()
    return sorted(records, key=lambda one: one.request_id), len(counts[0]), len(counts[1])


def _count(runner: Runner) -> list[int]:
    """Is filled with the rows of every forward."""
    batch_sizes: list[int] = []
    forward = runner.forward
    runner.forward = lambda rows, layers=(): (batch_sizes.append(len(rows)), forward(rows, layers))[
        1
    ]  # type: ignore[method-assign]
    return batch_sizes


def test_two_models_draft_what_the_first_would_with_fewer_of_its_forwards() -> None:
    alone, forwards, none = decoded("fixed-k:k=6")
    cascade, fewer, guesses = decoded("fixed-k:k=6,drafter=cascade.second=smaller+k2=3")
    assert none == 0 < guesses
    assert fewer < 0.8 * forwards
    for plain, cascaded, prompt in zip(alone, cascade, PROMPTS, strict=True):
        assert cascaded.output_ids == plain.output_ids == plain_greedy(MODELS[0], prompt, LONG)[0]
        assert [(r.drafted, r.accepted) for r in cascaded.rounds] == [
            (r.drafted, r.accepted) for r in plain.rounds
        ]


def test_sampled_tokens_of_the_second_are_drawn_and_verified() -> None:
    records, fewer, guesses = decoded(
        "fixed-k:k=6,drafter=cascade.second=smaller", Sampler(temperature=1.0)
    )
    assert [len(record.output_ids) for record in records] == [LONG] * 3
    assert 0 < fewer < guesses


def test_it_needs_the_models_that_it_names() -> None:
    assert parse_drafter("cascade").models == (DRAFT,)
    assert parse_drafter("cascade.second=./small").models == (DRAFT, "./small")
    assert parse_drafter("cascade.first=./large+second=suffix").models == ("./large",)


FIRST = ContextModel(0, gamma_s=0.001, delta_s=0.010)
PLACE = replace(DEPLOYMENT, drafter=Endpoint("edge", FIRST))


def modelled(
    spec: str, prompt: Sequence[int], guessing: bool = False
) -> tuple[list[RoundRecord], list[int]]:
    """The rounds of one request under a deployment, and the tokens of every forward of the first."""
    record, tokens = recorded(spec, prompt, guessing)
    return record.rounds, tokens


def recorded(
    spec: str,
    prompt: Sequence[int],
    guessing: bool = False,
    place: Deployment = PLACE,
    ends: Sequence[Deployment] = (),
) -> tuple[RequestRecord, list[int]]:
    """The record of one request under a deployment, and the tokens of every forward of the first.

    All models are one, which guesses what it says itself.
    """
    target, first, second = (make_runner(MODELS[0], 1, 200) for _ in range(3))
    tokens, forward = list[int](), first.forward
    first.forward = lambda rows, layers=(): (
        tokens.append(len(rows[0].tokens)),
        forward(rows, layers),
    )[1]  # type: ignore[method-assign]
    other_runners = {"same": second} if guessing else {}
    setup = DecodingSetup()
    engine = local_loop(
        parse_method(spec),
        target,
        first,
        setup=setup,
        deployment=place,
        others=other_runners,
        ends=ends,
    )
    engine.submit(make_requests([prompt], 27)[0])
    records: list[RequestRecord] = []
    while not engine.idle:
        records += engine.step()
    return records[0], tokens


def test_at_an_end_of_derived_times_both_models_take_what_they_would_take_there() -> None:
    spec = "fixed-k:k=8,drafter=cascade.second=same+k2=3+second_s=0.002"
    slow = replace(PLACE, drafter=Endpoint("edge", ContextModel(0, gamma_s=0.003, delta_s=0.040)))
    ranged, _ = recorded(spec, PROMPTS[1], guessing=True, ends=[PLACE, slow])
    slow_link, _ = recorded(spec, PROMPTS[1], guessing=True, place=slow)
    assert slow_link.e2e_s is not None
    assert ranged.e2e_s is not None
    assert slow_link.e2e_s > 1.5 * ranged.e2e_s
    assert ranged.ends_s == pytest.approx([ranged.e2e_s, slow_link.e2e_s])


def test_a_learned_method_decides_about_every_token_of_a_cascade(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FixedK, "learned", True)
    spec = "fixed-k:k=8,drafter=cascade.second=same+k2=3+second_s=0.002"
    free, _ = recorded(spec, PROMPTS[1], guessing=True)
    judged, _ = recorded(spec, PROMPTS[1], guessing=True, place=replace(PLACE, predictor_s=0.004))
    assert [step.policy_s for step in free.rounds] == [0.0] * 3
    assert [step.policy_s for step in judged.rounds] == pytest.approx([8 * 0.004] * 3)
    assert [step.draft_s for step in judged.rounds] == [step.draft_s for step in free.rounds]


def test_under_a_deployment_every_forward_of_both_takes_its_time() -> None:
    """Twice in a round three guesses of 2 ms each, and a forward of the first of 10 ms and 1 ms per token: it reads the
    guesses and what it lacks before them, which is one token, or two at the beginning of the second round. The prompt
    less its last token is one forward of each.
    """
    rounds, _ = modelled(
        "fixed-k:k=8,drafter=cascade.second=same+k2=3+second_s=0.002", PROMPTS[1], guessing=True
    )
    assert [step.accepted for step in rounds] == [8, 8, 8]
    assert rounds[0].prefill_s == pytest.approx(0.002 + 0.010 + 0.001 * (len(PROMPTS[1]) - 1))
    assert rounds[0].draft_s == pytest.approx(6 * 0.002 + 0.014 + 0.014)
    assert rounds[1].draft_s == rounds[2].draft_s == pytest.approx(6 * 0.002 + 0.015 + 0.014)


def test_looking_up_takes_no_time_and_the_first_verifies_what_was_found() -> None:
    looping = [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2]
    rounds, (prompt, *tokens) = modelled("fixed-k:k=4,drafter=cascade", looping)
    assert prompt == len(looping) - 1
    assert max(tokens) > 3
    assert sum(step.draft_s for step in rounds) == pytest.approx(
        sum(0.010 + 0.001 * new for new in tokens)
    )


def test_a_second_model_needs_a_time_under_a_deployment() -> None:
    with pytest.raises(
        SkitError, match="nothing is known of the time that a forward of same takes"
    ):
        modelled("fixed-k:drafter=cascade.second=same", PROMPTS[0], guessing=True)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("cascade.k2=0", "k2 must be at least 1, not 0"),
        ("cascade.second_s=-1", "second_s must be at least 0, not -1"),
        ("cascade.second=model", "second must be a model or a drafter that needs none, not model"),
        ("cascade.third=x", "unknown option 'third'; known: first, second, k2, second_s"),
    ],
)
def test_bad_options_are_refused(spec: str, problem: str) -> None:
    with pytest.raises(SkitError, match=problem):
        parse_drafter(spec)
