"""One calibration: fit the first third of a log, judge the fit on the rest, and save it as a
profile.

The log's load is simulated on a server whose steps take what a latency model says, which the fit
moves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from math import log
from pathlib import Path

import numpy as np
from msgspec import structs
from scipy.optimize import least_squares

from specbench_kit.core.foreign_file import FileReading, described_readings
from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, RoundedModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.profilers.base import Corner, Profile
from specbench_kit.profilers.devices import (
    Device,
    Interconnect,
    bundled_device,
    find_device,
    find_interconnect,
)
from specbench_kit.profilers.loading import data_folder, save
from specbench_kit.profilers.parts import SHORT
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.silicon import find_kernels
from specbench_kit.profilers.software import KERNELS, AchievedSpeed, Software, find_software
from specbench_kit.profilers.subject import Subject, find_subject, require_architecture
from specbench_kit.reports.document import Block, Note, Paragraph, Table, caution
from specbench_kit.serving.arrays import Floats
from specbench_kit.serving.arrivals import RequestArrival, from_zero
from specbench_kit.serving.memory import KvCapacity, kv_capacity
from specbench_kit.serving.result import SimulationResult
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems
from specbench_kit.studies.calibration.logs import LoggedRequest, read_log
from specbench_kit.studies.calibration.settings import CalibrationSettings

TAIL = 0.95
USUAL = 0.95
"""The share of a log's batches that hold no more requests than its usual ones."""
SPARE_S = 600.0
"""Seconds beyond the last arrival that a simulation may take; a server that is slower still cannot
carry the load.
"""
Times = Mapping[str, Floats]
"""Seconds of every request, by the name of the metric."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The settings of the engine that wrote a log: requests in a batch, tokens of a step, and
    memory for KV.
    """

    max_batch: int
    batch_tokens: int
    memory: KvCapacity


@dataclass(frozen=True)
class ServedLog:
    """The requests of a log, and the engine that served them."""

    requests: Sequence[LoggedRequest]
    engine: EngineSettings

    @cached_property
    def measured(self) -> Times:
        """The measured times of every request."""
        at_s, first_s, last_s, _, tokens = np.array(self.requests, dtype=np.float64).T
        return _times(at_s, first_s, last_s, tokens)

    def during_first(self, count: int) -> "ServedLog":
        """Return the log of its first requests and of all that came before these had finished,
        which slow them down.
        """
        end_s = max(request.last_s for request in self.requests[:count])
        return ServedLog(
            [request for request in self.requests if request.at_s <= end_s], self.engine
        )

    def simulated(self, latency: LatencyModel) -> Times:
        """Return the times of every request on a server whose steps take what `latency` says."""
        table = self._simulate(latency).responses
        order = np.argsort(table["client"])
        if len(order) < len(self.requests):
            slow = np.full(len(self.requests), SPARE_S)
            return {"TTFT": slow, "TPOT": slow, "latency": slow}
        return _times(*(table[name][order] for name in ("start_s", "first_s", "end_s", "tokens")))

    def usual_batch(self, latency: LatencyModel) -> int:
        """Return the requests in a batch that one batch in twenty exceeds on such a server."""
        return int(
            np.quantile(self._simulate(latency).batches["size"], USUAL, method="inverted_cdf")
        )

    @property
    def context(self) -> int:
        """The tokens that a request holds on average, half of its answer among them."""
        return round(
            float(
                np.mean(
                    [request.prompt_tokens + request.output_tokens / 2 for request in self.requests]
                )
            )
        )

    @property
    def largest_batch(self) -> int:
        """The requests that the engine takes into a batch, as far as its memory holds them."""
        return max(
            1, int(min(self.engine.max_batch, self.engine.memory.tokens / max(self.context, 1)))
        )

    def _simulate(self, latency: LatencyModel) -> SimulationResult:
        endpoint = Endpoint("the log's device", latency)
        arrivals = from_zero(
            [
                RequestArrival(request.at_s, request.prompt_tokens, request.output_tokens)
                for request in self.requests
            ]
        )
        scenario = Scenario(
            Deployment("the log's server", endpoint, endpoint),
            systems.get("centralized"),
            iid(0.8, 4),  # which nothing drafts by
            len(self.requests),
            slo=parse_slo("0.001/s"),
            arrivals=arrivals,
            memory=self.engine.memory,
            scheduler=f"chunked:tokens={self.engine.batch_tokens}",
            max_batch=self.engine.max_batch,
            duration_s=self.requests[-1].at_s + SPARE_S,
            warmup_s=0.0,
            require_attainable_slo=False,
        )
        return simulate(scenario)


@dataclass(frozen=True, slots=True)
class FitAgreement:
    """Simulated over measured times of one metric: of the means, and of the 95th percentiles."""

    metric: str
    mean: float
    tail: float


def agreement(simulated: Times, measured: Times, part: slice) -> list[FitAgreement]:
    """Return how simulated times compare with measured ones, over a part of the requests."""
    return [
        FitAgreement(
            name,
            float(simulated[name][part].mean() / values[part].mean()),
            float(np.quantile(simulated[name][part], TAIL) / np.quantile(values[part], TAIL)),
        )
        for name, values in measured.items()
    ]


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """What a fit says of batches that its log does not hold, which nothing in the log checks.

    `fitted_s` and `law_s` are the seconds of a plain step of the engine's largest batch, by the fit and by the data
    sheet before it, with `context` tokens cached for each request.
    """

    usual_batch: int
    largest_batch: int
    context: int
    fitted_s: float
    law_s: float

    @property
    def is_beyond(self) -> bool:
        """Return whether the engine takes larger batches than the log has."""
        return self.largest_batch > self.usual_batch

    @property
    def text(self) -> str:
        """Return the sentences of a page."""
        apart = self.fitted_s / self.law_s - 1
        return (
            f"**Extrapolated: batches of more than {self.usual_batch} requests.** One batch of the log in twenty holds "
            f"more, and the engine takes up to {self.largest_batch}, {self.largest_batch / self.usual_batch:.1f} times "
            f"as many. A step of {self.largest_batch} requests after {self.context} tokens each takes "
            f"{1e3 * self.fitted_s:.1f} ms by this fit and {1e3 * self.law_s:.1f} ms by the analytic model "
            f"({apart:+.0%}): the log does not say which is right, and the agreement below holds for its own batches "
            "alone. Calibrate with the log of a heavier load before you rely on such batches."
        )


def extrapolation(log: ServedLog, fitted: LatencyModel, law: LatencyModel) -> Extrapolation:
    """Return how far a fit is extrapolated beyond the batches of its log."""
    step = [(1, log.context)] * log.largest_batch
    return Extrapolation(
        log.usual_batch(fitted),
        log.largest_batch,
        log.context,
        fitted.seconds(step),
        law.seconds(step),
    )


def _times(arrived_s: Floats, first_s: Floats, last_s: Floats, tokens: Floats) -> Times:
    return {
        "TTFT": first_s - arrived_s,
        "TPOT": (last_s - first_s) / np.maximum(tokens - 1, 1),
        "latency": last_s - arrived_s,
    }


FITTED_SHARE = 3
"""The first third of a log's requests is fitted."""


@dataclass(frozen=True, slots=True)
class CalibrationOutcome:
    """The fitted speed and its profile, and how simulated times compare with measured ones on the
    rest of the log.

    `agreements` are those of the calibrated profile, of the law before it, and of measured kernels if there are such.
    """

    profile: Profile
    path: Path
    speed: AchievedSpeed
    fitted: int
    agreements: Mapping[str, Sequence[FitAgreement]]
    extrapolation: Extrapolation
    reading: FileReading
    notes: Sequence[str] = ()


def calibrate(settings: CalibrationSettings, report: CountCallback) -> CalibrationOutcome:
    """Fit the speed to the first third of the log and save the profile."""
    card = find_device(settings.gpu)
    subject = find_subject(settings.target, "target")
    shapes = require_architecture(subject)
    dtype = settings.dtype
    dtype = card.default_dtype if dtype == "auto" else dtype
    card.peak(dtype)  # which refuses a dtype that the device cannot compute in
    interconnect = find_interconnect(settings.interconnect) if settings.interconnect else None
    log = read_log(settings.log)
    start = find_software(KERNELS).on(card.name)
    if settings.expert_parallel:
        shapes.require_shared_experts(settings.cards, subject.name)
    roofline = Roofline(card.combined(settings.cards), shapes, dtype, settings.cards)
    server = LoggedServer(roofline, settings.cards, interconnect, settings.expert_parallel)
    before = server.latency(start)
    unfitted = _profile(settings, card, subject, dtype, before)
    memory = (
        KvCapacity(settings.kv_tokens, shapes.max_positions)
        if settings.kv_tokens
        else kv_capacity(unfitted)
    )
    served = ServedLog(
        log.requests, EngineSettings(settings.max_batch, settings.batch_tokens, memory)
    )
    fitted = len(log.requests) // FITTED_SHARE
    speed = fit_speed(served, fitted, server, start, report)
    models: dict[str, LatencyModel] = {"calibrated": server.latency(speed), "law": before}
    kernels = find_kernels(subject.name, card.name, "vllm", settings.cards)
    if kernels and not settings.expert_parallel:
        models["silicon"] = KernelModel(kernels.kernels)
    rest = slice(fitted, None)
    agreements = {
        name: agreement(served.simulated(model), served.measured, rest)
        for name, model in models.items()
    }
    beyond = extrapolation(served, models["calibrated"], before)
    profile = _calibrated(
        settings, unfitted, server.latency(speed), fitted, agreements["calibrated"], beyond
    )
    path = settings.save_to or data_folder() / f"{profile.name}.toml"
    save(path, profile)
    return CalibrationOutcome(
        profile, path, speed, fitted, agreements, beyond, log.reading, log.notes
    )


def _profile(
    settings: CalibrationSettings, card: Device, subject: Subject, dtype: str, latency: RoundedModel
) -> Profile:
    """Return a profile of the server before anything is fitted."""
    together = (
        f"-{'ep' if settings.expert_parallel else 'tp'}{settings.cards}"
        if settings.cards > 1
        else ""
    )
    return Profile(
        name=settings.name
        or f"{subject.name}-{card.name}-{SHORT[dtype]}-verifier{together}-calibrated",
        role="verifier",
        device=card.name,
        model=subject.name,
        dtype=dtype,
        source="calibrated",
        form="rounded",
        coefficients=latency.coefficients,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        tensor_parallel=settings.cards,
        architecture=None if subject.is_card else subject.architecture,
        device_card=None if bundled_device(card.name) == card else card,
    )


def _calibrated(
    settings: CalibrationSettings,
    profile: Profile,
    latency: RoundedModel,
    fitted: int,
    rest: Sequence[FitAgreement],
    beyond: Extrapolation,
) -> Profile:
    """Return the profile with what was fitted; its range is that of the means on the rest of the
    log.
    """
    means = [metric.mean for metric in rest]
    worst = max(abs(mean - 1) for mean in means)
    return structs.replace(
        profile,
        coefficients=latency.coefficients,
        reference=f"fitted to the first {fitted} requests of {settings.log.name}; means of the others are off by up to "
        f"{worst:.1%}{f', in batches of up to {beyond.usual_batch} requests' if beyond.is_beyond else ''}",
        fit={
            "log": settings.log.name,
            "fitted": fitted,
            "rest": [asdict(metric) for metric in rest],
            "extrapolation": asdict(beyond),
        },
        fast=Corner(min(1.0, 1 / max(means))),
        slow=Corner(max(1.0, 1 / min(means))),
    )


def fitted_numbers(speed: AchievedSpeed) -> dict[str, float]:
    """Return the numbers that were fitted, by the names of a software card."""
    return {name: getattr(speed, name) for name in FITTED}


TITLES = {
    "law": "analytic model, before the fit",
    "silicon": "silicon, measured kernels",
    "calibrated": "calibrated",
}


def blocks(outcome: CalibrationOutcome) -> list[Block]:
    """Return the numbers and a table of the requests that were not fitted: simulated over
    measured.
    """
    speed = outcome.speed
    profile = outcome.profile
    numbers = (
        f"**{profile.model} on {profile.device}: {speed.compute:.0%} of the peak, {speed.bandwidth:.0%} of the "
        f"bandwidth, {1e3 * speed.step_s:.2f} ms a step and {1e6 * speed.request_s:.0f} us a request besides.**"
    )
    metrics = [metric.metric for metric in outcome.agreements["calibrated"]]
    columns = [title for metric in metrics for title in (f"mean {metric}", "P95")]
    rows = []
    for name, title in TITLES.items():
        if name in outcome.agreements:
            ratios = [
                ratio for metric in outcome.agreements[name] for ratio in (metric.mean, metric.tail)
            ]
            rows.append([title, *(f"{ratio:.2f}" for ratio in ratios)])
    title = f"simulated over measured, all requests after the first {outcome.fitted}"
    file = described_readings([outcome.reading])
    beyond = [Paragraph(outcome.extrapolation.text)] if outcome.extrapolation.is_beyond else []
    return [
        *caution([f"DOUBTFUL: {doubt}" for doubt in file["doubts"]], severe=True),
        *(Note(line) for line in file["files"]),
        Paragraph(numbers),
        *beyond,
        Paragraph(title),
        Table(("", *columns), rows),
        *caution(outcome.notes),
    ]


FITTED = ("compute", "bandwidth", "step_s", "request_s")
"""The numbers that are fitted: shares of peak and bandwidth, and seconds of the host per step and
per request.
"""
LEAST = (0.2, 0.2, 0.0, 0.0)
MOST = (1.0, 1.0, 0.02, 0.001)
ITERATIONS = 12
STEP = 0.02
INSIDE = 0.05
"""Iterations, the step of a derivative, and how far inside its bounds each number begins."""
EVALUATIONS = ITERATIONS * (len(FITTED) + 1)
"""The most simulations that a fit takes: one per iteration, and one for each number that is
fitted.
"""
TAIL_WEIGHT = 0.5
"""How much a tail counts beside a mean: it is the time of a few requests."""
SINGLE_WEIGHT = 0.5
"""How much the times of all single requests of a metric count beside its mean."""


@dataclass(frozen=True, slots=True)
class LoggedServer:
    """The card, or the cards, and the model of a log, by their data sheet; with `expert_parallel`,
    as in `estimate`.
    """

    roofline: Roofline
    cards: int = 1
    interconnect: Interconnect | None = None
    expert_parallel: bool = False

    def latency(self, speed: AchievedSpeed) -> RoundedModel:
        """Return what a step takes if the software reaches this speed."""
        software = Software("log", "log", "", anywhere=speed)
        return self.roofline.estimate(
            software, self.cards, self.interconnect, expert_parallel=self.expert_parallel
        )


def fit_speed(
    served: ServedLog,
    fitted: int,
    server: LoggedServer,
    start: AchievedSpeed,
    report: CountCallback,
) -> AchievedSpeed:
    """Return the speed at which the simulated times of a log's first requests are closest to its
    measured ones.

    The corner and the idle time per layer stay those of measured kernels, with which the fit
    starts.
    """
    done = 0
    part = served.during_first(fitted)
    first = slice(fitted)

    def apart(scaled: Sequence[float]) -> list[float]:
        nonlocal done
        done += 1
        report(min(done, EVALUATIONS), EVALUATIONS)
        simulated = part.simulated(server.latency(_speed(start, scaled)))
        metrics = agreement(simulated, part.measured, first)
        means = [log(metric.mean) for metric in metrics]
        tails = [log(metric.tail) for metric in metrics]
        # Single requests tell apart what their means leave open: a long prompt from a long answer.
        single = [
            np.log(simulated[name][first] / measured_s[first])
            for name, measured_s in part.measured.items()
        ]
        single_weight = SINGLE_WEIGHT / fitted**0.5
        return [
            *means,
            *(TAIL_WEIGHT * tail for tail in tails),
            *(single_weight * np.concatenate(single)).tolist(),
        ]

    # A number at its bound leaves a search no way out. Steps of derivatives are relative, so that
    # the scale is 1 to 2.
    beginning = [
        1 + min(max((getattr(start, name) - low) / (high - low), INSIDE), 1 - INSIDE)
        for name, low, high in zip(FITTED, LEAST, MOST, strict=True)
    ]
    found = least_squares(
        apart, beginning, bounds=(1, 2), diff_step=STEP, max_nfev=ITERATIONS, xtol=1e-4, ftol=1e-4
    )
    return _speed(start, found.x)


def _speed(start: AchievedSpeed, scaled: Sequence[float]) -> AchievedSpeed:
    """Return the speed with the fitted numbers, which the search scales to 1 to 2."""
    values = {
        name: float(low + (scale - 1) * (high - low))
        for name, scale, low, high in zip(FITTED, scaled, LEAST, MOST, strict=True)
    }
    return structs.replace(start, **values)
