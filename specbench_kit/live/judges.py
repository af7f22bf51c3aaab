"""Judges of outputs whose target is on a server, by the evidence that the server or the engine gives."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import exp
from secrets import token_hex
from threading import Event

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.engines.base import EngineAdapter
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import read_evidence, score_frame
from specbench_kit.live.wire import RETRYABLE, Status, Up
from specbench_kit.metrics.evidence import NoEvidence, ScoringCost
from specbench_kit.metrics.losslessness import CLEARLY_ABOVE, Losslessness

SCORING_TIMEOUT_S = 1800.0
"""How long the scoring of one output may take: some four forwards per token, on the slowest of servers."""
MAX_RECONNECTIONS = 3
PLACES = 8
"""Places before a divergence at which an engine's rounding is measured."""
CLEAR_MARGIN = 3.0
"""Difference of two log-probabilities that rounding in half precision does not explain, whatever was measured.

It makes one token twenty times as probable as the other. Between shapes of forwards in bfloat16, the logits of the
bundled pair move by up to 0.1 and those of SmolLM2-135M by up to 0.6.
"""
MOST_TOTAL = 1.01
"""The chances of different tokens come to 1, or to somewhat more where they were rounded."""


class _NotScoredError(Exception):
    """Says why an output was not scored."""


@dataclass
class ScoringJudge:
    """Has a `skit serve` score every differing output again, in the shapes of forwards that produced it."""

    connection: Connection
    sampler: Sampler
    seed: int
    cost: ScoringCost = field(default_factory=ScoringCost)
    _gone: str = ""
    """Why no further output is sent, once the server has stayed away."""

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return a tie or an error by the server's evidence; without any, `unjudged`."""
        try:
            frame = self._score(record, baseline, position)
        except _NotScoredError as reason:
            return NoEvidence(self.connection.welcome.bitwise, str(reason)).judge(record, baseline, position)
        self.cost.outputs += 1
        self.cost.forwards += frame.forwards
        self.cost.seconds += frame.score_us / 1e6
        # The batches of a server are on record, but not when a session lost its KV and was computed anew.
        return read_evidence(frame).verdict(record, exact=False)

    def _score(self, record: RequestRecord, baseline: RequestRecord, position: int) -> messages.Scored:
        """Return the server's answer; raise _NotScoredError if there is none."""
        welcome = self.connection.welcome
        if self._gone:
            raise _NotScoredError(self._gone)
        if not welcome.scored:
            raise _NotScoredError("the server scores no outputs")
        if len(record.output_ids) > welcome.scored:
            raise _NotScoredError(f"the server scores outputs of at most {welcome.scored} tokens")
        if any(step.steps for step in record.rounds):
            raise _NotScoredError("the rounds of a pipeline are scored in one process alone")
        frame = Up(score=score_frame(token_hex(8), record, baseline, position, self.sampler, self.seed))
        for _ in range(1 + MAX_RECONNECTIONS):
            try:
                return self._ask(frame)
            except ConnectionLostError:
                try:
                    self.connection.reconnect()
                except SkitError as error:
                    self._gone = str(error)
                    raise _NotScoredError(self._gone) from error
        raise _NotScoredError("the connection was lost while the server scored the output")

    def _ask(self, frame: Up) -> messages.Scored:
        """Send the frame until the server takes it, and wait for the answer."""
        until_s = monotonic_s() + SCORING_TIMEOUT_S
        while monotonic_s() < until_s:
            self.connection.send(frame)
            refused = None
            while refused is None:
                _, answer = self.connection.receive(SCORING_TIMEOUT_S)
                kind = answer.WhichOneof("kind")
                if kind == "scored" and answer.scored.session == frame.score.session:
                    return answer.scored
                if kind == "refused" and answer.refused.session == frame.score.session:
                    refused = answer.refused
            status = Status(refused.status)
            if status not in RETRYABLE:
                raise _NotScoredError(f"the server did not score the output: {status.name}: {refused.reason}")
            Event().wait(refused.retry_ms / 1000)
        raise _NotScoredError("the server had no time to score the output")


@dataclass
class EngineJudge:
    """Judges differing outputs of another engine by its log-probabilities, and by how far its own rounding moves them.

    At a divergence it asks for the distance between both tokens. How much of that rounding explains is measured where
    the outputs still agree: see `_measured_noise`.
    """

    engine: EngineAdapter
    sampler: Sampler
    cost: ScoringCost = field(default_factory=ScoringCost)

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return the verdict on the first divergence, with its margin in log-probability if the engine states it."""
        unknown = NoEvidence(reason="the engine gives no log-probabilities of its tokens").judge(
            record, baseline, position
        )
        if not self.sampler.greedy:
            return replace(
                unknown, reason="the engine draws the responses that it decodes by itself by other random numbers"
            )
        token = record.output_ids[position]
        expected = baseline.output_ids[position]
        text = [*record.prompt_ids, *record.output_ids[:position]]
        began_s = monotonic_s()
        try:
            values = self.engine.log_probabilities(text, (token, expected))
            if values is None:
                return unknown
            _require_probabilities(values, (token, expected))
            noise = self._measured_noise(text, len(record.prompt_ids))
        except SkitError as error:
            return replace(unknown, reason=str(error))
        self.cost.outputs += 1
        self.cost.seconds += monotonic_s() - began_s
        margin = abs(values[token] - values[expected])
        judged = replace(unknown, margin=margin, noise=noise)
        # Each of the two forwards may have moved the distance between the tokens by the noise.
        bound = min(2 * noise, CLEAR_MARGIN)
        if margin <= bound:
            return replace(judged, verdict="tie", reason="")
        if margin > CLEAR_MARGIN or (noise and self.engine.has_shapes and margin > CLEARLY_ABOVE * bound):
            return replace(judged, verdict="error", reason="")
        return replace(judged, reason="the margin is above the rounding that was measured, and not clearly so")

    def _measured_noise(self, text: Sequence[int], prompt: int) -> float:
        """Return the largest move of the distance between the two likeliest tokens, at places before the divergence.

        Every place is asked for in the shapes of forwards that a run uses: the text computed as a whole, the last token
        behind a cached prefix, and that beside all other places at the same time.
        """
        first = max(1, min(prompt, len(text) - PLACES))
        lengths = sorted({first + step * (len(text) - first) // PLACES for step in range(PLACES)})
        places = [text[:length] for length in lengths]
        pairs = []
        alone = []
        for place in places:
            likeliest = self._values(place, fresh=True)
            best, second = sorted(likeliest, key=lambda token: -likeliest[token])[:2]
            pairs.append((best, second))
            behind = self._values(place, pairs[-1])
            alone.append([values[best] - values[second] for values in (likeliest, behind)])
        with ThreadPoolExecutor(len(places), "judge") as pool:
            together = list(pool.map(self._values, places, pairs))
        noise = 0.0
        for (best, second), distances, values in zip(pairs, alone, together, strict=True):
            distances.append(values[best] - values[second])
            noise = max(noise, max(distances) - min(distances))
        return noise

    def _values(self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False) -> dict[int, float]:
        values = self.engine.log_probabilities(text, tokens, fresh=fresh)
        if values is None or len(values) < 2:
            raise SkitError("the engine gives no log-probabilities of its likeliest tokens")
        _require_probabilities(values, tokens)
        return values


def _require_probabilities(values: Mapping[int, float], tokens: Sequence[int]) -> None:
    """Raise SkitError if tokens are missing or the chances of all tokens come to more than 1.

    There are engines that give every token of a speculative answer a log-probability of 0, by which any two tokens
    would be a tie.
    """
    if not values.keys() >= set(tokens):
        raise SkitError("the engine gives no log-probabilities of the tokens that differ")
    total = sum(map(exp, values.values()))
    if not total <= MOST_TOTAL:
        raise SkitError(
            f"the engine's log-probabilities cannot be right: the chances of {len(values)} tokens come to {total:.3g}"
        )
