"""The pipeline loop: every step feeds one level of a tree, and yields a token where the true one is in flight."""

from collections.abc import Sequence
from typing import Any, get_args

from torch import Tensor

from specbench_kit.decoding.boundary import CheckedLevels
from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.loop import Loop, mark_round
from specbench_kit.decoding.pipeline.flight import Fill
from specbench_kit.decoding.pipeline.stages import Stages, TreeModel
from specbench_kit.decoding.pipeline.stream import Stream
from specbench_kit.decoding.pipeline.time import StepTime
from specbench_kit.decoding.policy import Child, LevelPolicy
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.decoding.sampling import Sampler, draw
from specbench_kit.decoding.session import Session
from specbench_kit.models.runner import Runner, refuse_nan

Hold = tuple[int, int, list[int]]
"""A step, a stage, and the ids of the nodes that it worked on."""


class LevelDrafter:
    """The draft model of a pipeline: it forwards every level that is fed, and says what it expects after it."""

    def __init__(self, runner: Runner, sampler: Sampler, clock: Clock) -> None:
        self._runner, self._sampler, self._clock = runner, sampler, clock
        self._trees: dict[str, TreeModel] = {}

    def step(self, stream: Stream) -> Tensor:
        """Distributions [nodes, vocabulary] after the level that was fed last."""
        name = stream.session.request.id
        known = name in self._trees
        with self._clock.phase("draft" if known else "prefill"):
            tree = self._trees[name] = self._trees[name] if known else TreeModel(self._runner)
            tree.step(stream.level, stream.prune)
            return self._sampler.probabilities(tree.answers(stream.flight.bottom))

    def release(self, session: Session) -> None:
        """Forget a request."""
        tree = self._trees.pop(session.request.id, None)
        if tree is not None:
            tree.release()


class PipelineEngine(Loop):
    """Decodes requests one after the other, a tree level per step; what is in flight is a tree below the last token.

    A batch would share the stages: here its requests wait for each other, which is `queue_s` of their first rounds. A
    round lasts from filling the pipeline to the next time that the true token is not in flight. The policy is that of
    the method `name`.
    """

    at_once = 1

    def __init__(
        self,
        policy: LevelPolicy,
        drafter: LevelDrafter,
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
        time: StepTime | None = None,
    ) -> None:
        super().__init__(clock, seed=seed, eos_ids=eos_ids, batch_size=batch_size, capacity=capacity)
        self.policy, self.drafter, self.stages = CheckedLevels(policy, name), drafter, stages
        self.trace: list[Hold] | None = None
        """Is filled with what every stage works on, where it was given a list."""
        self._sampler, self._depth, self._time = sampler, depth, time
        self._streams: dict[str, Stream] = {}
        self._steps = 0

    def _admit(self, session: Session) -> None:
        watched = self.on_round is not None
        self._streams[session.request.id] = Stream(session, self.stages.acquire(), self._depth, watched)
        if self._time is not None:
            self._time.admit(session)

    def _release(self, session: Session) -> None:
        name = session.request.id
        self.stages.release(self._streams.pop(name).slot)
        self.drafter.release(session)
        self.policy.forget(name)
        if self._time is not None:
            self._time.release(session)

    def _round(self) -> list[Fill]:
        """One step of every request; returns what was fed to those whose round ended."""
        ended = [self._step(self._streams[session.request.id]) for session in self.sessions]
        return [fill for fill in ended if fill is not None]

    def _step(self, stream: Stream) -> Fill | None:
        """All stages and the drafter work on the tree as it is; then it is pruned, and a level is fed."""
        with self.clock.phase("verify"):
            self.stages.step(stream.slot, stream.level, stream.prune)
        stream.enter()
        self._note_step(stream)
        with self.clock.phase("policy"):
            children = self._draft(stream)
        if self._time is not None:
            self._time.step(stream.session, stream.flight, stream.level)
        if stream.flight.answers:
            return self._commit(stream, self._answer(stream), children)
        stream.feed(children)
        return None

    def _draft(self, stream: Stream) -> list[Child]:
        flight = stream.flight
        probabilities = self.drafter.step(stream)
        room = self._capacity - len(stream.session.tokens) + 1 - len(flight)
        if room < 1:
            return []
        children = self.policy.next_level(probabilities, [flight.scores[place] for place in flight.bottom], room)
        stream.tally.drafted += len(children)
        return children

    def _answer(self, stream: Stream) -> int:
        """The token after the root: the likeliest, or one drawn as plain decoding would draw it."""
        with self.clock.phase("verify"):
            logits = self.stages.answer(stream.slot)
            refuse_nan(logits.max())
            if self._sampler.greedy:
                return int(logits.argmax())
            return draw(self._sampler.probabilities(logits)[None], [stream.session.random.uniform("target")])[0]

    def _commit(self, stream: Stream, token: int, children: Sequence[Child]) -> Fill | None:
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

    def _note_step(self, stream: Stream) -> None:
        self._steps += 1
        if self.trace is not None:
            self.trace += [(self._steps, stage, ids) for stage, ids in stream.flight.holds]

    def _record(self, stream: Stream) -> None:
        tally, seconds = stream.tally, self.clock.take()
        if not stream.session.record.rounds:
            seconds["queue"] += stream.session.waited_s
        phases: dict[str, Any] = {f"{phase}_s": seconds[phase] for phase in get_args(Phase)}
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
