"""The target in another inference engine: it verifies chains by its own tokens, decodes by itself,
and judges outputs.

Every request holds the whole text, so that the engine's prefix cache alone remembers it.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import blake2b
from math import exp
from queue import SimpleQueue
from threading import Event
from typing import NamedTuple

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock, monotonic_s
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.rules import walk
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Session
from specbench_kit.decoding.verification import PendingVerdicts, Verdict
from specbench_kit.live.engines.base import EngineAdapter, GenerationRequest, ScoringRequest
from specbench_kit.live.streaming import StreamedRound
from specbench_kit.metrics.evidence import NoEvidence
from specbench_kit.metrics.losslessness import CLEARLY_ABOVE, Losslessness, ScoringCost

THREADS = 64
"""Requests to the engine at a time."""
SEED_BYTES = 4
PLACES = 8
"""Places before a divergence at which an engine's rounding is measured."""
CLEAR_MARGIN = 3.0
"""Difference of two log-probabilities that rounding in half precision does not explain, whatever
was measured.

It makes one token twenty times as probable as the other. Between shapes of forwards in bfloat16,
the logits of the bundled pair move by up to 0.1 and those of SmolLM2-135M by up to 0.6.
"""
MOST_TOTAL = 1.01
"""The chances of different tokens come to 1, or to somewhat more where they were rounded."""


class _Answer(NamedTuple):
    """The target's tokens for one draft, and when they arrived."""

    tokens: list[int]
    arrived_s: float


@dataclass
class EngineVerifier:
    """Accepts drafted tokens that equal the engine's own; the engine's prefix cache alone remembers
    the text.
    """

    engine: EngineAdapter
    sampler: Sampler
    seed: int
    clock: MeasuringClock | None = None
    """Told which part of a round an emulated link took."""
    asynchronous: bool = True
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, "verification")
    )
    _answers: list[Future[_Answer]] = field(default_factory=list)

    def admit(self, session: Session) -> None:
        """Do nothing: every request to the engine holds the whole text."""

    def release(self, session: Session) -> None:
        """Do nothing, as there is no session at the engine."""

    def commit(self, verdict: Verdict) -> None:
        """Do nothing: the next request holds the committed tokens."""

    def send(self, drafts: Sequence[Draft], chosen: Sequence[list[int]]) -> PendingVerdicts:
        """Ask for the target tokens of all drafts at the same time."""
        requests = [
            self._scoring_request(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)
        ]
        if self.engine.link is not None:
            self.engine.link.take_server_s()  # leave out what other loops asked before
        sent_s = monotonic_s()
        self._answers = [self._pool.submit(self._ask, request) for request in requests]
        sending_s = monotonic_s() - sent_s

        def verdicts() -> list[Verdict]:
            began_s = monotonic_s()
            answers = [answer.result() for answer in self._answers]
            if self.engine.link is not None and self.clock is not None:
                # The engine charges the whole wait to the phase "verify"; the link took what the
                # server did not.
                server_s = self.engine.link.take_server_s()
                link_s = max(0.0, max(answer.arrived_s for answer in answers) - sent_s - server_s)
                charged_s = sending_s + monotonic_s() - began_s
                self.clock.split("verify", server_s, charged_s, [("link", link_s, 2)])
            results = []
            for draft, nodes, answer in zip(drafts, chosen, answers, strict=True):
                path, bonus = walk(draft.tree, nodes, answer.tokens.__getitem__)
                results.append(Verdict(draft, nodes, path, bonus, len(nodes) + 1))
            return results

        return verdicts

    def answer_arrived(self) -> bool:
        """Return True if all answers have arrived."""
        return all(answer.done() for answer in self._answers)

    def _ask(self, request: ScoringRequest) -> _Answer:
        tokens = self.engine.target_tokens(request)
        return _Answer(tokens, monotonic_s())

    def _scoring_request(self, draft: Draft, nodes: list[int]) -> ScoringRequest:
        """Return the request for a draft; raise SkitError for a tree or sampled tokens, which no
        engine can verify.
        """
        tree = draft.tree
        if [tree.parents[node] for node in nodes] != [0, *nodes][: len(nodes)]:
            raise SkitError(
                "another engine verifies chains alone: name a method that drafts a chain"
            )
        if any(tree.source(node)[0].sampled for node in nodes):
            raise SkitError(
                "another engine does not return the probabilities that sampled drafts need: name a method that drafts "
                "the most likely tokens, or leave out --temperature"
            )
        session = draft.session
        seeds = []
        for position in range(session.produced, session.produced + len(nodes) + 1):
            # A seed per position of the output: plain decoding with the same seeds then samples the
            # same tokens.
            text = f"{self.seed}/{session.request.id}/{position}"
            digest = blake2b(text.encode(), digest_size=SEED_BYTES).digest()
            seeds.append(int.from_bytes(digest) >> 1)  # engines take signed 32-bit seeds
        return ScoringRequest(
            list(session.tokens), [tree.tokens[node] for node in nodes], self.sampler, seeds
        )


@dataclass
class EngineStream:
    """Asks an engine to continue each prompt by its own decoding, as any client of it would."""

    engine: EngineAdapter
    sampler: Sampler
    seed: int
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(THREADS, "generation")
    )
    _arrived: SimpleQueue[list[StreamedRound] | SkitError] = field(default_factory=SimpleQueue)
    _ended: dict[str, Event] = field(default_factory=dict)

    def begin(self, session: Session) -> None:
        """Start the request in a thread of its own."""
        ended = self._ended[session.request.id] = Event()
        digest = blake2b(
            f"{self.seed}/{session.request.id}".encode(), digest_size=SEED_BYTES
        ).digest()
        seed = int.from_bytes(digest) >> 1  # engines take signed 32-bit seeds
        request = GenerationRequest(
            list(session.tokens), session.request.max_new_tokens, self.sampler, seed
        )
        self._pool.submit(self._read, session.request.id, request, ended)

    def receive(self) -> Sequence[StreamedRound]:
        """Wait for tokens of any request; raise SkitError if a stream broke."""
        arrived = self._arrived.get()
        if isinstance(arrived, SkitError):
            raise arrived
        return arrived

    def end(self, session: Session) -> None:
        """Let the thread of a finished request close its stream."""
        self._ended.pop(session.request.id).set()

    def _read(self, name: str, request: GenerationRequest, ended: Event) -> None:
        """Pass on the tokens of a request until it is ended; an engine that stops before is asked
        to go on.

        Engines know other ends than the draft model's tokenizer, and the device decides where a
        response ends.
        """
        text = list(request.text)
        left = request.max_tokens
        try:
            while left > 0 and not ended.is_set():
                before = left
                for tokens in self.engine.generate(request._replace(text=text, max_tokens=left)):
                    arrived_s = monotonic_s()
                    text = [*text, *tokens]
                    left = left - len(tokens)
                    # An engine decodes token by token, also where several arrive at once.
                    self._arrived.put([StreamedRound(name, [token], arrived_s) for token in tokens])
                    if ended.is_set():
                        return
                if left == before:
                    raise SkitError(f"the engine ended the response to {name} without a token")
        except SkitError as error:
            if not ended.is_set():
                self._arrived.put(error)
        except (
            Exception
        ) as error:  # a plugin's adapter may raise anything, and nobody else would see it
            self._arrived.put(self.engine.unexpected_answer(repr(error)))


@dataclass
class EngineJudge:
    """Judges differing outputs of another engine by its log-probabilities, and by how far its own
    rounding moves them.

    At a divergence it asks for the distance between both tokens. How much of that rounding explains
    is measured where the outputs still agree: see `_measured_noise`.
    """

    engine: EngineAdapter
    sampler: Sampler
    cost: ScoringCost = field(default_factory=ScoringCost)

    def judge(self, record: RequestRecord, baseline: RequestRecord, position: int) -> Losslessness:
        """Return the verdict on the first divergence, with its margin in log-probability if the
        engine states it.
        """
        unknown = NoEvidence(reason="the engine gives no log-probabilities of its tokens").judge(
            record, baseline, position
        )
        if not self.sampler.greedy:
            return structs.replace(
                unknown,
                reason="the engine draws the responses that it decodes by itself by other random numbers",
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
            return structs.replace(unknown, reason=str(error))
        self.cost.outputs += 1
        self.cost.seconds += monotonic_s() - began_s
        margin = abs(values[token] - values[expected])
        judged = structs.replace(unknown, margin=margin, noise=noise)
        # Each of the two forwards may have moved the distance between the tokens by the noise.
        bound = min(2 * noise, CLEAR_MARGIN)
        if margin <= bound:
            return structs.replace(judged, verdict="tie", reason="")
        if margin > CLEAR_MARGIN or (
            noise and self.engine.has_shapes and margin > CLEARLY_ABOVE * bound
        ):
            return structs.replace(judged, verdict="error", reason="")
        return structs.replace(
            judged, reason="the margin is above the rounding that was measured, and not clearly so"
        )

    def _measured_noise(self, text: Sequence[int], prompt: int) -> float:
        """Return the largest move of the distance between the two likeliest tokens, at places
        before the divergence.

        Every place is asked for in the shapes of forwards that a run uses: the text computed as a
        whole, the last token behind a cached prefix, and that beside all other places at the same
        time.
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

    def _values(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float]:
        values = self.engine.log_probabilities(text, tokens, fresh=fresh)
        if values is None or len(values) < 2:
            raise SkitError("the engine gives no log-probabilities of its most probable tokens")
        _require_probabilities(values, tokens)
        return values


def _require_probabilities(values: Mapping[int, float], tokens: Sequence[int]) -> None:
    """Raise SkitError if tokens are missing or the chances of all tokens come to more than 1.

    There are engines that give every token of a speculative answer a log-probability of 0, by which
    any two tokens would be a tie.
    """
    if not values.keys() >= set(tokens):
        raise SkitError("the engine gives no log-probabilities of the tokens that differ")
    total = sum(map(exp, values.values()))
    if not total <= MOST_TOTAL:
        raise SkitError(
            f"the engine's log-probabilities cannot be right: the chances of {len(values)} tokens come to {total:.3g}"
        )
