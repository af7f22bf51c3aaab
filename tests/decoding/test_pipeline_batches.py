"""A batch in a pipeline: what enters with each step, how the rows are shared, and what that gives."""

import random
from collections.abc import Callable, Sequence
from math import ceil, log

import pytest
import torch
from test_pipeline import CAPACITY, VOCABULARY, CountingStages, Echo, traced
from tiny_models import (
    clear_prompts,
    disturbed,
    make_requests,
    make_runner,
    random_prompts,
    tiny_llama,
)
from transformers import PreTrainedModel

from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.latency import ContextModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.decoding.policy import Child, LevelPolicy
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.pipeline_time import PipelineTime
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.pipeline import expected_steps, time_between_tokens
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import HandOver

# Shares.


def test_equal_shares_leave_what_a_narrow_level_cannot_use_to_the_others() -> None:
    wide, narrow = [-0.1] * 64, [-0.1] * 2
    assert StepBudget(64).allot([wide] * 8, 0) == [8] * 8
    assert StepBudget(64).allot([wide, narrow, wide, []], 2) == [30, 2, 30, 0]
    assert StepBudget(4).allot([wide] * 8, 0) == [1] * 8
    assert StepBudget().allot([wide] * 8, 9) == [64] * 8


def test_greedy_shares_go_to_the_likeliest_nodes_after_one_for_each() -> None:
    likely, unlikely = [log(0.5), log(0.3), log(0.1)], [log(0.02), log(0.01)]
    assert StepBudget(4, "greedy").allot([likely, unlikely], 0) == [3, 1]
    assert StepBudget(3, "greedy").allot([unlikely, likely], 0) == [1, 2]
    assert StepBudget(5, "greedy").allot([likely, [], unlikely], 4) == [1, 0, 1]


def test_groups_follow_each_other() -> None:
    assert [StepBudget(groups=8).roots(size) for size in (1, 7, 8, 9, 16, 17)] == [1, 1, 1, 2, 2, 3]
    assert (StepBudget().roots(16), parse_method("pipeline-ar").pipeline.budget.roots(16)) == (
        16,
        1,
    )  # type: ignore[union-attr]


# On models.


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, num_hidden_layers=3)


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel) -> tuple[Runner, Runner]:
    return make_runner(target, 8, CAPACITY), make_runner(disturbed(target, 0.01), 8, CAPACITY)


def fed(trace: Sequence[tuple[int, int, list[int]]]) -> dict[int, int]:
    """Nodes that entered the first stage, by step."""
    rows: dict[int, int] = {}
    for step, stage, ids in trace:
        if stage == 1:
            rows[step] = rows.get(step, 0) + len(ids)
    return rows


@pytest.mark.parametrize("share", ["equal", "greedy"])
def test_the_levels_of_a_step_keep_to_its_rows(
    runners: tuple[Runner, Runner], target: PreTrainedModel, share: str
) -> None:
    prompts = clear_prompts(target, [9, 30, 4, 17, 60, 2], 30)
    spec = f"specpipe:stages=4,width=12,children=4,rows=12,share={share}"
    records, trace = traced(runners, spec, prompts, 30, batch_size=4)
    assert max(fed(trace).values()) == 12
    loose, wide = traced(runners, f"{spec},budget=request", prompts, 30, batch_size=4)
    assert max(fed(wide).values()) > 24
    answers = [
        {record.request_id: record.output_ids for record in records_of_run}
        for records_of_run in (records, loose)
    ]
    assert answers[0] == answers[1]
    for record in records:
        assert all(step.drafted >= step.submitted for step in record.rounds)


def test_a_prompt_enters_in_chunks_ahead_of_the_levels_of_others(
    runners: tuple[Runner, Runner], target: PreTrainedModel
) -> None:
    """40 tokens make three steps of at most 16, in which nobody's level enters; the last of them is the root."""
    short, long = clear_prompts(target, [2, 40], 12)
    spec = "specpipe:stages=4,width=8,children=4,prefill=first,chunk=16"
    (alone,), steps = traced(runners, spec, [long], 12)
    assert min(step for step, stage, _ in steps if stage == 1) == 3
    assert alone.rounds[0].steps >= 3 + 3
    records, trace = traced(runners, spec, [short, short, long], 12, batch_size=2)
    assert [step for step in range(1, max(fed(trace))) if step not in fed(trace)]
    by_name = {record.request_id: record for record in records}
    assert by_name["002"].output_ids == alone.output_ids


def test_prompts_mixed_with_levels_hold_nobody_up(
    runners: tuple[Runner, Runner], target: PreTrainedModel
) -> None:
    """A prompt of 50 enters 8 tokens a step, beside the levels of a request that has one token and is decoding."""
    prompts = clear_prompts(target, [1, 50], 12)
    spec = "specpipe:stages=4,width=8,children=4,rows=16,prefill="
    (first, _), (mixed, shared) = (
        traced(runners, spec + how, prompts, 12, batch_size=2) for how in ("first", "mixed")
    )
    answers = [
        {record.request_id: record.output_ids for record in records_of_run}
        for records_of_run in (first, mixed)
    ]
    assert answers[0] == answers[1]
    assert set(range(1, 8)) <= set(fed(shared))
    assert next(record for record in mixed if record.request_id == "001").rounds[0].steps >= 7 + 3
    assert min(step for step, stage, _ in shared if stage == 4) == 4


def test_sampled_output_does_not_depend_on_the_batch(runners: tuple[Runner, Runner]) -> None:
    prompts, sampler = (
        random_prompts([5, 17, 60, 1], 64, seed=3),
        Sampler(temperature=0.8, top_p=0.95, top_k=20),
    )
    spec = "specpipe:stages=4,width=8,children=4,rows=10,chunk=16"
    records_by_size = [
        traced(runners, spec, prompts, 20, sampler=sampler, seed=5, batch_size=size)[0]
        for size in (1, 3)
    ]
    alone, together = (
        {record.request_id: record.output_ids for record in records} for records in records_by_size
    )
    assert alone == together


# Time.

STAGES = 8
STEP_S = Deployment(
    "fixture",
    Endpoint("no time", ContextModel(0, 0, 0)),
    Endpoint("stages", ContextModel(0, STAGES * 0.02e-3, STAGES * 10e-3), stages=STAGES),
    placement="server",
)
"""A stage takes 10 ms + 0.02 ms per row."""


class Wide(LevelPolicy):
    """Levels of eight nodes, of which the first is right with a fixed probability, independently each time."""

    def __init__(self, hit_rate: float) -> None:
        self.hit_rate, self.dice = hit_rate, random.Random(2)

    def next_level(
        self, probabilities: torch.Tensor, scores: Sequence[float], room: int
    ) -> list[Child]:
        right = self.dice.random() < self.hit_rate
        token = int(probabilities[0].argmax()) + (1 if right else 2)
        return [Child(0, (token + 2 * n) % VOCABULARY, -float(n)) for n in range(min(8, room))]


def between_tokens(
    policy: LevelPolicy, requests: int, tokens: int, budget: StepBudget
) -> tuple[float, list[RequestRecord]]:
    clock, drafts = ModelledClock(), type(policy) is not LevelPolicy
    engine = PipelineEngine(
        policy,
        Echo() if drafts else None,
        CountingStages(),
        clock,
        setup=DecodingSetup(capacity=2 * tokens, batch_size=requests),
        depth=STAGES,
        name="fixture",
        budget=budget,
        time=PipelineTime(STEP_S, clock, drafts=drafts),
    )
    for request in make_requests([[3]] * requests, tokens):
        engine.submit(request)
    records: list[RequestRecord] = []
    while not engine.idle:
        records += engine.step()
    mean_s = time_between_tokens(records)["mean"]
    assert mean_s is not None
    return mean_s, records


def microbatch_tbt(stages: int, requests: int, step: Callable[[int], float]) -> float:
    """The time between tokens without drafts, with the requests in as many groups as there are stages.

    `step` gives a stage's seconds for a group's number of rows.
    """
    groups = min(stages, requests)
    return stages * step(ceil(requests / groups))


def test_the_laws_of_a_batch() -> None:
    def step_ms(rows: int) -> float:
        return 10 + 0.02 * rows

    drafted, plain = step_ms(64) * expected_steps(STAGES, 0.8), microbatch_tbt(STAGES, 8, step_ms)
    assert (drafted, 8 / drafted * 1e3) == (pytest.approx(27.072), pytest.approx(295.508, abs=5e-4))
    assert (plain, 8 / plain * 1e3) == (pytest.approx(80.16), pytest.approx(99.800, abs=5e-4))


@pytest.mark.parametrize(("requests", "rows"), [(1, 1), (8, 1), (16, 2), (10, 2)])
def test_groups_take_the_time_of_the_law(requests: int, rows: int) -> None:
    pipeline = parse_method("pp-microbatch").pipeline
    assert pipeline is not None
    mean_s, _ = between_tokens(LevelPolicy(), requests, 12, pipeline.budget)
    assert mean_s == pytest.approx(
        microbatch_tbt(STAGES, requests, lambda new: 10e-3 + 0.02e-3 * new), rel=1e-3
    )
    assert mean_s == pytest.approx(STAGES * (10e-3 + 0.02e-3 * rows), rel=1e-3)


def test_a_batch_takes_the_steps_of_the_law() -> None:
    """Levels are narrower behind a flush, so the rows of a step, and its time, stay below those of the law."""
    tokens = 1000
    mean_s, records = between_tokens(Wide(0.8), 8, tokens, StepBudget(64))
    steps = sum(step.steps for record in records for step in record.rounds) - 8 * STAGES
    assert steps / (8 * (tokens - 1)) == pytest.approx(expected_steps(STAGES, 0.8), rel=0.02)
    assert 10.0e-3 * 2.35 < mean_s < 11.28e-3 * 2.45


def test_batching_takes_its_time_for_every_request_beyond_the_first() -> None:
    verifier = Endpoint(
        "stages", ContextModel(0, 0, 0.8), stages=2, hand_over=HandOver(batching_s=0.01)
    )
    deployment = Deployment("place", STEP_S.drafter, verifier, placement="server")
    target: PreTrainedModel = tiny_llama(0)
    runners = make_runner(target, 3, 64), make_runner(target, 3, 64)
    for size in (1, 3):
        records, _ = traced(
            runners, "pipeline-ar:stages=2", [[3]] * size, 1, batch_size=size, deployment=deployment
        )
        steps = [sum(step.steps for step in record.rounds) for record in records]
        assert records[0].e2e_s == pytest.approx(steps[0] * (0.4 + 0.01 * (size - 1)))
