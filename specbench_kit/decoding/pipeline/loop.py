"""The pipeline loop: a step feeds a level of every tree, and yields a token where the true one is in flight."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor

from specbench_kit.decoding.boundary import CheckedLevels
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.loop import Loop, mark_round
from specbench_kit.decoding.pipeline.admission import Admission
from specbench_kit.decoding.pipeline.budget import StepBudget
from specbench_kit.decoding.pipeline.drafter import LevelSource
from specbench_kit.decoding.pipeline.flight import PipelineRound
from specbench_kit.decoding.pipeline.phase_shares import PhaseShares
from specbench_kit.decoding.pipeline.stages import ExitingTokens, Stages
from specbench_kit.decoding.pipeline.stream import RequestStream
from specbench_kit.decoding.pipeline.time import StepTime
from specbench_kit.decoding.policy import Child, LevelPolicy
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.decoding.sampling import Sampler, draw
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import refuse_nan_in

StageWork = tuple[int, int, list[int]]
"""A step, a stage, and the ids of the nodes that it worked on."""


class PipelineEngine(Loop):
    """Decodes a batch, a tree level of every request per step; what is in flight is a tree below its last token.

    Stages and drafter work on the levels of all requests at once, as far as the budget of a step goes. A request's
    round lasts from filling the pipeline to the next time that its true token is not in flight. The policy is that of
    the method `name`; without a drafter nothing but roots is fed.
    """

    def __init__(
        self,
        policy: LevelPolicy,
        drafter: LevelSource | None,
        stages: Stages,
        clock: Clock,
        *,
        sampler: Sampler,
        depth: int,
        seed: int,
        eos_ids: frozenset[int],
        capacity: int,
        name: str,
        batch_size: int = 1,
        budget: StepBudget | None = None,
        time: StepTime | None = None,
    ) -> None:
        super().__init__(clock, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
        self.policy, self.drafter, self.stages = CheckedLevels(policy, name), drafter, stages
        self.trace: list[StageWork] | None = None
        """Is filled with what every stage works on, where it was given a list."""
        self._sampler, self._depth, self._time = sampler, depth, time
        self._reads = () if drafter is None else drafter.reads
        self._entry, self._spent = Admission(budget or StepBudget(), batch_size), PhaseShares(clock)
        self._streams: dict[str, RequestStream] = {}
        self._steps = 0

    def _admit(self, session: Session) -> None:
        watched, began = self.on_round is not None, self._spent.read(len(self._streams))
        stream = RequestStream(session, self.stages.acquire(), self._depth, watched, began)
        self._streams[session.request.id] = stream
        if self._time is not None:
            self._time.admit(session)

    def _release(self, session: Session) -> None:
        name = session.request.id
        self._spent.read(len(self._streams))
        self.stages.release(self._streams.pop(name).slot)
        if self.drafter is not None:
            self.drafter.release(session)
        self.policy.forget(name)
        if self._time is not None:
            self._time.release(session)

    def _round(self) -> list[PipelineRound]:
        """All stages and the drafter work on the trees as they are; then these are pruned, and grow.

        Returns what was fed to the requests whose round ended.
        """
        streams = list(self._streams.values())
        self._entry.choose(streams)
        with self.clock.phase("verify"):
            self.stages.step([stream.feed for stream in streams], self._reads)
        self._hand_on(streams)
        with self.clock.phase("policy"):
            drafted = self._draft(streams)
        if self._time is not None:
            self._time.step(streams, None if self.drafter is None else self.drafter.forwards())
        return self._go_on(streams, drafted, self._answer(streams))

    def _draft(self, streams: Sequence[RequestStream]) -> dict[int, list[Child]]:
        """What may follow the last level of every request that has one, by slot."""
        if self.drafter is None:
            return {}
        found = self.drafter.step(streams)
        return {stream.slot: self._children(stream, found[stream.slot]) for stream in streams if stream.slot in found}

    def _children(self, stream: RequestStream, probabilities: Tensor) -> list[Child]:
        flight = stream.flight
        room = self._capacity - len(stream.session.tokens) + 1 - len(flight)
        if room < 1:
            return []
        children = self.policy.next_level(probabilities, [flight.scores[place] for place in flight.bottom], room)
        stream.tally.drafted += len(children)
        return children

    def _answer(self, streams: Sequence[RequestStream]) -> dict[int, int]:
        """The tokens after the roots, by slot: the likeliest, or drawn as plain decoding would draw them."""
        leaving = [one for one in streams if one.flight.answers or (self._reads and one.flight.prefixes[-1])]
        if not leaving:
            return {}
        answering = {stream.slot: stream.session for stream in leaving if stream.flight.answers}
        with self.clock.phase("verify"):
            dues = [ExitingTokens(one.slot, one.flight.prefixes[-1], one.flight.answers) for one in leaving]
            logits, states = self.stages.answer(dues, self._reads)
            for stream, part in zip(leaving, states, strict=False):
                assert self.drafter is not None
                self.drafter.tell(stream.session, part)
            if not answering:
                return {}
            refuse_nan_in(logits.max())
            if self._sampler.greedy:
                return dict(zip(answering, logits.argmax(-1).tolist(), strict=True))
            chances = [session.random.uniform("target") for session in answering.values()]
            return dict(zip(answering, draw(self._sampler.probabilities(logits), chances), strict=True))

    def _go_on(
        self, streams: Sequence[RequestStream], drafted: Mapping[int, list[Child]], tokens: Mapping[int, int]
    ) -> list[PipelineRound]:
        ended: list[PipelineRound | None] = []
        for stream in streams:
            token, children = tokens.get(stream.slot), drafted.get(stream.slot, [])
            if token is None:
                stream.go_on(children)
            else:
                ended.append(self._commit(stream, token, children))
        return [fill for fill in ended if fill is not None]

    def _commit(self, stream: RequestStream, token: int, children: Sequence[Child]) -> PipelineRound | None:
        """Go on below the token; where it was not in flight the round ends, and the pipeline is filled anew."""
        with self.clock.phase("commit"):
            stream.session.commit([token])
            hit = stream.commit(token, children, self.clock.now_s())
        if hit and not stream.session.finish_reason:
            return None
        self._record(stream)
        fill = stream.tally.fill
        if not hit:
            stream.refill(token)
        return fill

    def _hand_on(self, streams: Sequence[RequestStream]) -> None:
        """All stages hand on what they hold."""
        self._steps += 1
        for stream in streams:
            stream.enter()
            if self.trace is not None:
                self.trace += [(self._steps, stage, ids) for stage, ids in stream.flight.holds]

    def _record(self, stream: RequestStream) -> None:
        tally, began = stream.tally, stream.began
        stream.began = now = self._spent.read(len(self._streams))
        phases: dict[str, Any] = {
            f"{phase}_s": now.get(phase, 0.0) - began.get(phase, 0.0) for phase in get_args(Phase)
        }
        record = RoundRecord(
            drafted=tally.drafted,
            submitted=tally.fed - 1,  # the root was not drafted
            accepted=tally.accepted,
            committed=len(tally.commits_s),
            end_s=tally.commits_s[-1],
            steps=tally.steps,
            commits_s=tally.commits_s,
            deepest=tally.deepest,
            **phases,
        )
        stream.session.record.rounds.append(record)
        mark_round(self.clock, stream.session)
