"""What the requests of a batch must not mix up: whose rounds count as typical, whose turn it is, whose seconds."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import torch
from known_drafts import SURE, Known, KnownDrafter
from test_shares_of_a_batch import SCENE
from tiny_models import make_requests, make_runner, plain_greedy, random_prompts, tiny_llama

from specbench_kit.decoding.clock import ModelledClock, Phase
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.drafting.model import ModelDrafter
from specbench_kit.decoding.engine import Engine, RoundOutcome
from specbench_kit.decoding.loop import DecodingSetup
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.flight import Flight, Level
from specbench_kit.decoding.pipeline.loop import StepAdmission
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.decoding.verification import ModelVerifier, Verdict
from specbench_kit.deployments.assembly import local_loop
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import Padding
from specbench_kit.runs.deployment import HandOver

CAPACITY = 64


class WatchedClock(ModelledClock):
    """Notes which phases are entered, and whether their time is typical."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[tuple[Phase, bool]] = []

    def phase(self, phase: Phase, *, typical: bool = True) -> AbstractContextManager[None]:
        self.entered.append((phase, typical))
        return super().phase(phase, typical=typical)


def test_a_round_that_brings_any_prompt_in_is_not_typical() -> None:
    """Two requests run at a time: one has two tokens, and the third joins in its place after the second round."""
    clock, sampler = WatchedClock(), Sampler()
    runner = make_runner(tiny_llama(0), 2, CAPACITY)
    engine = Engine(
        Autoregressive().policy(),  # type: ignore[arg-type]
        ModelDrafter(runner, sampler, clock, sample=False, capacity=CAPACITY),
        ModelVerifier(runner, sampler),
        clock,
        setup=DecodingSetup(batch_size=2, capacity=CAPACITY),
        name="autoregressive",
    )
    for request, tokens in zip(
        make_requests(random_prompts([4, 5, 6], 64), 1), (2, 5, 2), strict=True
    ):
        engine.submit(replace(request, max_new_tokens=tokens))
    while not engine.idle:
        engine.step()
    assert [typical for phase, typical in clock.entered if phase == "verify"] == [
        False,
        True,
        False,
        True,
        True,
    ]


def verified(texts: Sequence[list[int]], submitted: Sequence[list[int]]) -> list[Verdict]:
    """Return the verdicts of one forward over chains of two tokens, with hidden states of the last layer."""
    target = tiny_llama(0)
    verifier, drafts = ModelVerifier(make_runner(target, 3, CAPACITY), Sampler(), (1,)), []
    for number, text in enumerate(texts):
        session = KnownDrafter([[SURE]] * 3, context=4).drafts[number].session
        session.tokens = list(text)
        drafts.append(Draft(session, TokenTree(text[-1])))
        verifier.admit(session)
        answer, _ = plain_greedy(target, text, 1)
        for token in (*answer, 63):
            drafts[-1].tree.add(token, drafts[-1].tree.last, Known(SURE, sampled=False), 0)
    return verifier.send(drafts, submitted)()


def test_the_verdicts_of_a_batch_have_the_rows_and_states_of_their_own_requests() -> None:
    texts, submitted = random_prompts([5, 9, 3], 64), [[1, 2], [], [1]]
    together = verified(texts, submitted)
    for verdict, text, nodes in zip(together, texts, submitted, strict=True):
        (alone,) = verified([text], [nodes])
        assert (verdict.path, verdict.bonus, verdict.computed) == (
            alone.path,
            alone.bonus,
            len(text) + len(nodes),
        )
        assert verdict.states is not None
        assert len(verdict.states) == len(text) + len(verdict.path)
        torch.testing.assert_close(verdict.states, alone.states, atol=1e-4, rtol=1e-4)
    assert [Padding(*verdict.padded).row for verdict in together] == [0, 1, 2]


def test_a_view_of_a_round_shows_its_whole_tree_and_what_came_of_it() -> None:
    """Nodes 1 to 3 below 0, 0 and 1, the last of them drafted after the others were sent; sent are 1 and 2."""
    (draft,) = KnownDrafter([[SURE]], context=4).drafts
    tree = draft.tree
    tree.drafter = "suffix"
    for token, parent, probability in ((5, 0, 0.5), (6, 0, 0.123456), (7, 1, 0.25)):
        if token == 7:
            tree.mark_sent()
        tree.add(token, parent, Known(replace(SURE, probability=probability)), 0)
    detail = RoundOutcome(Verdict(draft, [1, 2], [1], 9, 3), committed=2, aligned=True).detail()
    assert (detail.tokens, detail.parents, detail.probabilities) == (
        [1, 5, 6, 7],
        [-1, 0, 0, 1],
        [1.0, 0.5, 0.1235, 0.25],
    )
    assert (detail.submitted, detail.path, detail.bonus, detail.committed) == ([1, 2], [1], 9, 2)
    assert (detail.inherited, detail.proactive, detail.drafter) == (0, 1, "suffix")


def stream(name: int, prompt: int = 1) -> RequestStream:
    """Return a request with a prompt of so many tokens, none of which has entered."""
    (session,) = [draft.session for draft in KnownDrafter([[SURE]], context=2).drafts]
    session.tokens = [name] * prompt
    return RequestStream(session, slot=name, stages=2, watched=False, began={})


def test_the_root_that_has_waited_longest_enters_first() -> None:
    """One root may enter per step; a request whose pipeline is refilled at once waits for both others."""
    streams, admission = (
        [stream(name) for name in range(3)],
        StepAdmission(StepBudget(groups=3), batch_size=3),
    )
    entered = []
    for _ in range(7):
        admission.choose(streams)
        (fed,) = [request_stream for request_stream in streams if request_stream.level.tokens]
        entered.append(fed.slot)
        fed.enter()
        fed.refill(fed.slot)
    assert entered == [0, 1, 2, 0, 1, 2, 0]


def entering(budget: StepBudget, prompts: Sequence[int], steps: int) -> list[list[int]]:
    """Return, step by step, how many tokens of each prompt enter."""
    streams, entered = [stream(name, prompt) for name, prompt in enumerate(prompts)], []
    admission = StepAdmission(budget, len(streams))
    for _ in range(steps):
        admission.choose(streams)
        entered.append(
            [
                len(request_stream.level.prefix) + len(request_stream.level.tokens)
                for request_stream in streams
            ]
        )
        for request_stream in streams:
            request_stream.enter()
            request_stream.grow([])
    return entered


def test_prompts_share_the_room_of_a_step() -> None:
    """One after the other they fill steps of 16 tokens; mixed with levels each has a third of 12 rows."""
    assert entering(StepBudget(chunk=16), [10, 10, 5], 3) == [[10, 6, 0], [0, 4, 5], [0, 0, 0]]
    mixed = StepBudget(rows=12, prefill="mixed", chunk=16)
    assert entering(mixed, [10, 4, 6], 3) == [[4, 4, 4], [4, 0, 2], [2, 0, 0]]


@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_the_rounds_of_a_pipeline_share_out_all_of_its_seconds(batch_size: int) -> None:
    """Requests of different lengths come and go, and every second that is charged is in the rounds of some of them."""
    target = tiny_llama(0)
    hand_over = HandOver(0.01, prune_s=0.002, batching_s=0.003)
    deployment = replace(SCENE, verifier=replace(SCENE.verifier, stages=2, hand_over=hand_over))
    runners = make_runner(target, 3, CAPACITY), make_runner(tiny_llama(1), 3, CAPACITY)
    engine = local_loop(
        parse_method("specpipe:stages=2,width=2,children=2"),
        *runners,
        deployment=deployment,
        setup=DecodingSetup(batch_size=batch_size),
    )
    charged: defaultdict[Phase, float] = defaultdict(float)
    charge = engine.clock.charge  # type: ignore[union-attr]

    def noted(phase: Phase, seconds: float, times: int = 1, *, typical: bool = True) -> None:
        charged[phase] += seconds
        charge(phase, seconds, times, typical=typical)

    engine.clock.charge = noted  # type: ignore[union-attr,method-assign]
    requests = [
        replace(request, max_new_tokens=tokens)
        for request, tokens in zip(
            make_requests(random_prompts([4, 9, 2, 6], 64), 1), (9, 3, 6, 2), strict=True
        )
    ]
    engine.submit(requests[0])
    records = [record for _ in range(3) for record in engine.step()]
    # With room in the batch these join where nobody has left: what was charged before is not shared with them.
    for request in requests[1:]:
        engine.submit(request)
    while not engine.idle:
        records += engine.step()
    assert len(records) == 4
    for phase, seconds in charged.items():
        shared = sum(getattr(step, f"{phase}_s") for record in records for step in record.rounds)
        assert shared == pytest.approx(seconds), phase
    assert charged["verify"] > 0
    assert charged["draft"] > 0


def test_a_policy_forgets_each_request_when_it_ends() -> None:
    runners = make_runner(tiny_llama(0), 2, CAPACITY), make_runner(tiny_llama(1), 2, CAPACITY)
    engine = local_loop(parse_method("fixed-k:k=2"), *runners, setup=DecodingSetup(batch_size=2))
    assert isinstance(engine, Engine)
    forgotten: list[str] = []
    engine.policy._policy.forget = forgotten.append  # type: ignore[method-assign]
    for request, tokens in zip(
        make_requests(random_prompts([4, 5, 6], 64), 1), (6, 2, 6), strict=True
    ):
        engine.submit(replace(request, max_new_tokens=tokens))
    ended: list[str] = []
    while not engine.idle:
        ended += [record.request_id for record in engine.step()]
        assert forgotten == ended
    assert sorted(ended) == ["000", "001", "002"]


def test_nodes_that_do_not_enter_are_not_counted_as_drafted() -> None:
    trimmed = stream(0)
    trimmed.level, trimmed.scores = Level([0, 1, 2], [7, 8, 9], [0, 0, 0]), [-1.0, -3.0, -2.0]
    trimmed.tally.drafted = 5
    trimmed.trim(2)
    assert (trimmed.level.tokens, trimmed.scores, trimmed.tally.drafted) == (
        [7, 9],
        [-1.0, -2.0],
        4,
    )


def test_a_prompt_that_joined_the_prefix_is_on_its_way_no_more() -> None:
    flight = Flight(2)
    flight.enter(Level([0], [7], [-1], prefix=[1, 2, 3]), [0.0])
    assert flight.prefix == 3
    flight.enter(Level([1], [8], [0]), [0.0])
    assert (flight.prefix, flight.root_in_last_stage) == (3, True)
    flight.keep(flight.below(1))
    assert (flight.prefix, flight.tokens, list(flight.sizes)) == (0, [8], [1, 0])
