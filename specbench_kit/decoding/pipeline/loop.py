"""The pipeline loop: a step feeds a level of every tree, and yields a token if the true one is in
flight.

The time of a step is divided among the requests that go through the pipeline together.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol, get_args

from torch import Tensor

from specbench_kit.decoding.boundary import CheckedLevels
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.loop import DecodingSetup, Loop, mark_round
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.drafter import LevelSource
from specbench_kit.decoding.pipeline.flight import PipelineRound
from specbench_kit.decoding.pipeline.stages import ExitingTokens, Stages
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.policy import Child, LevelPolicy
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.decoding.sampling import draw
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import refuse_nan_in

PHASES: tuple[Phase, ...] = get_args(Phase)
StageWork = tuple[int, int, list[int]]
"""A step, a stage, and the ids of the nodes that it worked on."""


class StepTime(Protocol):
    """Lets the time pass that the pipeline's steps would take on modelled hardware."""

    def admit(self, session: Session) -> None:
        """Begin with a new request."""

    def release(self, session: Session) -> None:
        """Forget a finished request."""

    def step(
        self, streams: Sequence[RequestStream], forwards: Sequence[Sequence[Row]] | None
    ) -> None:
        """Let the time of one step pass; `forwards` are the drafter's, None if it forwards the
        levels fed.
        """


class PipelineEngine(Loop):
    """Decodes a batch, a tree level of every request per step; the tree in flight lies below the
    last token.

    Stages and drafter work on the levels of all requests at once, as far as the budget of a step
    goes. A request's round lasts until its true token is not in flight, and the pipeline is
    refilled for it. The policy is that of the method `name`; without a drafter nothing but roots is
    fed.
    """

    def __init__(
        self,
        policy: LevelPolicy,
        drafter: LevelSource | None,
        stages: Stages,
        clock: Clock,
        *,
        setup: DecodingSetup,
        depth: int,
        name: str,
        budget: StepBudget | None = None,
        time: StepTime | None = None,
    ) -> None:
        super().__init__(clock, setup)
        self.policy = CheckedLevels(policy, name)
        self.drafter = drafter
        self.stages = stages
        self.trace: list[StageWork] | None = None
        """Collects what every stage works on, if it is set to a list."""
        self._sampler = setup.sampler
        self._depth = depth
        self._time = time
        self._state_layers = () if drafter is None else drafter.state_layers
        self._admission = StepAdmission(budget or StepBudget(), setup.batch_size)
        self._phases = PhaseShares(clock)
        self._streams: dict[str, RequestStream] = {}
        self._steps = 0

    def admit(self, session: Session) -> None:
        """Give a new request its slot in every stage."""
        watched = self.on_round is not None
        began = self._phases.read(len(self._streams))
        stream = RequestStream(session, self.stages.acquire(), self._depth, watched, began)
        self._streams[session.request.id] = stream
        if self._time is not None:
            self._time.admit(session)

    def release(self, session: Session) -> None:
        """Free a finished request's slots, and let the policy forget it."""
        name = session.request.id
        self._phases.read(len(self._streams))
        self.stages.release(self._streams.pop(name).slot)
        if self.drafter is not None:
            self.drafter.release(session)
        self.policy.forget(name)
        if self._time is not None:
            self._time.release(session)

    def run_round(self) -> list[PipelineRound]:
        """Run one step: stages and drafter work on the trees as they are; then these are pruned,
        and grow.

        Returns the rounds that ended, if somebody watches them.
        """
        streams = list(self._streams.values())
        self._admission.choose(streams)
        with self.clock.phase("verify"):
            self.stages.step([stream.feed for stream in streams], self._state_layers)
        # Real stages work in other processes from here on, while the drafter works in this one.
        self._enter(streams)
        with self.clock.phase("policy"):
            distributions = {} if self.drafter is None else self.drafter.step(streams)
            drafted = {
                stream.slot: self._children(stream, distributions.get(stream.slot))
                for stream in streams
            }
        if self._time is not None:
            self._time.step(streams, None if self.drafter is None else self.drafter.forwards())
        tokens = self._answer(streams)
        ended: list[PipelineRound] = []
        for stream in streams:
            if (token := tokens.get(stream.slot)) is None:
                stream.grow(drafted[stream.slot])
            elif nodes := self._commit(stream, token, drafted[stream.slot]):
                ended.append(nodes)
        return ended

    def _enter(self, streams: Sequence[RequestStream]) -> None:
        """Do in the bookkeeping what the stages do with this step: hand on, and take in a level."""
        self._steps += 1
        for stream in streams:
            stream.enter()
            if self.trace is not None:
                self.trace += [(self._steps, stage, ids) for stage, ids in stream.flight.occupancy]

    def _children(self, stream: RequestStream, probabilities: Tensor | None) -> list[Child]:
        """Return the nodes that the policy adds below the stream's last level, as far as the
        context has room.
        """
        flight = stream.flight
        room = self.setup.capacity - len(stream.session.tokens) + 1 - len(flight)
        if probabilities is None or room < 1:
            return []
        children = self.policy.next_level(
            probabilities, [flight.scores[node] for node in flight.bottom], room
        )
        stream.tally.drafted += len(children)
        return children

    def _answer(self, streams: Sequence[RequestStream]) -> dict[int, int]:
        """Return the tokens after the roots, by slot: the likeliest, or drawn as plain decoding
        would draw them.
        """
        leaving = [
            stream
            for stream in streams
            if stream.flight.root_in_last_stage
            or (self._state_layers and stream.flight.prefixes[-1])
        ]
        if not leaving:
            return {}
        answering = {
            stream.slot: stream.session for stream in leaving if stream.flight.root_in_last_stage
        }
        with self.clock.phase("verify"):
            exiting = [
                ExitingTokens(
                    stream.slot, stream.flight.prefixes[-1], stream.flight.root_in_last_stage
                )
                for stream in leaving
            ]
            logits, states = self.stages.answer(exiting, self._state_layers)
            for stream, stream_states in zip(leaving, states, strict=False):
                assert self.drafter is not None
                self.drafter.add_states(stream.session, stream_states)
            if not answering:
                return {}
            refuse_nan_in(logits.max())
            if self._sampler.greedy:
                return dict(zip(answering, logits.argmax(-1).tolist(), strict=True))
            uniforms = [session.random.uniform("target") for session in answering.values()]
            return dict(
                zip(answering, draw(self._sampler.probabilities(logits), uniforms), strict=True)
            )

    def _commit(
        self, stream: RequestStream, token: int, children: Sequence[Child]
    ) -> PipelineRound | None:
        """Commit the token after the root and continue below it.

        If it was not in flight or ends the request, the round ends: its record is added and its
        nodes are returned.
        """
        with self.clock.phase("commit"):
            stream.session.commit([token])
            hit = stream.commit(token, children, self.clock.now_s())
        if hit and not stream.session.finish_reason:
            return None
        self._record(stream)
        nodes = stream.tally.nodes
        if not hit:
            stream.refill(token)
        return nodes

    def _record(self, stream: RequestStream) -> None:
        tally = stream.tally
        began = stream.began
        stream.began = totals = self._phases.read(len(self._streams))
        seconds = {phase: totals.get(phase, 0.0) - began.get(phase, 0.0) for phase in PHASES}
        record = RoundRecord(
            drafted=tally.drafted,
            submitted=tally.fed - 1,  # the root was not drafted
            accepted=tally.accepted,
            committed=len(tally.commits_s),
            end_s=tally.commits_s[-1],
            steps=tally.steps,
            commits_s=tally.commits_s,
            deepest=tally.deepest,
            prefill_s=seconds["prefill"],
            draft_s=seconds["draft"],
            policy_s=seconds["policy"],
            link_s=seconds["link"],
            queue_s=seconds["queue"],
            verify_s=seconds["verify"],
            commit_s=seconds["commit"],
        )
        stream.session.record.rounds.append(record)
        mark_round(self.clock, stream.session)


class StepAdmission:
    """Admits prompts, roots and levels as far as a step's budget goes.

    A request that gets nothing waits, while what it has in flight moves on.
    """

    def __init__(self, budget: StepBudget, batch_size: int) -> None:
        self._budget = budget
        self._roots = budget.roots(batch_size)
        self._steps = 0

    def choose(self, streams: Sequence[RequestStream]) -> None:
        """Set the level that each request feeds with this step."""
        self._steps += 1
        prompts = list[RequestStream]()
        roots = list[RequestStream]()
        growing = list[RequestStream]()
        for stream in streams:
            count = len(stream.to_enter)
            (prompts if count > 1 else roots if count else growing).append(stream)
        if prompts and self._budget.prefill == "first":
            # A step of prompts alone: mixed into every step, a long prompt would slow down all
            # levels beside it.
            room = self._budget.chunk
            for stream in prompts:
                room -= stream.take(room)
            for stream in growing:
                stream.trim(0)
            return
        used = 0
        for stream in prompts:
            used += stream.take(self._budget.piece(len(streams)))
        if roots:
            used += self._admit_roots(roots)
        shares = self._budget.allot([stream.scores for stream in growing], used) if growing else ()
        for stream, share in zip(growing, shares, strict=True):
            if share < len(stream.scores):
                stream.trim(share)

    def _admit_roots(self, roots: list[RequestStream]) -> int:
        """Let the roots of one group enter, those first that have waited longest; return how many
        entered.
        """
        if len(roots) > self._roots:
            roots.sort(key=lambda stream: stream.last_entry)
        for stream in roots[: self._roots]:
            stream.last_entry = self._steps
            stream.take(1)
        return min(len(roots), self._roots)


class PhaseShares:
    """Running totals of one request's share of each phase; all requests that share a step count
    alike.

    A request's round took the difference of two readings. In between nothing has to be done for it,
    though requests come and go: whoever changes their number reads first, so that every total is
    divided by the number it belongs to.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: defaultdict[Phase, float] = defaultdict(float)

    def read(self, sharing: int) -> dict[Phase, float]:
        """Return the totals; `sharing` requests went through the pipeline since the last
        reading.
        """
        for phase, seconds in self._clock.take().items():
            self._totals[phase] += seconds / max(1, sharing)
        return dict(self._totals)
