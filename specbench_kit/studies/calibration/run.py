"""One calibration: read a log, fit its first third, judge the fit on the rest, and save it as a profile."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from specbench_kit.core.progress import CountCallback
from specbench_kit.decoding.kernel_latency import KernelModel
from specbench_kit.decoding.latency import LatencyModel, RoundedModel
from specbench_kit.profilers.base import Corner, Profile
from specbench_kit.profilers.devices import Device, bundled_device, find_device
from specbench_kit.profilers.interconnects import find_interconnect
from specbench_kit.profilers.kernels import find_kernels
from specbench_kit.profilers.loading import data_folder, save
from specbench_kit.profilers.parts import SHORT
from specbench_kit.profilers.roofline import Roofline
from specbench_kit.profilers.software import KERNELS, AchievedSpeed, find_software
from specbench_kit.profilers.subject import Subject, find_subject, require_architecture
from specbench_kit.serving.memory import KvCapacity, kv_capacity
from specbench_kit.studies.calibration.fitting import FITTED, Server, fit_speed
from specbench_kit.studies.calibration.logs import read_log
from specbench_kit.studies.calibration.replay import Agreement, EngineSettings, ServedLog, agreement
from specbench_kit.studies.calibration.settings import CalibrationSettings

FITTED_SHARE = 3
"""The first third of a log's requests is fitted."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The fitted speed and its profile, and how simulated times compare with measured ones on the rest of the log.

    `agreements` are those of the calibrated profile, of the law before it, and of measured kernels if there are such.
    """

    profile: Profile
    path: Path
    speed: AchievedSpeed
    fitted: int
    agreements: Mapping[str, Sequence[Agreement]]


def calibrate(settings: CalibrationSettings, report: CountCallback) -> Calibration:
    """Fit the speed to the first third of the log and save the profile."""
    card, subject = find_device(settings.gpu), find_subject(settings.target, "target")
    shapes, dtype = require_architecture(subject), settings.dtype
    dtype = card.default_dtype if dtype == "auto" else dtype
    card.peak(dtype)  # which refuses a dtype that the device cannot compute in
    interconnect = find_interconnect(settings.interconnect) if settings.interconnect else None
    requests = read_log(settings.log)
    start = find_software(KERNELS).on(card.name)
    if settings.expert_parallel:
        shapes.require_shared_experts(settings.cards, subject.name)
    roofline = Roofline(card.combined(settings.cards), shapes, dtype)
    server = Server(roofline, settings.cards, interconnect, settings.expert_parallel)
    before = server.latency(start)
    unfitted = _profile(settings, card, subject, dtype, before)
    memory = KvCapacity(settings.kv_tokens, shapes.max_positions) if settings.kv_tokens else kv_capacity(unfitted)
    log = ServedLog(requests, EngineSettings(settings.max_batch, settings.batch_tokens, memory))
    fitted = len(requests) // FITTED_SHARE
    speed = fit_speed(log, fitted, server, start, report)
    models: dict[str, LatencyModel] = {"calibrated": server.latency(speed), "law": before}
    kernels = find_kernels(subject.name, card.name, "vllm", settings.cards)
    if kernels and not settings.expert_parallel:
        models["silicon"] = KernelModel(kernels.kernels)
    rest = slice(fitted, None)
    agreements = {name: agreement(log.simulated(model), log.measured, rest) for name, model in models.items()}
    profile = _calibrated(settings, unfitted, server.latency(speed), fitted, agreements["calibrated"])
    path = settings.save_to or data_folder() / f"{profile.name}.toml"
    save(path, profile)
    return Calibration(profile, path, speed, fitted, agreements)


def _profile(
    settings: CalibrationSettings, card: Device, subject: Subject, dtype: str, latency: RoundedModel
) -> Profile:
    """Return a profile of the server before anything is fitted."""
    together = f"-{'ep' if settings.expert_parallel else 'tp'}{settings.cards}" if settings.cards > 1 else ""
    return Profile(
        name=settings.name or f"{subject.name}-{card.name}-{SHORT[dtype]}-verifier{together}-calibrated",
        role="verifier",
        device=card.name,
        model=subject.name,
        dtype=dtype,
        source="calibrated",
        form="rounded",
        coefficients=asdict(latency),
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
    rest: Sequence[Agreement],
) -> Profile:
    """Return the profile with what was fitted; its range is that of the means on the rest of the log."""
    means = [metric.mean for metric in rest]
    worst = max(abs(mean - 1) for mean in means)
    return structs.replace(
        profile,
        coefficients={name: float(value) for name, value in asdict(latency).items()},
        reference=f"fitted to the first {fitted} requests of {settings.log.name}; means of the others are off by up to "
        f"{worst:.1%}",
        fit={"log": settings.log.name, "fitted": fitted, "rest": [asdict(metric) for metric in rest]},
        fast=Corner(min(1.0, 1 / max(means))),
        slow=Corner(max(1.0, 1 / min(means))),
    )


def fitted_numbers(speed: AchievedSpeed) -> dict[str, float]:
    """Return the numbers that were fitted, by the names of a software card."""
    return {name: getattr(speed, name) for name in FITTED}
