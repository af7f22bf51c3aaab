"""The pipeline loop: every step feeds one level of a tree, and yields a token where the true one is in flight."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from torch import Tensor

from specbench_kit.decoding.clock import Clock, Phase
from specbench_kit.decoding.loop import Loop, mark_round
from specbench_kit.decoding.pipeline.flight import Fill, Flight, Level, Prune
from specbench_kit.decoding.pipeline.stages import Stages, TreeModel
from specbench_kit.decoding.pipeline.time import StepTime
from specbench_kit.decoding.policy import Child, Policy
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
        self._tree: TreeModel | None = None

    def step(self, level: Level, prune: Prune | None, bottom: Sequence[int]) -> Tensor:
        """Distributions [nodes, vocabulary] after the last level, which lies at `bottom` of the flight."""
        with self._clock.phase("prefill" if self._tree is None else "draft"):
            self._tree = self._tree or TreeModel(self._runner)
            self._tree.step(level, prune)
            return self._sampler.probabilities(self._tree.answers(bottom))

    def release(self) -> None:
        """Forget the request."""
        if self._tree is not None:
            self._tree.release()
            self._tree = None


@dataclass(slots=True)
class _Tally:
    """What happened since the pipeline was last filled."""

    drafted: int = 0
    fed: int = 0
    accepted: int = 0
    steps: int = 0
    commits_s: list[float] = field(default_factory=list)
    fill: "Fill | None" = None
    """The nodes themselves, where somebody watches."""


class PipelineEngine(Loop):
    """Decodes requests one after the other, a tree level per step; what is in flight is a tree below the last token.

    A batch would share the stages: here its requests wait for each other. A round lasts from filling the pipeline to
    the next time that the true token is not in flight.
    """

    def __init__(
        self,
        policy: Policy,
        drafter: LevelDrafter,
        stages: Stages,
        clock: Clock,
        *,
        sampler: Sampler,
        depth: int,
        seed: int,
        eos_ids: frozenset[int],
        capacity: int,
        time: StepTime | None = None,
    ) -> None:
        super().__init__(clock, seed=seed, eos_ids=eos_ids, batch_size=1, capacity=capacity)
        self.policy, self.drafter, self.stages = policy, drafter, stages
        self.trace: list[Hold] | None = None
        """Is filled with what every stage works on, where it was given a list."""
        self._sampler, self._depth, self._time = sampler, depth, time
        self._steps = 0

    def _admit(self, session: Session) -> None:
        self._slot = self.stages.acquire()
        if self._time is not None:
            self._time.admit(session)
        self._ids, self._name = 0, session.request.id
        *prompt, root = session.tokens
        self._fill(root, prompt)
        self._prune: Prune | None = None

    def _release(self, session: Session) -> None:
        self.stages.release(self._slot)
        self.drafter.release()

    def _fill(self, root: int, prefix: Sequence[int] = ()) -> None:
        """Begin anew with the last committed token alone."""
        self._flight, self._tally = Flight(self._depth), _Tally()
        self._fed, self._scores = self._level([root], [-1], prefix), [0.0]
        if self.on_round is not None:
            self._tally.fill = Fill(self._name)

    def _level(self, tokens: list[int], parents: list[int], prefix: Sequence[int] = ()) -> Level:
        first, self._ids = self._ids, self._ids + len(tokens)
        return Level(list(range(first, self._ids)), tokens, parents, prefix)

    def _round(self) -> "Sequence[Fill]":
        """One step: all stages and the drafter work on the tree as it is; then it is pruned, and a level is fed."""
        (session,) = self.sessions
        with self.clock.phase("verify"):
            self.stages.step(self._slot, self._fed, self._prune)
        self._flight.enter(self._fed, self._scores)
        self._note_step()
        with self.clock.phase("policy"):
            children = self._draft(session)
        self._tally.drafted += len(children)
        if self._time is not None:
            self._time.step(session, self._flight, self._fed)
        if not self._flight.answers:
            self._prune = None
            self._feed(children, range(len(self._flight)))
            return ()
        token = self._answer(session)
        with self.clock.phase("commit"):
            missed = self._commit(session, token, children)
        if not missed and not session.finish_reason:
            return ()
        self._record(session)
        fill = self._tally.fill
        if missed:
            self._fill(token)
        return [fill] if fill else ()

    def _draft(self, session: Session) -> list[Child]:
        flight = self._flight
        probabilities = self.drafter.step(self._fed, self._prune, flight.bottom)
        room = self._capacity - len(session.tokens) + 1 - len(flight)
        if room < 1:
            return []
        return self.policy.next_level(probabilities, [flight.scores[place] for place in flight.bottom], room)

    def _answer(self, session: Session) -> int:
        """The token after the root: the likeliest, or one drawn as plain decoding would draw it."""
        with self.clock.phase("verify"):
            logits = self.stages.answer(self._slot)
            refuse_nan(logits.max())
            if self._sampler.greedy:
                return int(logits.argmax())
            return draw(self._sampler.probabilities(logits)[None], [session.random.uniform("target")])[0]

    def _commit(self, session: Session, token: int, children: Sequence[Child]) -> bool:
        """Go on below the new root; returns whether it was not in flight."""
        session.commit([token])
        self._tally.commits_s.append(self.clock.now_s() - session.arrival_s)
        root = self._flight.child(token)
        if self._tally.fill is not None:
            self._tally.fill.commit(token, None if root is None else self._flight.ids[root])
        kept = [] if root is None else self._flight.below(root)
        self._prune = Prune([0], kept)
        if root is not None:
            self._tally.accepted += 1
            self._feed(children, kept)
            self._flight.keep(kept)
        return root is None

    def _feed(self, children: Sequence[Child], kept: Sequence[int]) -> None:
        """The next level: of the drafted nodes those whose parents are kept."""
        bottom, places = self._flight.bottom, {place: index for index, place in enumerate(kept)}
        parents = [places.get(bottom[child.parent]) for child in children]
        fed = [(parent, child) for parent, child in zip(parents, children, strict=True) if parent is not None]
        self._fed = self._level([child.token for _, child in fed], [parent for parent, _ in fed])
        self._scores = [child.score for _, child in fed]

    def _note_step(self) -> None:
        self._steps += 1
        self._tally.steps += 1
        self._tally.fed += len(self._fed.tokens)
        if self._tally.fill is not None:
            self._tally.fill.take(self._flight)
        if self.trace is not None:
            self.trace += [(self._steps, stage, ids) for stage, ids in self._flight.holds]

    def _record(self, session: Session) -> None:
        tally, seconds = self._tally, self.clock.take()
        phases: dict[str, Any] = {f"{phase}_s": seconds[phase] for phase in get_args(Phase)}
        record = RoundRecord(
            drafted=tally.drafted,
            submitted=tally.fed - 1,  # the root was not drafted
            accepted=tally.accepted,
            committed=len(tally.commits_s),
            end_s=tally.commits_s[-1],
            steps=tally.steps,
            commits_s=tally.commits_s,
            **phases,
        )
        session.record.rounds.append(record)
        mark_round(self.clock, session)
