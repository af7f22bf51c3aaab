"""A hybrid drafter learns which member brings most tokens per second: how dear it is, and how often right."""

from collections import Counter
from dataclasses import replace

import pytest
from environments import DEPLOYMENT
from tiny_heads import put_beside, untrained
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.drafting.base import parse_drafter
from specbench_kit.decoding.drafting.best_of import HOPED_FOR, KEPT, TRIALS, Gains, Source
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.models.runner import Runner

VOCABULARY, LENGTH = 12, 60
TARGET = tiny_llama(0, vocab_size=VOCABULARY)
PROMPTS = random_prompts([5, 3, 30, 12, 8, 20], VOCABULARY, seed=2)
OWN = "suffix.shared=false"


def runners() -> tuple[Runner, Runner]:
    """A target with an untrained head, which is seldom right, beside a draft model that often is."""
    target, draft = make_runner(TARGET, 6, 120), make_runner(disturbed(TARGET, 0.02), 6, 120)
    put_beside(target, untrained(target, seed=1))
    return target, draft


def drafting_takes(seconds: float) -> Deployment:
    """A deployment in which a forward of any draft takes so long, and one of the target 0.1 seconds, without a link."""
    edge = Endpoint("edge", ContextModel(0, 0, seconds))
    server = Endpoint("server", ContextModel(0, 0, 0.1))
    return replace(
        DEPLOYMENT, drafter=edge, verifier=server, link=replace(DEPLOYMENT.link, rtt_s=0)
    )


def drafters(records: dict[str, RequestRecord], after: int = 0) -> Counter[str]:
    """Who drafted how many rounds, the first ones of the run left out."""
    rounds = [step for _, record in sorted(records.items()) for step in record.rounds]
    return Counter(step.drafter if step.submitted else "none" for step in rounds[after:])


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_outputs_are_the_targets_whoever_drafts(batch_size: int, temperature: float) -> None:
    method = FixedK(3, drafter=f"best-of.first={OWN}+second=head+third=model+curiosity=3")
    requests, sampler = make_requests(PROMPTS, LENGTH), Sampler(temperature)
    records = decode(method, runners(), requests, sampler=sampler, batch_size=batch_size)
    assert {"suffix", "head", "model"} <= set(drafters(records))
    if sampler.greedy:
        assert outputs(records) == outputs(decode(AUTOREGRESSIVE, runners(), requests))
    else:
        assert all(len(output) == LENGTH for output in outputs(records).values())


def test_of_equally_dear_members_the_one_that_is_right_drafts() -> None:
    method = FixedK(3, drafter="best-of.first=none+second=head+third=model")
    requests = make_requests(PROMPTS, LENGTH)
    counts = drafters(decode(method, runners(), requests, deployment=drafting_takes(0.002)), 30)
    assert counts["model"] > 0.8 * counts.total()


@pytest.mark.parametrize(
    ("lookup_s", "model_s", "chosen"), [(0.0, 5.0, "suffix"), (3.0, 0.002, "model")]
)
def test_of_two_members_the_cheap_one_drafts(lookup_s: float, model_s: float, chosen: str) -> None:
    """The look-up comes first in order of trust, and finds something in half of the rounds."""
    members = f"first={OWN}:min=1:lookup_s={lookup_s}+second=model"
    requests, deployment = make_requests(PROMPTS, LENGTH), drafting_takes(model_s)
    in_order, by_gain = (
        drafters(
            decode(
                FixedK(3, drafter=f"{kind}.{members}"), runners(), requests, deployment=deployment
            ),
            40,
        )
        for kind in ("first-of", "best-of")
    )
    assert 0.25 * in_order.total() < in_order["suffix"] < 0.75 * in_order.total()
    other = "model" if chosen == "suffix" else "suffix"
    assert by_gain[chosen] > 0.4 * by_gain.total()
    assert by_gain[other] < 0.1 * by_gain.total()


@pytest.mark.parametrize("batch_size", [1, 3])
def test_nothing_is_drafted_where_drafting_never_pays(batch_size: int) -> None:
    method = FixedK(3, drafter="best-of.first=none+second=model")
    requests = make_requests(PROMPTS, LENGTH)
    slow = drafting_takes(5.0)
    records = decode(method, runners(), requests, deployment=slow, batch_size=batch_size)
    counts = drafters(records)
    assert 0 < counts["model"] <= 0.2 * counts.total()
    plain = decode(AUTOREGRESSIVE, runners(), requests, deployment=slow, batch_size=batch_size)
    first_of = FixedK(3, drafter="first-of.first=none+second=model")
    always = decode(first_of, runners(), requests, deployment=slow, batch_size=batch_size)

    def total_s(decoded: dict[str, RequestRecord]) -> float:
        return sum(record.rounds[-1].end_s for record in decoded.values())

    assert total_s(plain) < total_s(records) < 0.5 * total_s(always)


def test_a_model_that_has_not_read_a_prompt_at_first_does_not_read_it_later() -> None:
    """Reading it takes as long as many rounds: it is decided in a request's first round."""
    method = FixedK(3, drafter="best-of.first=none+second=model+curiosity=5")
    requests = make_requests(PROMPTS, LENGTH)
    for record in decode(method, runners(), requests).values():
        by_model = [step.drafter == "model" for step in record.rounds]
        assert by_model[0] or not any(by_model)


def test_what_is_known_fades_and_makes_curious() -> None:
    gains = Gains(curiosity=0.5)
    model = Source("model")
    assert gains.tokens("a", None) == 1
    assert gains.tokens("a", model) == HOPED_FOR
    for _ in range(TRIALS):
        gains.add_tokens("a", model, 2)
    first = gains.tokens("a", model)
    assert first == pytest.approx(2 + 0.5 / TRIALS**0.5)
    for _ in range(200):
        gains.fade()
    assert gains.tokens("a", model) == pytest.approx(2 + 0.5 / (TRIALS * KEPT**200) ** 0.5)
    # A request's own rounds count for it more than for others.
    for _ in range(20):
        gains.add_tokens("a", model, 4)
        gains.add_tokens("b", model, 1)
    assert gains.tokens("a", model) > gains.tokens("c", model) > gains.tokens("b", model)
    gains.forget("a")
    assert gains.tokens("a", model) == gains.tokens("c", model)


def test_rounds_are_judged_by_their_usual_time() -> None:
    gains = Gains(curiosity=0)
    for seconds in (9.0, 0.5, 0.5):  # the first time, something was still to be loaded
        assert gains.rate(2, {"model"}) == float("inf")
        gains.add_round({"model"}, seconds)
    assert gains.rate(2, {"model"}) == 4
    assert gains.rate(2, {"model", "suffix"}) == float("inf")


def test_its_members_are_those_of_first_of_and_no_trace_can_hold_its_drafts() -> None:
    drafting = parse_drafter("best-of.third=model").resolved(lambda _: True)
    assert drafting.spec == "best-of.second=head+third=model"
    assert [member.display_name for member in drafting.members] == ["suffix", "head", "model"]
    assert not drafting.recordable
    for spec, problem in [
        ("best-of.curiosity=-1", "best-of: curiosity must not be negative, but is -1"),
        ("best-of.first=none+second=none", "best-of: all members are none"),
        ("best-of.first=first-of", "best-of: 'first-of' cannot be a member"),
    ]:
        with pytest.raises(SkitError, match=problem):
            parse_drafter(spec)
