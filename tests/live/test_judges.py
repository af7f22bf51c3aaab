"""Judges of outputs that differ, by what a scripted server says: its scores, or an engine's log-probabilities."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from math import log
from types import SimpleNamespace

import pytest
from report_builders import make_record, make_round
from test_answers_of_a_batch import LOST, ChosenEngine, Scripted
from tiny_models import GREEDY

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live.connection import ConnectionLostError
from specbench_kit.live.engine_verifier import EngineJudge
from specbench_kit.live.engines.base import EngineAdapter
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.wire import Down, Status, Up
from specbench_kit.live.wire_verifier import ScoringJudge

PLAIN = RequestRecord("a", "", [1, 2, 3, 4], [5, 6, 7])
OTHER = RequestRecord("a", "", [1, 2, 3, 4], [5, 9, 7])
"""Differs from `PLAIN` in its second token."""
DIVERGENCE = {
    "position": 1,
    "token": 9,
    "expected": 6,
    "margin": 0.5,
    "are_best": True,
    "verified": {"token": 6, "shortfall": 0.25},
    "plain": {"token": 6, "shortfall": 0.0},
}
SCORES = {
    "noise": 0.5,
    "control": 0.5,
    "divergences": [DIVERGENCE],
    "score_us": 250_000,
    "forwards": 12,
}
"""Two tokens that are 0.5 apart, under a noise of 0.5; in the shapes of the run the scores miss the token by 0.25."""


class ScoringServer(Scripted):
    """Answers the frames that ask for scores by what a test chooses, under the name that each of them has."""

    def __init__(self, *says: dict[str, object] | Status | ConnectionLostError) -> None:
        super().__init__(welcome=messages.Welcome(scored=3))
        self.says: Iterator[object] = iter(says)
        self.stays_away = ""
        self.retry_ms = 250

    def send(self, frame: Up) -> None:
        super().send(frame)
        name = frame.score.session
        says = next(self.says)
        if isinstance(says, ConnectionLostError):
            self.answers.append(says)
            return
        # What others are told arrives here too, and is passed over.
        self.answers.append((0.0, Down(scored={"session": "other"})))
        self.answers.append((0.0, Down(refused={"session": "other", "status": Status.FAILED})))
        if isinstance(says, Status):
            refused = {"session": name, "status": says, "reason": "why", "retry_ms": self.retry_ms}
            self.answers.append((0.0, Down(refused=refused)))
        else:
            self.answers.append((0.0, Down(scored={"session": name, **says})))  # type: ignore[dict-item]

    def receive(self, timeout_s: float = 0.0) -> tuple[float, Down]:
        assert timeout_s == 1800, "so long the slowest of servers may take for one output"
        return super().receive()

    def reconnect(self) -> None:
        super().reconnect()
        if self.stays_away:
            raise SkitError(self.stays_away)

    def judge(self) -> ScoringJudge:
        return ScoringJudge(self, GREEDY, 0)  # type: ignore[arg-type]


def test_scores_of_a_server_judge_an_output_and_are_counted() -> None:
    """The shapes of a server's forwards are not known exactly: 0.25 are within the noise."""
    server = ScoringServer(SCORES, SCORES)
    judge = server.judge()
    for number in (1, 2):
        result = judge.judge(OTHER, PLAIN, 1)
        assert (result.verdict, result.position, result.method_token, result.baseline_token) == (
            "tie",
            1,
            9,
            6,
        )
        assert (judge.cost.outputs, judge.cost.forwards, judge.cost.seconds) == (
            number,
            12 * number,
            0.25 * number,
        )
    names = {frame.session for frame in server.frames("score")}
    assert len(names) == 2, "an answer to an earlier question is none to this one"


@pytest.mark.parametrize("says", [Status.OVERLOADED, Status.IN_FLIGHT, LOST])
def test_a_server_that_is_busy_or_gone_for_a_moment_is_asked_again(
    says: Status | ConnectionLostError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that refuses says after how many milliseconds."""
    waits_s: list[float] = []
    monkeypatch.setattr(
        "specbench_kit.live.wire_verifier.Event", lambda: SimpleNamespace(wait=waits_s.append)
    )
    server = ScoringServer(says, says, says, SCORES)
    assert server.judge().judge(OTHER, PLAIN, 1).verdict == "tie"
    frames = server.frames("score")
    assert [frame == frames[0] for frame in frames] == [True] * 4
    assert (server.reconnections, waits_s) == ((3, []) if says is LOST else (0, [0.25] * 3))


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ([Status.CONTEXT_FULL], "the server did not score the output: CONTEXT_FULL: why"),
        ([LOST] * 4, "the connection was lost while the server scored the output"),
    ],
)
def test_an_output_that_a_server_does_not_score_is_left_open(
    says: Sequence[Status | ConnectionLostError], reason: str
) -> None:
    server = ScoringServer(*says)
    judge = server.judge()
    result = judge.judge(OTHER, PLAIN, 1)
    assert (result.verdict, result.reason, judge.cost.outputs) == ("unjudged", reason, 0)
    assert len(server.sent) == len(says)


def test_a_server_that_is_busy_for_half_an_hour_leaves_an_output_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks for ten minutes of patience each time, and is asked three times."""
    waits_s: list[float] = []
    monkeypatch.setattr(
        "specbench_kit.live.wire_verifier.Event", lambda: SimpleNamespace(wait=waits_s.append)
    )
    monkeypatch.setattr("specbench_kit.live.wire_verifier.monotonic_s", lambda: sum(waits_s))
    server = ScoringServer(*[Status.OVERLOADED] * 9)
    server.retry_ms = 600_000
    result = server.judge().judge(OTHER, PLAIN, 1)
    assert (result.verdict, result.reason) == (
        "unjudged",
        "the server had no time to score the output",
    )
    assert len(server.sent) == 3


def test_a_server_that_stays_away_is_asked_no_more() -> None:
    server = ScoringServer(LOST)
    server.stays_away = "the server stayed away"
    judge = server.judge()
    assert [judge.judge(OTHER, PLAIN, 1).reason for _ in range(3)] == ["the server stayed away"] * 3
    assert (len(server.sent), server.reconnections) == (1, 1)


@pytest.mark.parametrize(
    ("scored", "record", "reason"),
    [
        (0, OTHER, "the server scores no outputs"),
        (2, OTHER, "the server scores outputs of at most 2 tokens"),
        (
            3,
            make_record("a", make_round(steps=1, accepted=2)),
            "the rounds of a pipeline are scored in one process",
        ),
    ],
)
@pytest.mark.parametrize(("bitwise", "verdict"), [(False, "unjudged"), (True, "error")])
def test_what_a_server_cannot_score_it_is_not_sent(
    scored: int, record: RequestRecord, reason: str, bitwise: bool, verdict: str
) -> None:
    """Without any evidence a difference is an error only where nothing is left to rounding."""
    server = ScoringServer()
    server.welcome = messages.Welcome(scored=scored, bitwise=bitwise)
    result = server.judge().judge(record, PLAIN, 1)
    assert result.verdict == verdict
    assert bitwise or result.reason.startswith(reason)
    assert not server.sent


class ShapedEngine(ChosenEngine):
    """An engine that sets two tokens apart by a margin, and moves its two likeliest by how it computes a text.

    The likeliest token after a text is the text's length plus ten. `moves` are those of a text that is computed behind
    its prefix, and of the same again, beside others.
    """

    def __init__(
        self, margin: float, moves: tuple[float, float] = (0.0, 0.0), has_shapes: bool = True
    ) -> None:
        super().__init__()
        self.margin, self.moves = margin, moves
        self.has_shapes = has_shapes  # type: ignore[misc]
        self.fresh: list[list[int]] = []
        self.lengths: Counter[int] = Counter()

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float] | None:
        if {*tokens} == {9, 6}:
            return {6: -0.75, 9: -0.75 - self.margin}
        best, second = len(text) + 10, len(text) + 11
        if fresh:
            assert not tokens
            self.fresh.append(list(text))
            return {second: log(0.25), 1: log(0.125), best: log(0.5)}
        assert tuple(tokens) == (best, second)
        self.lengths[len(text)] += 1
        return {best: log(0.5), second: log(0.25) - self.moves[(self.lengths[len(text)] - 1) % 2]}


def engine_verdict(engine: EngineAdapter, sampler: Sampler = GREEDY) -> tuple[str, str]:
    result = EngineJudge(engine, sampler).judge(OTHER, PLAIN, 1)
    return result.verdict, result.reason


@pytest.mark.parametrize("moves", [(0.1, 0.0), (0.0, 0.1), (-0.1, 0.0), (0.0, -0.1), (0.05, -0.05)])
@pytest.mark.parametrize(
    ("margin", "verdict"), [(0.19, "tie"), (0.21, "unjudged"), (0.79, "unjudged"), (0.81, "error")]
)
def test_twice_an_engines_rounding_is_a_tie_and_four_times_that_an_error(
    margin: float, verdict: str, moves: tuple[float, float]
) -> None:
    """Whichever of its shapes moves the two likeliest tokens by 0.1, or two of them apart by as much."""
    found, reason = engine_verdict(ShapedEngine(margin, moves))
    assert (found, reason == "") == (verdict, verdict != "unjudged")


@pytest.mark.parametrize(
    ("margin", "moves", "has_shapes", "verdict"),
    [
        (0.81, (0.1, 0.0), False, "unjudged"),  # what it computed anew is not known
        (2.9, (0.1, 0.0), False, "unjudged"),
        (3.1, (0.1, 0.0), False, "error"),
        (0.1, (0.0, 0.0), True, "unjudged"),  # nothing was seen to move
        (0.0, (0.0, 0.0), True, "tie"),
        (2.9, (9.0, 0.0), True, "tie"),
        (3.1, (9.0, 0.0), True, "error"),
    ],
)
def test_where_little_is_known_of_an_engines_rounding_a_clear_margin_decides(
    margin: float, moves: tuple[float, float], has_shapes: bool, verdict: str
) -> None:
    found, reason = engine_verdict(ShapedEngine(margin, moves, has_shapes))
    assert found == verdict
    assert ("not clearly so" in reason) == (verdict == "unjudged")


@pytest.mark.parametrize(
    ("prompt", "output", "lengths"),
    [
        (4, 16, [4, 6, 8, 10, 12, 14, 16, 18]),
        (4, 2, [1, 2, 3, 4, 5]),
        (40, 1, [33, 34, 35, 36, 37, 38, 39, 40]),
    ],
)
def test_rounding_is_measured_before_the_divergence(
    prompt: int, output: int, lengths: list[int]
) -> None:
    """At eight places of what both outputs share, and into the prompt where that is too short."""
    texts = [RequestRecord("a", "", [1] * prompt, [*([2] * output), token]) for token in (9, 6)]
    engine = ShapedEngine(0.1, (0.25, 0.0))
    result = EngineJudge(engine, GREEDY).judge(*texts, output)
    assert (result.verdict, result.noise, result.margin) == (
        "tie",
        pytest.approx(0.25),
        pytest.approx(0.1),
    )
    shared = [1] * prompt + [2] * output
    assert engine.fresh == [shared[:length] for length in lengths]
    assert engine.lengths == dict.fromkeys(lengths, 2)


def test_scoring_by_an_engine_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock counts how often it is read."""
    monkeypatch.setattr("specbench_kit.live.engine_verifier.monotonic_s", count(1).__next__)
    judge = EngineJudge(ShapedEngine(0.1), GREEDY)
    for _ in range(3):
        judge.judge(OTHER, PLAIN, 1)
    assert (judge.cost.outputs, judge.cost.seconds) == (3, 3)


class SilentEngine(ShapedEngine):
    """Says nothing of some tokens: of those that differ, or of its likeliest."""

    def __init__(self, of: str, answer: dict[int, float] | None) -> None:
        super().__init__(0.1)
        self.of, self.answer = of, answer

    def log_probabilities(
        self, text: Sequence[int], tokens: Sequence[int] = (), *, fresh: bool = False
    ) -> dict[int, float] | None:
        if self.of == ("likeliest" if fresh else "differing"):
            return self.answer
        return super().log_probabilities(text, tokens, fresh=fresh)


@pytest.mark.parametrize(
    ("engine", "sampler", "reason"),
    [
        (
            SilentEngine("differing", None),
            GREEDY,
            "the engine gives no log-probabilities of its tokens",
        ),
        (
            SilentEngine("differing", {9: -1.0}),
            GREEDY,
            "the engine gives no log-probabilities of the tokens that differ",
        ),
        (
            SilentEngine("likeliest", None),
            GREEDY,
            "the engine gives no log-probabilities of its most probable tokens",
        ),
        (
            SilentEngine("likeliest", {9: -1.0}),
            GREEDY,
            "the engine gives no log-probabilities of its most probable tokens",
        ),
        (
            ShapedEngine(0.0),
            Sampler(0.8),
            "the engine draws the responses that it decodes by itself by other random",
        ),
    ],
)
def test_an_engine_that_says_too_little_judges_nothing(
    engine: ShapedEngine, sampler: Sampler, reason: str
) -> None:
    verdict, said = engine_verdict(engine, sampler)
    assert verdict == "unjudged"
    assert said.startswith(reason)
