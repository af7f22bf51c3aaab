"""The round loop: what its records say, whom it refuses, and that requests do not touch each other."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
from tiny_models import (
    AUTOREGRESSIVE,
    GREEDY,
    clear_prompts,
    decode,
    disturbed,
    make_requests,
    make_runner,
    outputs,
    random_prompts,
    tiny_llama,
)
from transformers import PreTrainedModel

from specbench_kit.decoding.detail import DetailCollector
from specbench_kit.decoding.engine import Engine
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.base import Method, Policy
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from specbench_kit.decoding.drafter import Draft, Drafter

SAMPLED = Sampler(temperature=0.9, top_p=0.95, top_k=20)
PHASES = ("prefill_s", "draft_s", "policy_s", "link_s", "queue_s", "verify_s", "commit_s")
Runners = tuple[Runner, Runner]


@dataclass(frozen=True)
class HalfSent(Method):
    """Drafts three likely tokens and sends the first two, or none in every other round."""

    proposal = "top"

    def policy(self) -> Policy:
        return _HalfSentPolicy()


class _HalfSentPolicy(Policy):
    rounds = 0

    def draft(self, drafter: "Drafter") -> None:
        self.rounds += 1
        for _ in range(3):
            drafter.extend(drafter.drafts)

    def choose(self, drafts: "Sequence[Draft]") -> list[list[int]]:
        return [nodes[:2] if self.rounds % 2 else [] for nodes in super().choose(drafts)]


METHODS = [
    AUTOREGRESSIVE,
    parse_method("fixed-k"),
    parse_method("threshold:schedule=heuristic"),
    HalfSent(),
]


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel) -> Runners:
    return make_runner(target, 4, 100), make_runner(disturbed(target, 0.005), 4, 100)


def make_engine(
    method: Method, runners: Runners, *, batch_size: int = 1, started_s: float = 0.0
) -> Engine:
    return local_loop(
        method, *runners, setup=DecodingSetup(batch_size=batch_size, started_s=started_s)
    )


def drain(engine: Engine) -> list[RequestRecord]:
    records = []
    while not engine.idle:
        records += engine.step()
    return records


@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("batch_size", [1, 4])
def test_records_add_up(
    method: Method, sampler: Sampler, batch_size: int, runners: Runners
) -> None:
    engine = local_loop(
        method,
        *runners,
        setup=DecodingSetup(
            sampler=sampler, eos_ids=frozenset({3, 4}), batch_size=batch_size, started_s=7.0
        ),
    )
    prompts = random_prompts([5, 1, 70, 12, 30, 2, 9], 64)
    for request in make_requests(prompts, 20):
        engine.submit(request)
    records = drain(engine)
    assert len(records) == 7
    for record in records:
        _check_rounds(record)
        assert record.prompt_ids == prompts[int(record.request_id)]
        assert record.finish_reason == ("eos" if record.output_ids[-1] in (3, 4) else "length")
        assert record.time_kind == "measured"
        assert record.error is None
        assert RequestRecord.from_json(record.to_json()) == record
    charged = sum(
        getattr(step, phase) for record in records for step in record.rounds for phase in PHASES
    )
    assert 0 < charged <= engine.clock.now_s() - 7.0
    finished = [record.finished_s or 0.0 for record in records]
    assert sorted(finished) == finished
    assert 7.0 < finished[0] <= finished[-1] <= engine.clock.now_s()


def _check_rounds(record: RequestRecord) -> None:
    assert sum(step.committed for step in record.rounds) == len(record.output_ids) <= 20
    for step in record.rounds:
        assert step.drafted >= step.submitted >= step.accepted >= 0
        assert all(getattr(step, phase) >= 0 for phase in PHASES)
        assert step.verify_s > 0
        assert (step.draft_s > 0) == (step.drafted > 0)
        assert step.link_s == step.queue_s == 0
    for step in record.rounds[:-1]:
        assert step.committed == step.accepted + 1
    assert 1 <= record.rounds[-1].committed <= record.rounds[-1].accepted + 1
    ends = [step.end_s for step in record.rounds]
    assert sorted(ends) == ends
    assert (record.ttft_s, record.e2e_s) == (ends[0], ends[-1])
    if len(record.output_ids) > 1:
        assert record.tpot_s == pytest.approx((ends[-1] - ends[0]) / (len(record.output_ids) - 1))
    else:
        assert record.tpot_s is None


def test_drafted_counts_what_is_not_sent(runners: Runners) -> None:
    records = decode(HalfSent(), runners, make_requests(random_prompts([5, 9], 64), 12))
    rounds = records["000"].rounds
    assert [step.drafted for step in rounds] == [3] * len(rounds)
    assert [step.submitted for step in records["000"].rounds] == [2, 0] * (len(rounds) // 2) + [
        2
    ] * (len(rounds) % 2)
    assert outputs(records) == outputs(
        decode(AUTOREGRESSIVE, runners, make_requests(random_prompts([5, 9], 64), 12))
    )


@pytest.mark.parametrize(
    "spec", ["fixed-k:k=3", "specinfer:branching=2-1-2", "specedge:budget=9,depth=4,branch=3"]
)
def test_a_round_says_how_deep_its_tree_was_sent(spec: str, runners: Runners) -> None:
    engine, details = make_engine(parse_method(spec), runners), DetailCollector()
    engine.on_round = details.note
    engine.submit(make_requests(random_prompts([9], 64), 40)[0])
    (record,) = drain(engine)
    for shown, step in zip(details.take("000").rounds, record.rounds, strict=True):
        depths = [0]
        for parent in shown.parents[1:]:
            depths.append(depths[parent] + 1)
        assert step.deepest == max(depths[node] for node in shown.submitted)
        assert len(shown.path) <= step.deepest <= step.submitted
    assert max(step.deepest or 0 for step in record.rounds) > 1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_a_refused_prompt_is_recorded_and_the_run_goes_on(
    runners: Runners, batch_size: int
) -> None:
    prompts = random_prompts([5, 100, 99, 0, 150, 7], 64)
    records = decode(
        parse_method("fixed-k"), runners, make_requests(prompts, 6), batch_size=batch_size
    )
    assert sorted(records) == [f"{i:03}" for i in range(6)]
    for name, length in (("001", 100), ("003", 0), ("004", 150)):
        record = records[name]
        assert (record.finish_reason, record.output_ids, record.rounds) == ("error", [], [])
        assert record.error == f"the prompt has {length} tokens; the context holds 1 to 99"
        assert record.ttft_s is record.e2e_s is record.tpot_s is record.finished_s is None
        assert RequestRecord.from_json(record.to_json()) == record
    assert [len(records[name].output_ids) for name in ("000", "002", "005")] == [6, 1, 6]
    alone = decode(parse_method("fixed-k"), runners, [make_requests(prompts, 6)[5]])
    assert alone["005"].output_ids == records["005"].output_ids


def test_a_verification_with_a_prompt_in_it_is_not_typical(runners: Runners) -> None:
    engine = make_engine(parse_method("fixed-k"), runners, batch_size=2)
    for request in make_requests(random_prompts([30, 9], 64), 20):
        engine.submit(request)
    engine.step()
    assert engine.clock.typical_s("verify") == 0
    engine.step()
    assert engine.clock.typical_s("verify") > 0
    drain(engine)


def test_nothing_but_refusals(runners: Runners) -> None:
    engine = make_engine(AUTOREGRESSIVE, runners, batch_size=2)
    for request in make_requests([[], []], 6):
        engine.submit(request)
    assert [record.finish_reason for record in engine.step()] == ["error", "error"]
    assert engine.idle
    assert engine.step() == []


def test_requests_are_taken_in_order_and_a_next_turn_first(runners: Runners) -> None:
    engine = make_engine(AUTOREGRESSIVE, runners)
    for request in make_requests([[1], [2], [3]], 2):
        engine.submit(request)
    finished: list[str] = []
    while not engine.idle:
        for record in engine.step():
            if record.request_id == "000":
                engine.submit(Request("000/2", "test", (1, 5), 2), first=True)
            finished.append(record.request_id)
    assert finished == ["000", "000/2", "001", "002"]


def test_the_batch_is_kept_full(runners: Runners) -> None:
    engine = make_engine(AUTOREGRESSIVE, runners, batch_size=3)
    for number, request in enumerate(make_requests([[1]] * 7, 1)):
        engine.submit(replace(request, max_new_tokens=number + 1))
    unfinished = 7
    while not engine.idle:
        finished = len(engine.step())
        assert finished + len(engine.sessions) == min(3, unfinished)
        unfinished -= finished
    assert unfinished == 0


def test_engines_take_turns_on_the_same_runners(target: PreTrainedModel, runners: Runners) -> None:
    """Each engine's clock moves in its own steps only, and their slots do not mix."""
    prompts = clear_prompts(target, [5, 9], 15)
    engines = [
        make_engine(method, runners, batch_size=2)
        for method in (AUTOREGRESSIVE, parse_method("fixed-k"))
    ]
    for engine in engines:
        for request in make_requests(prompts, 15):
            engine.submit(request)
    texts: list[dict[str, list[int]]] = [{}, {}]
    while not all(engine.idle for engine in engines):
        for engine, idle_engine, text in zip(engines, engines[::-1], texts, strict=True):
            before = idle_engine.clock.now_s()
            text |= {record.request_id: record.output_ids for record in engine.step()}
            assert idle_engine.clock.now_s() == before
    assert texts[0] == texts[1] != {}


@pytest.mark.parametrize(("capacity", "longest"), [(20, 20), (200, 100)])
def test_a_request_reaches_what_both_the_setup_and_the_runners_allow(
    capacity: int, longest: int, runners: Runners
) -> None:
    engine = local_loop(parse_method("fixed-k"), *runners, setup=DecodingSetup(capacity=capacity))
    engine.submit(Request("long", "test", (1, 2, 3), 500))
    (record,) = drain(engine)
    assert (len(record.prompt_ids) + len(record.output_ids), record.finish_reason) == (
        longest,
        "length",
    )


@pytest.mark.parametrize("capacities", [(60, 100), (100, 60)])
@pytest.mark.parametrize("method", METHODS)
def test_the_shorter_slot_counts(
    method: Method, capacities: tuple[int, int], target: PreTrainedModel
) -> None:
    draft = disturbed(target, 0.001)
    runners = make_runner(target, 2, capacities[0]), make_runner(draft, 2, capacities[1])
    records = decode(
        method, runners, make_requests(random_prompts([50, 59, 60], 64), 200), batch_size=2
    )
    assert [len(records[name].output_ids) for name in sorted(records)] == [10, 1, 0]


@pytest.mark.parametrize("method", [AUTOREGRESSIVE, parse_method("fixed-k"), HalfSent()])
def test_sampled_output_does_not_depend_on_the_batch(method: Method, runners: Runners) -> None:
    requests = make_requests(random_prompts([5, 1, 30, 12, 2], 64), 15)
    alone, together = (
        decode(method, runners, requests, sampler=SAMPLED, batch_size=size) for size in (1, 4)
    )
    assert outputs(alone) == outputs(together)
    assert (
        outputs(decode(method, runners, requests[3:], sampler=SAMPLED))["003"]
        == alone["003"].output_ids
    )


@pytest.mark.parametrize("method", [AUTOREGRESSIVE, parse_method("fixed-k")])
def test_the_seed_decides_the_sample(method: Method, runners: Runners) -> None:
    requests = make_requests(random_prompts([5, 1, 30], 64), 15)
    first, again, other_seed = (
        outputs(decode(method, runners, requests, sampler=SAMPLED, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert all(first[name] != other_seed[name] for name in first)


def test_sample_and_match_draws_what_plain_decoding_draws(runners: Runners) -> None:
    requests = make_requests(random_prompts([5, 1, 30, 12, 2], 64), 25)
    plain, matched = (
        decode(method, runners, requests, sampler=SAMPLED, seed=3)
        for method in (AUTOREGRESSIVE, HalfSent())
    )
    assert outputs(plain) == outputs(matched)
    assert sum(step.accepted for record in matched.values() for step in record.rounds) > 5
