"""The pipeline loop on virtual stages: what is in flight, what KV holds, when tokens come, what a record says."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from nightly import nightly_except
from tiny_models import (
    AUTOREGRESSIVE,
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

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.detail import DetailCollector
from specbench_kit.decoding.latency import ContextModel, TableModel
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.pipeline.flight import Flight, Level, Prune
from specbench_kit.decoding.pipeline.loop import PipelineEngine
from specbench_kit.decoding.pipeline.stages import (
    ExitingTokens,
    Feed,
    StageOutput,
    TreeSlot,
    VirtualStages,
)
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.processes.worker import CarriedLevel, Stage
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.timeline import Timeline
from specbench_kit.deployments.assembly import local_loop, pipeline_engine
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.methods.base import Child, LevelPolicy
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.latency import inter_token_gaps
from specbench_kit.metrics.pipeline import expected_steps, published_steps
from specbench_kit.metrics.rounds import RequestGroup
from specbench_kit.models.runner import Append, Runner
from specbench_kit.runs.deployment import TOKEN_BYTES, HandOver, Link

SPEC = "specpipe:stages=4,width=8,children=4"
CAPACITY = 256
Runners = tuple[Runner, Runner]


@pytest.fixture(scope="module")
def target() -> PreTrainedModel:
    return tiny_llama(0, num_hidden_layers=3)


@pytest.fixture(scope="module")
def runners(target: PreTrainedModel) -> Runners:
    return make_runner(target, 4, CAPACITY), make_runner(disturbed(target, 0.01), 4, CAPACITY)


def traced(
    runners: Runners,
    spec: str,
    prompts: Sequence[Sequence[int]],
    length: int,
    details: DetailCollector | None = None,
    deployment: Deployment | None = None,
    **options: Any,
) -> Any:
    """The records of a run and what every stage held in every step."""
    setup = DecodingSetup(capacity=CAPACITY, **options)
    engine = pipeline_engine(
        parse_method(spec),
        VirtualStages(runners[0]),
        {"draft": runners[1]},
        setup,
        device=runners[0].device,
        deployment=deployment,
    )
    engine.trace = []
    if details is not None:
        engine.on_round = details.note
    for request in make_requests(prompts, length):
        engine.submit(request)
    records = []
    while not engine.idle:
        records += engine.step()
    return records, engine.trace


# What is in flight.


def test_a_node_is_fed_once_and_moves_one_stage_per_step(
    runners: Runners, target: PreTrainedModel
) -> None:
    (record,), trace = traced(runners, SPEC, clear_prompts(target, [9], 40), 40)
    nodes_in = {(step, stage): ids for step, stage, ids in trace}
    fed = [node for (_, stage), ids in nodes_in.items() if stage == 1 for node in ids]
    assert len(fed) == len(set(fed)) == sum(step.submitted + 1 for step in record.rounds)
    for (step, stage), ids in nodes_in.items():
        assert stage == 1 or set(ids) <= set(nodes_in[step - 1, stage - 1])
        assert len(ids) <= 8
    assert all(len(ids) == 1 for (_, stage), ids in nodes_in.items() if stage == 4)
    assert len([stage for _, stage in nodes_in if stage == 4]) == len(record.output_ids)


def test_a_record_says_what_happened_between_two_fills(
    runners: Runners, target: PreTrainedModel
) -> None:
    records, trace = traced(runners, SPEC, clear_prompts(target, [9, 30], 40), 40)
    assert [record.request_id for record in records] == ["000", "001"]
    assert sum(step.steps for record in records for step in record.rounds) == max(
        step for step, _, _ in trace
    )
    for record in records:
        *before, last = record.rounds
        assert sum(step.committed for step in record.rounds) == len(record.output_ids)
        assert all(step.committed == step.accepted + 1 for step in before)
        assert last.committed - last.accepted in (0, 1)
        assert all(
            step.steps >= step.committed + 3 and step.drafted >= step.submitted
            for step in record.rounds
        )
        moments = [moment for step in record.rounds for moment in step.commits_s]
        assert moments == sorted(moments)
        assert (record.ttft_s, record.e2e_s) == (moments[0], moments[-1])
        assert list(inter_token_gaps(RequestGroup([record]).rounds)) == pytest.approx(
            np.diff(moments)
        )
        assert RequestRecord.from_json(record.to_json()) == record


def test_every_round_shows_what_was_fed_and_what_came_of_it(
    runners: Runners, target: PreTrainedModel
) -> None:
    details = DetailCollector()
    records, _ = traced(runners, SPEC, clear_prompts(target, [9, 30], 40), 40, details)
    for record in records:
        shown, root = details.take(record.request_id).rounds, record.prompt_ids[-1]
        assert len(shown) == len(record.rounds)
        output = []
        for detail, step in zip(shown, record.rounds, strict=True):
            assert (detail.tokens[0], detail.parents[0]) == (root, -1)
            assert (len(detail.submitted), len(detail.path), detail.committed) == (
                step.submitted,
                step.accepted,
                step.committed,
            )
            assert step.deepest == max(_depths(detail.parents))
            assert [detail.parents[node] for node in detail.path] == [0, *detail.path[:-1]][
                : len(detail.path)
            ]
            assert all(parent < node for node, parent in enumerate(detail.parents))
            assert all(0 < probability <= 1 for probability in detail.probabilities)
            output += [*(detail.tokens[node] for node in detail.path), detail.bonus][
                : detail.committed
            ]
            root = output[-1]
        assert output == record.output_ids


def _depths(parents: Sequence[int]) -> list[int]:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    return depths


def test_requests_of_a_batch_share_the_steps(target: PreTrainedModel, runners: Runners) -> None:
    """None waits for another: the prompts make one step, and then all go on together."""
    deployment = Deployment(
        "stages", Endpoint("a", TableModel((0.01,))), Endpoint("b", TableModel((0.4,)), stages=4)
    )
    prompts = clear_prompts(target, [9, 30, 4, 17], 12)
    options: dict[str, Any] = {"deployment": deployment, "started_s": 7.0}
    spec = "specpipe:stages=4,width=8,children=4,budget=request"
    alone, _ = traced(runners, spec, prompts, 12, **options)
    records, _ = traced(runners, spec, prompts, 12, batch_size=4, **options)
    together = {record.request_id: record for record in records}
    for single in alone:
        record = together[single.request_id]
        assert record.output_ids == single.output_ids
        assert [step.steps for step in record.rounds] == [step.steps for step in single.rounds]
        assert (record.ttft_s, record.e2e_s) == (
            pytest.approx(single.ttft_s),
            pytest.approx(single.e2e_s),
        )
        assert all(step.queue_s == 0 for step in record.rounds)
    verify_s = sum(step.verify_s for record in records for step in record.rounds)
    assert verify_s == pytest.approx(max(record.e2e_s for record in records))


def test_a_refused_prompt_frees_its_place_at_once(runners: Runners) -> None:
    records, _ = traced(runners, SPEC, [[], [1] * CAPACITY, [3]], 4, batch_size=2)
    assert [record.finish_reason for record in records] == ["error", "error", "length"]
    assert len(records[-1].output_ids) == 4


def test_sampled_output_is_that_of_plain_decoding_with_the_same_seed(runners: Runners) -> None:
    prompts, sampler = (
        random_prompts([5, 17, 60], 64, seed=3),
        Sampler(temperature=0.8, top_p=0.95, top_k=20),
    )
    plain = decode(AUTOREGRESSIVE, runners, make_requests(prompts, 40), sampler=sampler, seed=5)
    records, _ = traced(runners, SPEC, prompts, 40, sampler=sampler, seed=5)
    assert {record.request_id: record.output_ids for record in records} == outputs(plain)
    assert sum(step.accepted for record in records for step in record.rounds) > 10


def test_a_tree_that_finds_no_room_is_cut_short(target: PreTrainedModel) -> None:
    """Slots that hold hardly more than the answer: levels shrink, the pipeline runs dry, the output stays."""
    narrow = make_runner(target, 1, 48), make_runner(disturbed(target, 0.01), 1, 48)
    requests = make_requests(clear_prompts(target, [9], 36), 36)
    assert outputs(decode(parse_method(SPEC), narrow, requests)) == outputs(
        decode(AUTOREGRESSIVE, narrow, requests)
    )


def test_places_follow_what_is_kept() -> None:
    flight = Flight(3)
    flight.enter(Level([0], [7], [-1], [1, 2]), [0.0])
    flight.enter(Level([1, 2], [4, 5], [0, 0]), [-0.1, -0.2])
    flight.enter(Level([3, 4, 5], [6, 8, 9], [1, 2, 2]), [-0.3, -0.4, -0.5])
    assert flight.root_in_last_stage
    assert flight.occupancy == [(1, [3, 4, 5]), (2, [1, 2]), (3, [0])]
    assert (flight.child(5), flight.child(6)) == (2, None)
    flight.keep(flight.below(2))
    flight.enter(Level(), [])
    assert flight.occupancy == [(2, [4, 5]), (3, [2])]
    assert (flight.tokens, flight.parents, flight.scores) == (
        [5, 8, 9],
        [-1, 0, 0],
        [-0.2, -0.4, -0.5],
    )
    assert (flight.bottom, flight.prefix) == (range(1, 3), 0)
    assert flight.child(9) == 2


# What KV holds.


@dataclass
class PipelineMirror:
    """A flight as it ought to be."""

    committed: list[int]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)

    def path(self, place: int) -> list[int]:
        return [] if place < 0 else [*self.path(self.parents[place]), self.tokens[place]]

    def grow(self, dice: random.Random, width: int, prefixes: Sequence[int] = (0,)) -> Level:
        """A level below nodes anywhere in the flight; a lone root where there is none."""
        fresh = not self.tokens
        tokens = [dice.randrange(64) for _ in range(1 if fresh else dice.randrange(width + 1))]
        parents = [-1 if fresh else dice.randrange(len(self.tokens)) for _ in tokens]
        prefix = [dice.randrange(64) for _ in range(dice.choice(prefixes))] if fresh else []
        self.committed += prefix
        self.tokens += tokens
        self.parents += parents
        return Level(list(range(len(tokens))), tokens, parents, prefix)

    def prune(self, dice: random.Random) -> Prune:
        """Go on below a child of the root, or of a deeper node, or start anew."""
        path = [0]
        while (children := self._children(path[-1])) and dice.random() < 0.3:
            path.append(dice.choice(children))
        children = self._children(path[-1])
        root = dice.choice(children) if children and dice.random() < 0.8 else None
        keep = [] if root is None else [p for p in range(len(self.tokens)) if self._under(p, root)]
        self.committed += [self.tokens[node] for node in path]
        self.tokens, self.parents = (
            [self.tokens[node] for node in keep],
            [keep.index(self.parents[node]) if node != root else -1 for node in keep],
        )
        return Prune(path, keep)

    def _children(self, place: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == place]

    def _under(self, place: int, root: int) -> bool:
        return place == root or (place > root and self._under(self.parents[place], root))


@pytest.mark.parametrize("seed", range(4))
def test_kv_is_that_of_the_committed_prefix_after_any_levels_and_prunes(
    target: PreTrainedModel, seed: int
) -> None:
    dice = random.Random(seed)
    runner, fresh = make_runner(target, 1, CAPACITY), make_runner(target, 1, CAPACITY)
    slot, mirror = TreeSlot(runner), PipelineMirror([])
    while len(mirror.committed) < 150:
        for _ in range(dice.randrange(1, 4)):
            level = mirror.grow(dice, width=9, prefixes=[0, 1, 7, 70])
            if level.tokens:
                _check_logits(fresh, mirror, runner.forward([slot.append(level)])[0])
        prune = mirror.prune(dice)
        assert slot.prune(prune) == prune.keep
        if dice.random() < 0.3:
            slot.compact()
            _check_kv(runner, slot.index, fresh, mirror.committed)
    slot.compact()
    _check_kv(runner, slot.index, fresh, mirror.committed)


def _check_logits(fresh: Runner, mirror: PipelineMirror, logits: torch.Tensor) -> None:
    """A node's logits are those after its path alone."""
    newest = len(mirror.tokens) - 1
    text = mirror.committed + mirror.path(newest)
    slot = fresh.acquire()
    torch.testing.assert_close(
        logits[-1], fresh.forward([Append(slot, text)])[0][-1], atol=2e-4, rtol=2e-4
    )
    fresh.release(slot)


def _kv(runner: Runner, slot: int, length: int) -> torch.Tensor:
    """The keys and values of the first `length` tokens of a slot, of all layers: [2 x layers, heads, length, dim]."""
    (block,) = runner.executor.store.blocks
    return block[:, slot, :, :length]


def _check_kv(runner: Runner, index: int, fresh: Runner, text: list[int]) -> None:
    """The slot holds what one forward of the text writes."""
    assert runner.length(index) == len(text)
    slot = fresh.acquire()
    fresh.forward([Append(slot, text)])
    torch.testing.assert_close(
        _kv(runner, index, len(text)), _kv(fresh, slot, len(text)), atol=2e-4, rtol=2e-4
    )
    fresh.release(slot)


@pytest.mark.parametrize("seed", range(3))
def test_kv_of_every_stage_is_that_of_the_committed_prefix(seed: int) -> None:
    """Slices of the model, each a stage behind the one before, with rows pruned in KV and on the way."""
    dice, stages, sizes = random.Random(seed), 3, {"slots": 1, "capacity": 200, "vocabulary": 64}
    parts = [
        Stage(tiny_llama(0, num_hidden_layers=5), rank, stages, torch.device("cpu"), **sizes)
        for rank in range(1, stages + 1)
    ]
    fresh = make_runner(tiny_llama(0, num_hidden_layers=5), 1, 200, "transformers")
    for part in parts:
        part.admit(0)
    mirror, flight, answers = PipelineMirror([]), Flight(stages), 0
    while answers < 60:
        level = mirror.grow(dice, width=5, prefixes=[0, 3] if mirror.committed else [12])
        loads = [
            {0: CarriedLevel(level)} if level.token_count else {},
            *(part.output for part in parts[:-1]),
        ]
        for part, load in zip(parts, loads, strict=True):
            part.work(load)
        flight.enter(level, [0.0] * len(level.tokens))
        if not flight.root_in_last_stage:
            continue
        answers += 1
        _check_root(fresh, mirror, parts[-1].output[0])
        parts[-1].output = {}
        prune = _below_a_child(mirror, dice)
        flight.keep(prune.keep)
        for part in parts:
            part.prune(0, prune)
    for part in parts:
        part.trees[0].compact()
    _check_slices(parts, fresh, mirror.committed)


def _below_a_child(mirror: PipelineMirror, dice: random.Random) -> Prune:
    while True:
        copy = PipelineMirror(list(mirror.committed), list(mirror.tokens), list(mirror.parents))
        prune = copy.prune(dice)
        if len(prune.path) == 1:
            mirror.committed, mirror.tokens, mirror.parents = (
                copy.committed,
                copy.tokens,
                copy.parents,
            )
            return prune


def _check_root(fresh: Runner, mirror: PipelineMirror, held: CarriedLevel) -> None:
    assert held.states is not None
    slot = fresh.acquire()
    expected = fresh.forward([Append(slot, [*mirror.committed, mirror.tokens[0]])])[0]
    torch.testing.assert_close(held.states, expected, atol=2e-4, rtol=2e-4)
    fresh.release(slot)


def _check_slices(parts: Sequence[Stage], fresh: Runner, text: list[int]) -> None:
    slot = fresh.acquire()
    fresh.forward([Append(slot, text)])
    carried = torch.cat([_kv(part.runner, part.trees[0].index, len(text)) for part in parts])
    torch.testing.assert_close(carried, _kv(fresh, slot, len(text)), atol=2e-4, rtol=2e-4)


# When tokens come.

VOCABULARY = 50


class CountingStages:
    """Stages of a target that counts: after token t comes t + 1."""

    def __init__(self) -> None:
        self.tokens: list[list[int]] = []

    def acquire(self) -> int:
        self.tokens.append([])
        return len(self.tokens) - 1

    def release(self, slot: int) -> None:
        self.tokens[slot] = []

    def step(self, feeds: Sequence[Feed], layers: Sequence[int] = ()) -> None:
        for slot, level, prune in feeds:
            if prune is not None:
                self.tokens[slot] = [self.tokens[slot][node] for node in prune.keep]
            self.tokens[slot] += level.tokens

    def answer(self, exiting: Sequence[ExitingTokens], layers: Sequence[int] = ()) -> StageOutput:
        return StageOutput(
            torch.eye(VOCABULARY)[
                [(self.tokens[tokens.slot][0] + 1) % VOCABULARY for tokens in exiting]
            ]
        )


class Echo:
    """A drafter whose distribution after a token is all on that very token, so that a policy can read it."""

    state_layers = ()

    def step(self, streams: Sequence[RequestStream]) -> dict[int, torch.Tensor]:
        eye, growing = torch.eye(VOCABULARY), [stream for stream in streams if stream.flight.tokens]
        return {
            stream.slot: eye[[stream.flight.tokens[node] for node in stream.flight.bottom]]
            for stream in growing
        }

    def forwards(self) -> None:
        """Each level at once."""

    def add_states(self, session: Session, states: torch.Tensor) -> None:
        """Do nothing."""

    def release(self, session: Session) -> None:
        """Nothing is kept."""


class Coin(LevelPolicy):
    """Right with a fixed probability, independently each time."""

    def __init__(self, hit_rate: float) -> None:
        self.hit_rate, self.dice = hit_rate, random.Random(2)

    def next_level(
        self, probabilities: torch.Tensor, scores: Sequence[float], room: int
    ) -> list[Child]:
        right = self.dice.random() < self.hit_rate
        return [Child(0, (int(probabilities[-1].argmax()) + (1 if right else 2)) % VOCABULARY, 0.0)]


@pytest.mark.parametrize(
    ("stages", "hit_rate", "tokens"),
    nightly_except([(4, 0.6, 10_000)], [(8, 0.95, 40_000), (4, 0.6, 10_000)]),
)
def test_steps_per_token_follow_from_the_hit_rate(
    stages: int, hit_rate: float, tokens: int
) -> None:
    engine = PipelineEngine(
        Coin(hit_rate),
        Echo(),
        CountingStages(),
        MeasuringClock(torch.device("cpu")),
        setup=DecodingSetup(capacity=2 * tokens),
        depth=stages,
        name="coin",
    )
    (request,) = make_requests([[3]], tokens)
    engine.submit(request)
    while not engine.idle:
        records = engine.step()
    rounds = records[0].rounds
    assert records[0].output_ids == [(4 + i) % VOCABULARY for i in range(tokens)]
    per_token = (sum(step.steps for step in rounds) - stages) / (tokens - 1)
    assert per_token == pytest.approx(expected_steps(stages, hit_rate), rel=0.01)
    counted = sum(step.accepted for step in rounds) / tokens
    assert per_token == pytest.approx(expected_steps(stages, counted), rel=1e-3)


def test_the_laws_at_the_papers_example() -> None:
    assert (expected_steps(8, 0.95), published_steps(8, 0.95)) == pytest.approx((1.35, 1.40))


# Modelled time.

DRAFT = ContextModel(alpha_s=1e-6, gamma_s=1e-4, delta_s=1e-3)
VERIFY = ContextModel(alpha_s=4e-6, gamma_s=4e-4, delta_s=4e-2)
HAND_OVER = HandOver(latency_s=1e-3, bytes_per_token=100, bytes_per_s=1e5, per_pass=3, prune_s=2e-3)
PIPELINE = Deployment(
    "pipeline",
    Endpoint("gpu", DRAFT),
    Endpoint("gpus", VERIFY, stages=4, hand_over=HAND_OVER),
    Link(rtt_s=0.1, up_bytes_per_s=1000, down_bytes_per_s=500),
    placement="server",
)


def modelled(
    spec: str,
    runners: Runners,
    prompt: list[int],
    length: int,
    deployment: Deployment,
    timeline: Timeline | None = None,
) -> RequestRecord:
    engine = local_loop(parse_method(spec), *runners, setup=DecodingSetup(), deployment=deployment)
    engine.clock.timeline = timeline
    (request,) = make_requests([prompt], length)
    engine.submit(request)
    while not engine.idle:
        done = engine.step()
    return done[0]


def test_a_step_takes_as_long_as_its_slowest_part(target: PreTrainedModel) -> None:
    """Width 1 and a draft that is always right: the first token fills the stages, then one comes per step."""
    runners = make_runner(target, 2, CAPACITY), make_runner(target, 2, CAPACITY)
    (prompt,) = clear_prompts(target, [6], 8)
    record = modelled("specpipe:stages=4,width=1,children=1", runners, prompt, 8, PIPELINE)
    between = HAND_OVER.prune_s + HAND_OVER.latency_s
    link_s = 0.1 + 6 * TOKEN_BYTES / 1000 + TOKEN_BYTES / 500
    per_token_s = 100 / 1e5
    fill_s = 4 * (VERIFY.seconds([(6, 0)]) / 4 + between + 6 * per_token_s) + link_s
    assert record.ttft_s == pytest.approx(fill_s)
    (step,) = record.rounds
    assert (step.accepted, step.committed, step.steps) == (8, 8, 11)
    gaps = [
        later - earlier for earlier, later in zip(step.commits_s, step.commits_s[1:], strict=False)
    ]
    slowest = [
        max(VERIFY.seconds([(1, 6 + n + ahead)]) for ahead in range(4)) / 4 for n in range(7)
    ]
    assert gaps == pytest.approx([stage_s + between + per_token_s for stage_s in slowest])
    assert (step.commit_s, step.link_s) == pytest.approx(
        (11 * HAND_OVER.prune_s, 11 * 1e-3 + (4 * 6 + 7) * per_token_s + link_s)
    )


def test_the_timeline_shows_the_link_for_as_long_as_a_request_waits_for_it(
    target: PreTrainedModel,
) -> None:
    runners, timeline = (
        (make_runner(target, 2, CAPACITY), make_runner(target, 2, CAPACITY)),
        Timeline(),
    )
    (prompt,) = clear_prompts(target, [6], 8)
    record = modelled(
        "specpipe:stages=4,width=1,children=1", runners, prompt, 8, PIPELINE, timeline
    )
    transfers = [span for span in timeline.spans if span.label == "transfer"]
    assert sum(span.end_s - span.start_s for span in transfers) == pytest.approx(
        record.rounds[0].link_s
    )
    assert all(span.end_s >= span.start_s for span in transfers)


def test_a_slow_drafter_sets_the_pace(target: PreTrainedModel) -> None:
    runners = make_runner(target, 2, CAPACITY), make_runner(target, 2, CAPACITY)
    slow = Deployment(
        "slow", Endpoint("cpu", ContextModel(0, 0, 1.0)), PIPELINE.verifier, placement="server"
    )
    record = modelled(
        "specpipe:stages=4,width=1,children=1", runners, clear_prompts(target, [6], 8)[0], 8, slow
    )
    gaps = inter_token_gaps(RequestGroup([record]).rounds)
    assert list(gaps) == pytest.approx([1 + HAND_OVER.prune_s + HAND_OVER.latency_s + 1e-3] * 7)


def test_with_the_drafter_on_the_edge_every_level_and_answer_crosses_the_link(
    target: PreTrainedModel,
) -> None:
    runners = make_runner(target, 2, CAPACITY), make_runner(target, 2, CAPACITY)
    prompt, spec = clear_prompts(target, [6], 8)[0], "specpipe:stages=4,width=1,children=1"
    near = modelled(spec, runners, prompt, 8, PIPELINE)
    far = modelled(spec, runners, prompt, 8, replace(PIPELINE, placement="edge"))
    message_s = 0.1 + TOKEN_BYTES / 1000 + TOKEN_BYTES / 500
    assert far.e2e_s == pytest.approx((near.e2e_s or 0) + 10 * message_s)


def test_a_round_passes_through_all_stages(target: PreTrainedModel, runners: Runners) -> None:
    """Plain decoding in the pipeline: the whole latency and its hand-overs per token, whatever the stages."""
    (prompt,) = clear_prompts(target, [6], 4)
    record = modelled("autoregressive", runners, prompt, 4, PIPELINE)
    passes = [VERIFY.seconds([(1, 6 + n)]) + 3 * (1e-3 + 1e-3) for n in range(3)]
    assert list(inter_token_gaps(RequestGroup([record]).rounds)) == pytest.approx(passes)


def test_a_deployment_with_other_stages_is_refused(runners: Runners) -> None:
    with pytest.raises(SkitError, match=r"2 stages.*pipeline has 4: give both the same"):
        modelled("specpipe:stages=2", runners, [1, 2], 4, PIPELINE)
