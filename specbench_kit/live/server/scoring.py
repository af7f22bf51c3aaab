"""Scoring of outputs that differ from plain decoding: in the verification thread, between the
rounds of devices.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.constraint import Constraint
from specbench_kit.decoding.records import RequestRecord, RoundRecord
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import read_rounds, scored_frame
from specbench_kit.live.server.admission import LONGEST_NAME, ServerLimits
from specbench_kit.live.server.drafts import require_tokens
from specbench_kit.live.server.sessions import CallingStream, read_sampler
from specbench_kit.live.wire import Down, Refusal, Status
from specbench_kit.metrics.evidence import TokenChoice, choice_of, gather_evidence
from specbench_kit.metrics.shapes import RecomputedLogits
from specbench_kit.models.executors.base import Padding
from specbench_kit.models.runner import Runner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MOST_SCORES = 1 << 27
"""Largest number of scores of an output in one shape, tokens x vocabulary; as float32 they take
half a gigabyte.
"""
MOST_WAITING = 16
MOST_OF_ACCOUNT = 4
"""Outputs that may wait to be scored, of all devices and of one account."""
RETRY_MS = 200
KEPT_S = 10.0
"""How long the slots for scoring, and the target's copy in float32, are held for a next output."""


@dataclass(slots=True, eq=False)
class ScoringTask:
    """An output that waits to be scored; `answer` takes the answer, in the verification thread."""

    name: str
    record: RequestRecord
    baseline: RequestRecord
    position: int
    choice: TokenChoice
    stream: CallingStream
    answer: Callable[[Down], None]
    constraint: Constraint | None = None
    """The grammar that the output followed."""
    cancelled: bool = False


class ScoringEndedError(Exception):
    """Ends a scoring whose device is gone, or whose server stops."""


class OutputScorer:
    """Scores outputs one by one. `waiting` is changed by the event loop, everything else by the
    verification thread.
    """

    def __init__(self, runner: Runner, model: "PreTrainedModel | None" = None) -> None:
        self.runner = runner
        self._model = model
        self.waiting: deque[ScoringTask] = deque()
        self.most_tokens = (
            0 if model is None else MOST_SCORES // (runner.vocabulary or model.config.vocab_size)
        )
        """Length of the longest output that is scored; 0 without a model."""
        self._shapes: RecomputedLogits | None = None
        self._pause: Callable[[], None] = lambda: None
        self._forwards = 0
        self._used_s = 0.0

    def add(self, task: ScoringTask) -> None:
        """Queue an output; raise Refusal if its device has one in the queue already, or the queue
        is full.
        """
        if any(other.stream is task.stream for other in self.waiting):
            raise Refusal(Status.IN_FLIGHT, "an output of this device is being scored", RETRY_MS)
        account = task.stream.caller.account
        of_account = sum(other.stream.caller.account is account for other in self.waiting)
        if len(self.waiting) >= MOST_WAITING or of_account >= MOST_OF_ACCOUNT:
            raise Refusal(
                Status.OVERLOADED, f"{len(self.waiting)} outputs wait to be scored", RETRY_MS
            )
        self.waiting.append(task)

    def serves(self, stream: CallingStream) -> bool:
        """Return True if an output of the stream waits or is being scored."""
        return any(task.stream is stream for task in self.waiting)

    def forget(self, stream: CallingStream) -> None:
        """End the scoring of a device that is gone."""
        for task in self.waiting:
            task.cancelled |= task.stream is stream

    def score_next(self, pause: Callable[[], None]) -> None:
        """Score the output that waits longest and answer it; `pause` is called before each of its
        forwards.
        """
        task = self.waiting[0]
        began_s = monotonic_s()
        self._forwards = 0

        def before_forward() -> None:
            if task.cancelled:
                raise ScoringEndedError
            pause()
            self._forwards += 1

        self._pause = before_forward
        answer = None
        try:
            before_forward()
            self._forwards = 0
            assert self._model is not None
            self._shapes = self._shapes or RecomputedLogits(
                self.runner, self._model, lambda: self._pause()
            )
            shapes = self._shapes
            if task.constraint is not None:
                allowed = []
                for after in task.constraint.allowed_along(task.record.output_ids):
                    pause()
                    allowed.append(after)
                shapes = shapes.under(lambda _: allowed)
            evidence = gather_evidence(
                shapes, task.record, task.baseline, task.position, task.choice, exact=False
            )
            seconds = monotonic_s() - began_s
            answer = Down(scored=scored_frame(task.name, evidence, self._forwards, seconds))
        except ScoringEndedError:
            pass
        except Exception as error:  # whatever a device's shapes lead to, memory that runs out included, ends only this
            self._shapes = None
            reason = (
                str(error) if isinstance(error, SkitError) else f"{type(error).__name__}: {error}"
            )
            answer = Down(
                refused=messages.Refused(session=task.name, status=Status.FAILED, reason=reason)
            )
        self.waiting.popleft()
        self._used_s = monotonic_s()
        if answer is not None:
            task.answer(answer)

    def release_idle(self) -> float:
        """Free what the latest scoring held if none has followed for some time; return when to call
        this again.
        """
        if self._shapes is None:
            return inf
        if monotonic_s() < self._used_s + KEPT_S:
            return self._used_s + KEPT_S
        self._shapes = None
        return inf


def read_task(
    frame: messages.Score,
    stream: CallingStream,
    limits: ServerLimits,
    scorer: OutputScorer,
    constraint: Constraint | None = None,
) -> ScoringTask:
    """Return the task of a frame; raise Refusal for an output that cannot be scored. Called in the
    event loop.

    The output followed the `constraint`.
    """
    loop = asyncio.get_running_loop()
    runner = scorer.runner
    most_tokens = scorer.most_tokens
    _require_lengths(frame, most_tokens, limits)
    prompt = list(frame.prompt)
    output = list(frame.output)
    vocabulary = runner.vocabulary or 0
    for tokens in (prompt, output, [frame.expected]):
        require_tokens(tokens, vocabulary)
    if not prompt:
        raise Refusal(Status.EMPTY_PROMPT, "an output needs a prompt")
    if frame.position >= len(output) or output[frame.position] == frame.expected:
        raise Refusal(
            Status.BROKEN_TREE, f"the output does not differ at position {frame.position}"
        )
    rows = (
        runner.executor.slots + 1
    ) // 2  # such a batch is computed in at most as many slots as the server has
    rounds = read_rounds(frame.rounds)
    plain = read_rounds(frame.plain)
    first, plain_first = frame.forced_first, frame.plain_forced_first
    if plain_first > frame.position or (first and constraint is None):
        raise Refusal(Status.BROKEN_TREE, "forced tokens that cannot begin the output")
    _require_rounds(rounds, len(prompt), len(output), limits, first)
    pending = len(prompt) + first
    for step in rounds:
        step.padded = _usable(step.padded, pending + step.submitted, rows, limits)
        pending = 1 + step.forced
    pending = len(prompt) + plain_first
    for step in plain:
        step.padded = _usable(step.padded, pending, rows, limits)
        pending = 1 + step.forced
    name = frame.sampling.request
    record = RequestRecord(name, "", prompt, output, rounds=rounds, forced_first=first)
    expected = [*output[: frame.position], frame.expected]
    baseline = RequestRecord(name, "", prompt, expected, rounds=plain, forced_first=plain_first)

    def answer(scored: Down) -> None:
        with suppress(RuntimeError):  # the loop may have ended
            loop.call_soon_threadsafe(stream.answer, scored)

    choice = choice_of(read_sampler(frame.sampling), frame.sampling.seed, name)
    return ScoringTask(
        frame.session, record, baseline, frame.position, choice, stream, answer, constraint
    )


def _require_lengths(frame: messages.Score, most_tokens: int, limits: ServerLimits) -> None:
    """Raise Refusal for lists that no output needs, before any is read: half a million rounds would
    take seconds.
    """
    length = len(frame.output)
    if length > most_tokens or len(frame.prompt) + length > limits.context:
        raise Refusal(
            Status.CONTEXT_FULL, f"an output of {length} tokens; this server scores {most_tokens}"
        )
    if len(frame.rounds) > length or len(frame.plain) > limits.context:
        raise Refusal(
            Status.BROKEN_TREE, f"{len(frame.rounds)} rounds for an output of {length} tokens"
        )
    if len(frame.sampling.request) > LONGEST_NAME:
        raise Refusal(Status.MALFORMED_FRAME, f"a name has up to {LONGEST_NAME} characters")
    for shape in (*frame.rounds, *frame.plain):
        if max(len(shape.parents), len(shape.path)) > limits.nodes or len(shape.padded) > len(
            Padding._fields
        ):
            raise Refusal(Status.TOO_MANY_NODES, f"a round of more than {limits.nodes} tokens")


def _require_rounds(
    rounds: Sequence[RoundRecord], prompt: int, output: int, limits: ServerLimits, first: int = 0
) -> None:
    """Raise Refusal unless the rounds can have committed the output, behind `first` forced
    tokens.
    """
    if first + sum(step.committed + step.forced for step in rounds) != output:
        raise Refusal(
            Status.BROKEN_TREE, f"the rounds do not commit the {output} tokens of the output"
        )
    length = prompt + first
    for step in rounds:
        if step.submitted > limits.nodes or length + step.submitted > limits.context:
            raise Refusal(
                Status.TOO_MANY_NODES, f"{step.submitted} tokens in a draft after {length} tokens"
            )
        parents = step.parents or range(step.submitted)
        path = step.path if step.parents else range(1, step.accepted + 1)
        fits = (
            len(parents) == step.submitted
            and all(parent < node for node, parent in enumerate(parents, 1))
            and len(path) == step.accepted <= step.submitted
            and all(0 < node <= step.submitted for node in path)
            and [parents[node - 1] for node in path] == [0, *path][: len(path)]
            and 0 < step.committed <= step.accepted + 1
        )
        if not fits:
            raise Refusal(Status.BROKEN_TREE, "a round that cannot have committed its tokens")
        length += step.committed + step.forced


def _usable(padded: Sequence[int], new: int, rows: int, limits: ServerLimits) -> list[int]:
    """Return the shape of a batch that a round of `new` tokens shared, or nothing if it cannot be
    computed here.
    """
    if len(padded) != len(Padding._fields):
        return []
    shape = Padding(*padded)
    fits = (
        shape.row < shape.rows <= rows
        and new <= shape.width <= shape.length <= limits.context
        and shape.first < new
    )
    return list(shape) if fits else []
