"""`skit profile-server`: loads that keep a server busy, and a fit of what its observed_batches take."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.models.catalogue import from_pretrained, locate
from specbench_kit.profilers.base import COEFFICIENTS, Form, Profile, features
from specbench_kit.profilers.fit import metrics, non_negative
from specbench_kit.profilers.loading import save
from specbench_kit.profilers.measurement import hardware_text
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.studies.server_profile.load_generator import (
    SPACE,
    BatchGap,
    LoadGenerator,
    ObservedBatch,
    ObservedRound,
    SessionLoad,
    batch_gaps,
    observed_batches,
    transit_times,
)
from specbench_kit.studies.server_profile.settings import ServerProfileSettings

SESSIONS, DRAFTED, CONTEXTS = (2, 4, 8, 16, 24), (1, 4, 8), (64, 256)
COLD_SESSIONS, COLD_CONTEXTS = (2, 8), (48, 128)
TESTS, TURNS, PASSES, SEED = 8, 2, 3, "profile-server"
PAUSE_S = 0.02
"""Of a device alone and in half of the loads: a machine that has nothing to do for so long takes time to wake."""
FORM: Form = "served"
BESIDE = ("wire_s", "busy_s", "frame_s", "answer_s", "turn_s", "turn_answer_s")


@dataclass(frozen=True, slots=True)
class ServerProfileOutcome:
    """The profile, and the text that is shown of it."""

    profile: Profile
    text: str


def profile_server(settings: ServerProfileSettings, told: ProgressCallback) -> ServerProfileOutcome:
    """Measure, fit, and write the file."""
    connection = _connect(settings)
    busy, welcome = LoadGenerator(connection), connection.welcome
    train, test = _loads(min(settings.sessions, welcome.limits.slots), welcome.limits.context)
    found: dict[SessionLoad, list[ObservedBatch]] = {load: [] for load in [*train, *test]}
    watch = Watch(probe_here(), torch.device("cpu"))
    alone, warm, between, order = (
        list[ObservedRound](),
        list[list[ObservedRound]](),
        list[BatchGap](),
        _order([*train, *test]),
    )
    for done, load in enumerate(order):
        told(f"{load.sessions} sessions", done, len(order))
        rounds = busy.rounds(load, settings.window_s / TURNS)
        found[load] += observed_batches(rounds)
        between += batch_gaps(rounds)
        if not load.cold:
            warm.append(rounds)
        if load.sessions == 2 and not load.cold:
            lone = SessionLoad(1, load.drafted, load.context, pause_s=PAUSE_S)
            alone += busy.rounds(lone, settings.window_s / 2 / TURNS)
    connection.close()
    told("done", len(order), len(order))
    doubts = disturbances([watch.end({})])
    trained, tested = [found[load] for load in train], [found[load] for load in test]
    times = _fit(trained)
    beside = _beside(alone, warm, found.values(), between)
    scatter = {"answer_s": times[-1], "verify_cv": _scatter(times, found.values()), "window_s": settings.window_s}
    fit = {**_accuracy(times, trained, tested), **beside, **scatter, **({"disturbed": doubts} if doubts else {})}
    profile = _profile(settings, welcome, _coefficients(times), fit)
    save(settings.to, profile)
    return ServerProfileOutcome(profile, _text(profile))


def _loads(most: int, context: int) -> tuple[list[SessionLoad], list[SessionLoad]]:
    """Those that are fitted, and others drawn between them."""
    sessions = sorted({min(number, most) for number in SESSIONS})
    contexts = [number for number in CONTEXTS if number + 2 * SPACE < context] or [context // 4]
    cold = [number for number in COLD_CONTEXTS if number + 2 * SPACE < context] or [context // 4]
    every = [(n, k, c) for c in contexts for k in DRAFTED for n in sessions]
    train = [SessionLoad(*one, pause_s=PAUSE_S * (place % 2)) for place, one in enumerate(every)]
    train += [SessionLoad(min(n, most), 4, c, cold=True) for c in cold for n in COLD_SESSIONS]
    random = Random(SEED)
    test = [
        SessionLoad(random.randint(2, max(2, most)), random.randint(1, 8), random.randint(contexts[0], contexts[-1]))
        for _ in range(TESTS)
    ]
    return train, test


def _order(loads: Sequence[SessionLoad]) -> list[SessionLoad]:
    """Every load several times in mixed order: what slows a machine for a while slows all of them alike."""
    random = Random(SEED)
    return [load for _ in range(TURNS) for load in random.sample(loads, len(loads))]


def _features(batch: ObservedBatch) -> Any:
    """Those of the form, and the answers that leave beside the verification."""
    return np.array((*features(FORM, batch.rows), batch.leaving), np.float64)


def _average(loads: Sequence[Sequence[ObservedBatch]]) -> tuple[Any, Any]:
    """Of an average batch of each load, its features and its seconds."""
    matrix = np.array([np.mean([_features(batch) for batch in load], axis=0) for load in loads])
    return matrix, np.array([np.mean([batch.verify_s for batch in load]) for load in loads])


def _beside(
    alone: Sequence[ObservedRound],
    warm: Iterable[Sequence[ObservedRound]],
    loads: Iterable[Sequence[ObservedBatch]],
    between: Sequence[BatchGap],
) -> dict[str, float]:
    """Seconds of a round beside its verification where nothing else is sent, of every message where much is, by which
    a round is longer on its way to a busy server and back, and from one verification to the next."""
    frames = [batch.apart_s for load in loads for batch in load if batch.apart_s is not None]
    wire_s, frame_s = max(0.0, median(one.trip_s - one.verify_s for one in alone)), median(frames) if frames else 0.0
    turn_s, turn_answer_s = _turn(between)
    return {
        "wire_s": wire_s,
        "frame_s": frame_s,
        "busy_s": max(0.0, fmean(way_s for rounds in warm for way_s in transit_times(rounds, frame_s)) - wire_s),
        "turn_s": turn_s,
        "turn_answer_s": turn_answer_s,
    }


def _turn(between: Sequence[BatchGap]) -> tuple[float, float]:
    """Of the median by number of answers, which a thread that was kept waiting once does not move."""
    if not between:
        return 0.0, 0.0
    by_answers: dict[int, list[float]] = {}
    for one in between:
        by_answers.setdefault(one.answers, []).append(one.seconds)
    matrix = np.array([(1.0, answers) for answers in by_answers])
    counts = np.sqrt([len(seconds) for seconds in by_answers.values()])
    medians = np.array([median(seconds) for seconds in by_answers.values()])
    turn_s, answer_s = non_negative(matrix * counts[:, None], medians * counts).tolist()
    return turn_s, answer_s


def _fit(loads: Sequence[Sequence[ObservedBatch]]) -> Any:
    """Least squares of shares of what is expected: batches of few requests count as much as those of many, and every
    load as much as another."""
    matrix = np.array([_features(batch) for load in loads for batch in load])
    seconds = np.array([batch.verify_s for load in loads for batch in load])
    counts = np.concatenate([np.full(len(load), len(load)) for load in loads])
    expected_s = seconds
    for _ in range(PASSES):
        weights = 1 / (expected_s * np.sqrt(counts))
        times = non_negative(matrix * weights[:, None], seconds * weights)
        expected_s = matrix @ times
    return times


def _coefficients(times: Any) -> dict[str, float]:
    """Of a verification beside which one answer leaves for each of its requests, as on average they do."""
    found = dict(zip(COEFFICIENTS[FORM], times[:-1].tolist(), strict=True))
    return found | {"request_s": found["request_s"] + float(times[-1])}


def _scatter(times: Any, loads: Iterable[Sequence[ObservedBatch]]) -> float:
    """Standard deviation over mean among the observed_batches of a load, as if each were of the same rows."""
    apart: list[Any] = []
    for load in loads:
        logs = np.log([batch.verify_s / (_features(batch) @ times) for batch in load])
        apart.append(logs - logs.mean())
    return float(np.sqrt(np.expm1(np.concatenate(apart).var())))


def _accuracy(times: Any, *parts: Sequence[Sequence[ObservedBatch]]) -> dict[str, Any]:
    averages = dict(zip(("train", "test"), map(_average, parts), strict=True))
    return {name: metrics(seconds, matrix @ times, len(times) - 1) for name, (matrix, seconds) in averages.items()}


def _profile(
    settings: ServerProfileSettings, welcome: Any, coefficients: dict[str, float], fit: dict[str, Any]
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
        note="verifications of a busy server, as it told them itself",
        model_hash=welcome.model_hash,
        fit=fit,
    )


def _text(profile: Profile) -> str:
    """A line per coefficient."""
    fit, times = profile.fit, profile.coefficients
    parts = [f"{name} {1e6 * value:.1f} us" for name, value in times.items()]
    told = f"{100 * fit['test']['mape']:.1f} % off on loads that were not fitted"
    us = {name: f"{1e6 * fit[name]:.0f} us" for name in BESIDE}
    beside = f"beside that {us['wire_s']} a round, {us['busy_s']} more while it verifies"
    answers = f"{us['frame_s']} from answer to answer, each of which holds up the next verification by {us['answer_s']}"
    between = f"between verifications {us['turn_s']} and {us['turn_answer_s']} for each answer"
    scatter = f"verifications of one size scatter by {100 * fit['verify_cv']:.0f} %"
    doubts = [f"DISTURBED MACHINE: {'; '.join(fit['disturbed'])}: take it again"] if "disturbed" in fit else []
    return "; ".join([", ".join(parts), told, beside, answers, between, scatter, *doubts])


def _connect(settings: ServerProfileSettings) -> Connection:
    tokenizer = from_pretrained(AutoTokenizer, locate(settings.target, "target"))
    token = settings.server_token.read_text(encoding="utf-8").strip() if settings.server_token else ""
    roots = settings.server_ca.read_bytes() if settings.server_ca else None
    try:
        return Connection(
            settings.server, ClientIdentity(tokenizer_hash(tokenizer), len(tokenizer), token, roots=roots)
        )
    except ConnectionLostError as lost:
        raise SkitError(f"no server answers at {settings.server}: {lost}; start one with skit serve") from lost
