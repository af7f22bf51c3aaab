"""The upper bound: nothing that it sends is rejected, and no draft lengths are faster."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest
from tiny_models import (
    AUTOREGRESSIVE,
    decode,
    disturbed,
    make_requests,
    make_runner,
    random_prompts,
    tiny_llama,
    with_references,
)
from trace_builders import DRAFT_S, MAX_DRAFT, VERIFY_S, made_requests

from specbench_kit.decoding.drafter import Drafter
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Deployment
from specbench_kit.deployments.loading import load
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import Capability, Method, Policy
from specbench_kit.methods.selection import longest_draft
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner
from specbench_kit.predictors.library import PairHashes
from specbench_kit.traces.replay import recording_deployment, replay
from specbench_kit.traces.trace import RequestTrace, TraceHeader

Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def runners() -> Runners:
    target = tiny_llama(0)
    return make_runner(target, 3, 200), make_runner(disturbed(target, 0.004), 3, 200)


def decode_all(spec: str, runners: Runners, sampler: Sampler) -> dict[str, RequestRecord]:
    requests = make_requests(random_prompts([3, 9, 1, 30, 14], 64), 60)
    answers = decode(AUTOREGRESSIVE, runners, requests, sampler=sampler, batch_size=3)
    return decode(
        parse_method(spec),
        runners,
        with_references(requests, answers),
        sampler=sampler,
        batch_size=3,
    )


@pytest.mark.parametrize(
    "sampler", [Sampler(), Sampler(temperature=0.8)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("longest", [1, 4, 8])
def test_all_that_is_sent_is_accepted(longest: int, sampler: Sampler, runners: Runners) -> None:
    records = decode_all(f"oracle:max_draft={longest}", runners, sampler)
    rounds = [step for record in records.values() for step in record.rounds]
    for step in rounds:
        assert step.accepted == step.submitted
        assert step.drafted == step.submitted + 1 or step.drafted == step.submitted == longest
    assert sum(step.accepted for step in rounds) > 10


def test_no_chain_needs_fewer_rounds(runners: Runners) -> None:
    best = decode_all("oracle:max_draft=6", runners, Sampler())
    for spec in ("fixed-k:k=6", "fixed-k:k=3", "threshold:max_draft=6", "autoregressive"):
        rival = decode_all(spec, runners, Sampler())
        assert all(len(best[name].rounds) <= len(rival[name].rounds) for name in best)
        assert {name: best[name].output_ids for name in best} == {
            name: rival[name].output_ids for name in best
        }
    rounds = sum(len(record.rounds) for record in best.values())
    assert rounds == sum(
        len(record.rounds) for record in decode_all("fixed-k:k=6", runners, Sampler()).values()
    )


@dataclass(frozen=True)
class Lengths(Method):
    """Drafts lengths that are given by the number of tokens before each round, and leaves the others to the server."""

    lengths: tuple[int, ...] = ()
    streams: tuple[bool, ...] = ()
    required_capability = Capability.TOKENS

    def policy(self) -> Policy:
        return _LengthsPolicy(self.lengths, self.streams)


@dataclass
class _LengthsPolicy(Policy):
    lengths: tuple[int, ...]
    streams: tuple[bool, ...]

    def draft(self, drafter: Drafter) -> None:
        (draft,) = drafter.drafts
        for _ in range(self.lengths[draft.session.produced]):
            drafter.extend([draft])
        # The server goes on by itself where the round after this one, whose place only the verdict tells, may be its.
        draft.tree.server_continues = self.streams[draft.session.produced]


HEADER = TraceHeader(MAX_DRAFT, DRAFT_S, VERIFY_S, {})
LONGEST = 4


def places() -> Iterator[Deployment]:
    yield recording_deployment(HEADER)
    for name in ("wisp", "raspberry-pi", "adaspec-7b-a100", "wan"):
        deployment = load(name)
        assert deployment is not None
        yield replace(deployment, link=replace(deployment.link, jitter_s=0.0))


def seconds(method: Method, trace: RequestTrace, deployment: Deployment) -> float:
    (record,) = replay(method, HEADER, [trace], deployment=deployment)
    assert record.output_ids == trace.output_ids
    assert record.e2e_s is not None
    return record.e2e_s


def prepared(spec: str, deployment: Deployment) -> Method:
    return parse_method(spec).prepare(
        replace(environment(PairHashes("a", "b"), deployment), longest_draft=MAX_DRAFT)
    )


@pytest.mark.parametrize("deployment", list(places()), ids=lambda deployment: deployment.name)
def test_no_lengths_are_faster(deployment: Deployment) -> None:
    """Random lengths, right and wrong, random rounds of the server alone, and mutations of what was best so far."""
    on_edge = deployment.placement == "edge"
    for number, trace in enumerate(made_requests(10, length=12)):
        random = Random(number)
        best = seconds(prepared(f"oracle:max_draft={LONGEST}", deployment), trace, deployment)
        size = len(trace.output_ids)
        plan = Lengths(lengths=(0,) * size, streams=(on_edge,) * size)
        fastest_s = seconds(plan, trace, deployment)
        for _ in range(60):
            lengths = [
                length if random.random() < 0.8 else random.randint(0, LONGEST)
                for length in plan.lengths
            ]
            streams = [
                flag if random.random() < 0.8 else on_edge and random.random() < 0.5
                for flag in plan.streams
            ]
            other = Lengths(lengths=tuple(lengths), streams=tuple(streams))
            if (other_s := seconds(other, trace, deployment)) < fastest_s:
                plan, fastest_s = other, other_s
        assert best <= fastest_s * (1 + 1e-12), f"request {number}: {plan}"


@pytest.mark.parametrize("deployment", list(places()), ids=lambda deployment: deployment.name)
def test_no_method_that_waits_is_faster_and_plain_decoding_is_not_either(
    deployment: Deployment,
) -> None:
    for trace in made_requests(6):
        best = seconds(prepared("oracle", deployment), trace, deployment)
        rivals = [f"fixed-k:k={k}" for k in range(1, MAX_DRAFT + 1)]
        for spec in (
            "autoregressive",
            "threshold:threshold=0.6,max_draft=6",
            "measured-link:max_draft=6",
            *rivals,
        ):
            assert best <= seconds(prepared(spec, deployment), trace, deployment) * (1 + 1e-12), (
                spec
            )


def test_a_live_oracle_takes_the_time_of_the_replayed_one(runners: Runners) -> None:
    """The draft model reads the answer once to know what it will have right, which takes none of the run's time."""
    requests = make_requests(random_prompts([3, 9, 14], 64), 40)
    answers = decode(AUTOREGRESSIVE, runners, requests)
    deployment = load("wisp")
    assert deployment is not None
    deployment = replace(deployment, link=replace(deployment.link, jitter_s=0.0))
    asked = with_references(requests, answers)
    best = decode(prepared("oracle:max_draft=6", deployment), runners, asked, deployment=deployment)
    for spec in ("autoregressive", "fixed-k:k=3", "fixed-k:k=6", "threshold:max_draft=6"):
        rival = decode(prepared(spec, deployment), runners, asked, deployment=deployment)
        for name, record in best.items():
            assert record.output_ids == rival[name].output_ids
            assert record.e2e_s <= rival[name].e2e_s * (1 + 1e-12), spec


def test_it_drafts_as_far_as_the_methods_beside_it() -> None:
    assert longest_draft(["fixed-k:k=12", "oracle", "pearl"]) == 12
    assert longest_draft(["oracle", "fixed-k:k=3"]) == 8
    (deployment, *_) = places()
    ready = prepared("oracle", deployment)
    assert ready.longest_draft == MAX_DRAFT
    assert ready.chosen_options() == {"max_draft": MAX_DRAFT}
    assert prepared("oracle:max_draft=2", deployment).longest_draft == 2
