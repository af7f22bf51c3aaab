"""`skit profile-server`: loads that keep a server busy, and a latency profile fitted to its batches.

Sessions keep the server busy: each sends its next draft a fixed time after each answer.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from random import Random
from secrets import token_hex
from statistics import fmean, median
from typing import NamedTuple

import numpy as np
import torch
from msgspec import to_builtins
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import Written
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.latency import Row
from specbench_kit.decoding.time_limit import TimeLimit
from specbench_kit.live.connection import Connection
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.protocol.verification_pb2 import Welcome
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.wire import Down, Status, Up, tokenizer_hash
from specbench_kit.models.catalogue import from_pretrained, locate
from specbench_kit.profilers.base import COEFFICIENTS, LEAST_SERVED_R2, Form, Profile, features
from specbench_kit.profilers.cards import Table
from specbench_kit.profilers.fit import metrics, non_negative
from specbench_kit.profilers.loading import save
from specbench_kit.profilers.measurement import hardware_text
from specbench_kit.reports.sections.profiles import poor_fit, score
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.serving.arrays import Floats
from specbench_kit.studies.server_profile.settings import ServerProfileSettings

MIN_ROUNDS = 6
"""Rounds of every session, however long they take."""
GROWTH = 64
"""Tokens that a session may grow by before another replaces it."""


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """A number of concurrent sessions with `drafted` tokens per draft after `context` tokens.

    `cold` loads use a new session for each round, whose text is not in KV. A draft leaves `pause_s` after the last
    answer, as from a device that drafts in between.
    """

    sessions: int
    drafted: int
    context: int
    cold: bool = False
    pause_s: float = 0.0


class ObservedBatch(NamedTuple):
    """A batch: its rows and duration, the mean time between its answers, and the answers sent
    during it.

    `spacing_s` is None for a batch of one. `leaving` is the number of answers of the previous batch that still left
    after this one had begun.
    """

    rows: list[Row]
    verify_s: float
    spacing_s: float | None
    leaving: int


class BatchGap(NamedTuple):
    """The time between two verifications while a round waited; `answers` is the size of the first
    batch.
    """

    answers: int
    seconds: float


class ObservedRound(NamedTuple):
    """An answered round: its times as the client and the server measured them, its batch, and its
    row.
    """

    trip_s: float
    queue_s: float
    verify_s: float
    arrived_s: float
    batch: int
    row: Row


@dataclass(slots=True)
class _ProfilingSession:
    """A session with its committed tokens and its latest round."""

    name: str
    base: int
    round: int = 0
    sent_s: float = 0.0


@dataclass
class LoadGenerator:
    """Sessions at a server. Drafts and prompts repeat one token, since nobody reads the answers."""

    connection: Connection

    def __post_init__(self) -> None:
        self._numbers = count()
        self._nonce = token_hex(8)
        self._sessions: dict[str, _ProfilingSession] = {}
        self._due = deque[tuple[float, _ProfilingSession]]()
        """Sessions that are to send a draft, each with the time for it, the earliest first."""

    def rounds(self, load: SessionLoad, seconds: float) -> list[ObservedRound]:
        """Run a load for some seconds and return its answered rounds in the order of their
        arrival.
        """
        for _ in range(load.sessions):
            self._open(load)
        if not load.cold:
            # The first round of each session brings its text into KV, and is not measured.
            for session in self._sessions.values():
                self._send(session, load)
            for _ in range(load.sessions):
                self._receive(load)
        end_s = monotonic_s() + seconds
        longest = self.connection.welcome.limits.context
        rounds = list[ObservedRound]()
        self._due.extend((0.0, session) for session in self._sessions.values())
        while self._sessions:
            session, answered = self._receive(load)
            rounds.append(answered)
            if monotonic_s() > end_s and len(rounds) >= MIN_ROUNDS * load.sessions:
                self._close(session)
            elif (
                load.cold
                or session.base > load.context + GROWTH
                or session.base + load.drafted > longest
            ):
                self._close(session)
                self._due.append((monotonic_s() + load.pause_s, self._open(load)))
            else:
                self._due.append((monotonic_s() + load.pause_s, session))
        return rounds

    def _open(self, load: SessionLoad) -> _ProfilingSession:
        session = _ProfilingSession(f"{self._nonce}/{next(self._numbers)}", load.context)
        self._sessions[session.name] = session
        sampling = messages.Sampling(request="profile")
        prompt = [1] * load.context
        self.connection.send(
            Up(open=messages.Open(session=session.name, prompt=prompt, sampling=sampling))
        )
        return session

    def _close(self, session: _ProfilingSession) -> None:
        del self._sessions[session.name]
        self.connection.send(Up(close=messages.Close(session=session.name)))

    def _send(self, session: _ProfilingSession, load: SessionLoad) -> None:
        session.round = session.round + 1
        session.sent_s = monotonic_s()
        draft = messages.Draft(
            session=session.name, round=session.round, base=session.base, tokens=[1] * load.drafted
        )
        self.connection.send(Up(draft=draft))

    def _next_frame(self, load: SessionLoad) -> tuple[float, Down]:
        """Return the next frame with its time of arrival, and meanwhile send the drafts that become
        due.
        """
        while self._due:
            wait_s = self._due[0][0] - monotonic_s()
            if wait_s <= 0:
                self._send(self._due.popleft()[1], load)
            elif (answer := self.connection.poll(wait_s)) is not None:
                return answer
        return self.connection.receive()

    def _receive(self, load: SessionLoad) -> tuple[_ProfilingSession, ObservedRound]:
        """Return the next answered round with its session."""
        arrived_s, frame = self._next_frame(load)
        while frame.WhichOneof("kind") == "opened":
            arrived_s, frame = self._next_frame(load)
        verdict = frame.verdict
        if frame.WhichOneof("kind") != "verdict" or verdict.status != Status.OK:
            raise SkitError(
                f"the server gave no verdict but {str(frame).strip()!r}: let nobody else use it"
            )
        session = self._sessions[verdict.session]
        row = session.base - verdict.cached + load.drafted, verdict.cached
        session.base += len(verdict.path) + 1
        return session, ObservedRound(
            trip_s=arrived_s - session.sent_s,
            queue_s=verdict.queue_us / 1e6,
            verify_s=verdict.verify_us / 1e6,
            arrived_s=arrived_s,
            batch=verdict.batch_number,
            row=row,
        )


def observed_batches(rounds: Iterable[ObservedRound]) -> list[ObservedBatch]:
    """Return the batches in which rounds were verified."""
    batches = []
    by_number = _by_batch(rounds)
    for number, batch in by_number.items():
        arrivals_s = [answered.arrived_s for answered in batch]
        began_s = _began_s(batch)
        spacing_s = (
            (max(arrivals_s) - min(arrivals_s)) / (len(batch) - 1) if len(batch) > 1 else None
        )
        leaving = sum(answered.arrived_s > began_s for answered in by_number.get(number - 1, []))
        batches.append(
            ObservedBatch(
                [answered.row for answered in batch], batch[0].verify_s, spacing_s, leaving
            )
        )
    return batches


def batch_gaps(rounds: Iterable[ObservedRound]) -> list[BatchGap]:
    """Return the gaps between successive batches for which a round waited already.

    A gap lies between the first answer of one batch and the beginning of the next. Both are seen
    one way over the network later, so that this way cancels out.
    """
    gaps = list[BatchGap]()
    by_number = _by_batch(rounds)
    for number, batch in by_number.items():
        if (previous := by_number.get(number - 1)) is not None:
            seconds = _began_s(batch) - min(answered.arrived_s for answered in previous)
            if max(answered.queue_s for answered in batch) > seconds > 0:
                gaps.append(BatchGap(len(previous), seconds))
    return gaps


def transit_times(rounds: Iterable[ObservedRound], frame_s: float) -> list[float]:
    """Return the seconds of each round outside queue and verification, as if its answer were the
    first of its batch.

    The answers of a batch leave one after the other, each `frame_s` after the one before.
    """
    seconds: list[float] = []
    for batch in _by_batch(rounds).values():
        for position, answered in enumerate(sorted(batch, key=lambda answered: answered.arrived_s)):
            seconds.append(
                answered.trip_s - answered.queue_s - answered.verify_s - position * frame_s
            )
    return seconds


def _by_batch(rounds: Iterable[ObservedRound]) -> dict[int, list[ObservedRound]]:
    by_number: dict[int, list[ObservedRound]] = {}
    for answered in rounds:
        by_number.setdefault(answered.batch, []).append(answered)
    return by_number


def _began_s(batch: list[ObservedRound]) -> float:
    """Return the beginning of a verification on the client's clock, later by an answer's way over
    the network.
    """
    return min(answered.arrived_s for answered in batch) - batch[0].verify_s


SESSIONS = (2, 4, 8, 16, 24)
DRAFTED = (1, 4, 8)
CONTEXTS = (64, 256)
COLD_SESSIONS = (2, 8)
COLD_CONTEXTS = (48, 128)
COLD_DRAFTED = 4
TEST_LOADS = 8
SEED = "profile-server"
"""Loads that test the fit and are not fitted, and what they are drawn with."""
REPETITIONS = 2
PASSES = 3
"""Measurements of every load, and passes of the reweighted least squares."""
PAUSE_S = 0.02
"""Pause of a single device and in half of the loads: a machine that was idle for so long takes time
to wake up.
"""
FORM: Form = "served"
LEAST_SHARE = 0.5
"""The smallest share of the loads, of those to fit as of those to test, by which a profile is
fitted.
"""

Loads = Sequence[Sequence[ObservedBatch]]
"""Batches by load."""


@dataclass(frozen=True, slots=True)
class ServerProfileOutcome:
    """The profile, the text to show about it, and why it should be measured again, if so."""

    profile: Profile
    text: str
    doubts: Sequence[str]


def profile_server(
    settings: ServerProfileSettings, progress: ProgressCallback
) -> ServerProfileOutcome:
    """Measure the server under all loads, fit a profile, and write its file."""
    connection = _connect(settings)
    generator = LoadGenerator(connection)
    welcome = connection.welcome
    train, test = _loads(min(settings.sessions, welcome.limits.slots), welcome.limits.context)
    batches: dict[SessionLoad, list[ObservedBatch]] = {load: [] for load in [*train, *test]}
    single = list[ObservedRound]()
    gaps = list[BatchGap]()
    warm: dict[int, list[list[ObservedRound]]] = {}
    # Every load several times in a mixed order: a machine that is slow for a while then slows all
    # of them alike.
    random = Random(SEED)
    loads = [*train, *test]
    order = [load for _ in range(REPETITIONS) for load in random.sample(loads, len(loads))]
    watch = Watch(probe_here(), torch.device("cpu"))
    limit = TimeLimit(settings.minutes)
    limit.start()
    done = 0
    for load in order:
        if limit.is_over:
            break
        progress(f"{load.sessions} sessions", done, len(order))
        rounds = generator.rounds(load, settings.window_s / REPETITIONS)
        batches[load] += observed_batches(rounds)
        gaps += batch_gaps(rounds)
        if not load.cold:
            warm.setdefault(load.sessions, []).append(rounds)
        if load.sessions == 2 and not load.cold:
            single_load = SessionLoad(1, load.drafted, load.context, pause_s=PAUSE_S)
            single += generator.rounds(single_load, settings.window_s / 2 / REPETITIONS)
        done += 1
    connection.close()
    progress("done", done, len(order))
    measured = [list(filter(batches.get, part)) for part in (train, test)]
    enough = all(
        len(part) >= LEAST_SHARE * len(all_)
        for part, all_ in zip(measured, (train, test), strict=True)
    )
    if not (enough and single):
        needed = (settings.minutes or 0.0) * len(loads) / max(done, 1)
        raise SkitError(
            f"--minutes {settings.minutes} were over after {done} of {len(order)} measurements, and a fit takes half "
            f"of all loads: give about {needed:.2g} minutes"
        )
    train, test = measured
    disturbed = disturbances([watch.end({})])
    trained = [batches[load] for load in train]
    tested = [batches[load] for load in test]
    times = _fit(trained)
    fit = {
        **_accuracy(times, trained, tested),
        **_overhead(single, warm, list(batches.values()), gaps),
        "answer_s": times[-1],
        "verify_cv": _scatter(times, batches.values()),
        "window_s": settings.window_s,
        **({"disturbed": disturbed} if disturbed else {}),
    }
    profile = _profile(settings, welcome, _coefficients(times), fit)
    save(settings.to, profile)
    text = _text(profile) + (
        f"; {done} of {len(order)} measurements were made" if done < len(order) else ""
    )
    return ServerProfileOutcome(profile, text, _doubts(profile))


def _profile(
    settings: ServerProfileSettings,
    welcome: Welcome,
    coefficients: dict[str, float],
    fit: Table,
) -> Profile:
    return Profile(
        name=settings.to.stem,
        role="verifier",
        device=welcome.device,
        model=welcome.model,
        dtype=welcome.dtype,
        source="measured",
        form=FORM,
        coefficients=coefficients,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        hardware=hardware_text(torch.device("cpu")) if welcome.device == "cpu" else "",
        note="verifications of a busy server, in its own times",
        model_hash=welcome.model_hash,
        fit=fit,
    )


def _connect(settings: ServerProfileSettings) -> Connection:
    tokenizer = from_pretrained(AutoTokenizer, locate(settings.target, "target"))
    address = ServerAddress(settings.server, settings)
    return address.connect(tokenizer=tokenizer_hash(tokenizer), vocabulary=len(tokenizer))


def _loads(max_sessions: int, max_context: int) -> tuple[list[SessionLoad], list[SessionLoad]]:
    """Return the loads to fit, and random ones between them to test the fit."""

    def fitting(contexts: Iterable[int]) -> list[int]:
        return [context for context in contexts if context + 2 * GROWTH < max_context] or [
            max_context // 4
        ]

    sessions = sorted({min(number, max_sessions) for number in SESSIONS})
    contexts = fitting(CONTEXTS)
    grid = [(n, drafted, context) for context in contexts for drafted in DRAFTED for n in sessions]
    train = [SessionLoad(*point, pause_s=PAUSE_S * (index % 2)) for index, point in enumerate(grid)]
    train += [
        SessionLoad(min(n, max_sessions), COLD_DRAFTED, context, cold=True)
        for context in fitting(COLD_CONTEXTS)
        for n in COLD_SESSIONS
    ]
    random = Random(SEED)
    test = [
        SessionLoad(
            random.randint(2, max(2, max_sessions)),
            random.randint(1, 8),
            random.randint(contexts[0], contexts[-1]),
        )
        for _ in range(TEST_LOADS)
    ]
    return train, test


def _features(batch: ObservedBatch) -> Floats:
    """Return the form's factors of a batch, and the answers that left during it."""
    return np.array((*features(FORM, batch.rows), batch.leaving), np.float64)


def _overhead(
    single: Sequence[ObservedRound],
    warm: Mapping[int, Sequence[Sequence[ObservedRound]]],
    loads: Loads,
    gaps: Sequence[BatchGap],
) -> dict[str, float | list[list[float]]]:
    """Return what rounds take besides queue and verification, in seconds, by its name in the
    profile.

    `wire_s` is the round trip of a single device without its verification, `frame_s` the time between two answers of a
    batch, `turn_s` the gap between two verifications and `turn_answer_s` what each answer of the first adds to it.
    `busy_by_sessions` are pairs of a number of sessions and of the seconds by which the round trip of each is longer
    than that of a single device. `warm` are the rounds of each load by its number of sessions.
    """
    spacings_s = [
        batch.spacing_s for load in loads for batch in load if batch.spacing_s is not None
    ]
    wire_s = max(0.0, median(answered.trip_s - answered.verify_s for answered in single))
    frame_s = median(spacings_s) if spacings_s else 0.0
    # Of each number of devices on its own: many devices have many rounds, which would decide the
    # mean of all.
    transit_s = {}
    for sessions, measured in sorted(warm.items()):
        times_s = (transit_times(rounds, frame_s) for rounds in measured)
        transit_s[sessions] = fmean(chain.from_iterable(times_s))
    turn_s, turn_answer_s = _gap_line(gaps)
    return {
        "wire_s": wire_s,
        "frame_s": frame_s,
        "busy_by_sessions": [
            [1.0, 0.0],
            *(
                [float(sessions), max(0.0, trip_s - wire_s)]
                for sessions, trip_s in transit_s.items()
            ),
        ],
        "turn_s": turn_s,
        "turn_answer_s": turn_answer_s,
    }


def _gap_line(gaps: Sequence[BatchGap]) -> tuple[float, float]:
    """Return the fixed part of a gap and the part per answer, by a line through the medians by
    number of answers.

    Medians, since a thread that the operating system kept waiting once must not move the line.
    """
    if not gaps:
        return 0.0, 0.0
    by_answers: dict[int, list[float]] = {}
    for gap in gaps:
        by_answers.setdefault(gap.answers, []).append(gap.seconds)
    matrix = np.array([(1.0, answers) for answers in by_answers])
    weights = np.sqrt([len(seconds) for seconds in by_answers.values()])
    medians = np.array([median(seconds) for seconds in by_answers.values()])
    turn_s, answer_s = non_negative(matrix * weights[:, None], medians * weights).tolist()
    return turn_s, answer_s


def _fit(loads: Loads) -> Floats:
    """Return the seconds of each factor of `_features`, by least squares of relative errors, all
    loads equal.

    Errors are relative to the expected time, so that small batches count as much as large ones; the
    expected times of one pass are the weights of the next.
    """
    matrix = np.array([_features(batch) for load in loads for batch in load])
    seconds = np.array([batch.verify_s for load in loads for batch in load])
    counts = np.concatenate([np.full(len(load), len(load)) for load in loads])
    expected_s = seconds
    for _ in range(PASSES):
        weights = 1 / (expected_s * np.sqrt(counts))
        times = non_negative(matrix * weights[:, None], seconds * weights)
        expected_s = matrix @ times
    return times


def _coefficients(times: Floats) -> dict[str, float]:
    """Return the profile's coefficients; the time of an answer that leaves is added to that of a
    request.

    On average one answer of the previous batch leaves per request of the next.
    """
    coefficients = dict(zip(COEFFICIENTS[FORM], times[:-1].tolist(), strict=True))
    return coefficients | {"request_s": coefficients["request_s"] + float(times[-1])}


def _scatter(times: Floats, loads: Iterable[Sequence[ObservedBatch]]) -> float:
    """Return the standard deviation over the mean of the times of equal batches.

    Batches of one load are compared by their ratio to the fit, so that neither different rows nor a
    wrong fit of the load count as scatter.
    """
    deviations: list[Floats] = []
    for load in loads:
        ratios = np.log([batch.verify_s / (_features(batch) @ times) for batch in load])
        deviations.append(ratios - ratios.mean())
    return float(np.sqrt(np.expm1(np.concatenate(deviations).var())))


def _accuracy(times: Floats, trained: Loads, tested: Loads) -> Written:
    """Return the errors of the fit over the average batches of the fitted and of the test loads."""
    accuracy = {}
    for name, loads in {"train": trained, "test": tested}.items():
        features, seconds = zip(*map(_average, loads), strict=True)
        accuracy[name] = to_builtins(
            metrics(np.array(seconds), np.array(features) @ times, len(times) - 1)
        )
    return accuracy


def _average(batches: Sequence[ObservedBatch]) -> tuple[Floats, float]:
    """Return the features and the seconds of the average batch of a load."""
    return np.mean(list(map(_features, batches)), axis=0), float(
        np.mean([batch.verify_s for batch in batches])
    )


def _text(profile: Profile) -> str:
    """Return the coefficients, the error on the test loads and the overhead in one line."""
    fit = profile.fit
    us = {name: f"{1e6 * fit[name]:.0f} us" for name in fit if name.endswith("_s")}
    most, busy_s = max(fit["busy_by_sessions"])
    parts = [
        ", ".join(f"{name} {1e6 * value:.1f} us" for name, value in profile.coefficients.items()),
        f"{fit['test']['mape']:.1%} error on loads that were not fitted (R² {score(profile.test_r2)})",
        f"besides that {us['wire_s']} per round, and {1e6 * busy_s:.0f} us more with {most:.0f} devices",
        f"{us['frame_s']} between two answers, each of which delays the next verification by {us['answer_s']}",
        f"gap between verifications {us['turn_s']}, and {us['turn_answer_s']} per answer",
        f"verifications of equal batches scatter by {fit['verify_cv']:.0%}",
    ]
    return "; ".join(parts)


def _doubts(profile: Profile) -> list[str]:
    """Return why the profile should be measured again; none if it can be used."""
    lines = []
    if profile.disturbances:
        lines.append(f"DISTURBED MACHINE: {'; '.join(profile.disturbances)}: measure it again.")
    if profile.test_r2 is None or profile.test_r2 < LEAST_SERVED_R2:
        lines.append(poor_fit(profile.test_r2))
    return lines
