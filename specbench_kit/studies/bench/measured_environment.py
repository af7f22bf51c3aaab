"""The latencies that methods plan with: read from profiles, or measured briefly before the
benchmark.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from math import inf

from msgspec import structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.drafting.base import DRAFT, Drafting
from specbench_kit.deployments.placing import environment
from specbench_kit.live.pair import ServedPair
from specbench_kit.methods.base import Environment, Latencies, unknown_latency
from specbench_kit.models.description import ModelDescription
from specbench_kit.models.pair import Pair
from specbench_kit.predictors.library import NO_DRAFT_MODEL, PairHashes
from specbench_kit.profilers import loading
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.fit import TooFewConfigurations
from specbench_kit.profilers.measured_run import (
    fit_part,
    machine_recorded,
    measure_part,
    profile_without_fit,
)
from specbench_kit.profilers.measurement import Samples, TimingRig, choose_factor
from specbench_kit.profilers.parts import (
    ProfiledPart,
    ProfileResult,
    WorkloadScale,
    find_profiled_device,
    parts_of,
)
from specbench_kit.profilers.saving import PolicyCosts, complete_profile, marked
from specbench_kit.profilers.settings import ProfileSettings
from specbench_kit.runs.machine.limits import MachineReadings, disturbances
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.studies.bench.settings import BenchSettings

AIM_S = 10.0
"""Intended duration of a short measurement per model, in seconds.

It sets the length of the timed requests, never the number of configurations: each is timed once, while
`skit profile-drafter` times each three times.
"""
NAME_DIGITS = 6


class MeasuredEnvironment:
    """The environment that methods are prepared with, whose latencies are measured when a method
    first asks for them.

    `notes` are lines for the user on what was measured, `machine` are the readings of the machine meanwhile.
    """

    def __init__(
        self,
        settings: BenchSettings,
        pair: Pair,
        models: Mapping[str, ModelDescription],
        report: ProgressCallback,
        probe: Probe,
    ) -> None:
        self._pair = pair
        self._models = models
        self._report = report
        self._probe = probe
        self._resumes = settings.resume
        self._profiling = ProfileSettings(
            target=settings.target,
            draft=settings.draft,
            device=str(pair.target.device),
            dtype=settings.dtype,
            budget_s=AIM_S,
            runs=1,
            seed=settings.seed,
        )
        draft = models.get("draft")
        hashes = PairHashes(
            str(models["target"].hash), str(draft.hash) if draft else NO_DRAFT_MODEL
        )
        self._stored = environment(hashes, settings.deployment, pair.target.device)
        self._modelled = settings.deployment is not None
        self.environment = replace(
            self._stored,
            # Several methods ask, and on a disturbed machine a profile is not found again once it
            # is stored.
            latencies=cache(self._latencies),
            temperature=settings.temperature,
            served=settings.server is not None,
            batch_size=settings.batch_size,
            # This machine does not know the times of a server, even if it has a profile of the same
            # model.
            verification=self._stored.verification if settings.server is None else unknown_latency,
        )
        self.notes: list[str] = []
        self.machine: list[MachineReadings] = []

    def environment_of(self, drafting: Drafting) -> Environment:
        """Return the environment of a drafter: predictors for a head belong to the head, not to a
        draft model.
        """
        first = next(iter(drafting.models), DRAFT)
        if first == DRAFT or first not in self._models:
            return self.environment
        pair = PairHashes(str(self._models["target"].hash), str(self._models[first].hash))
        return replace(self.environment, pair=pair)

    def _latencies(self) -> Latencies:
        if self._modelled:
            return self._stored.latencies()
        if isinstance(self._pair, ServedPair):
            raise SkitError(
                "it plans with the latencies of both models, and this machine cannot time a target on a server: name a "
                "method that needs none"
            )
        parts = parts_of(self._profiling)
        # A profile of a disturbed machine may only be used to continue the run that it was measured
        # for.
        if missing := [part for part in parts if self._find(part, disturbed=self._resumes) is None]:
            clock = MeasuringClock(self._pair.target.device)
            with clock.running():
                for part in missing:
                    self._measure(part, clock)
                spent_s = clock.now_s()
            doubts = disturbances(self.machine)
            use = (
                f"for --resume alone, since {'; '.join(doubts)}" if doubts else "for the next time"
            )
            self.notes.append(
                f"no latency profile of this pair on this machine: a short one was measured in {spent_s:.0f} s and "
                f"kept {use}; skit profile-drafter measures a thorough one"
            )
        # Without --resume, a disturbed profile is used only if it is all there is: it was measured
        # just now.
        found = [
            (None if self._resumes else self._find(part, disturbed=False))
            or self._find(part, disturbed=True)
            for part in parts
        ]
        drafting, verification = (profile.latency() for profile in found if profile is not None)
        return Latencies(drafting, verification)

    def _find(self, part: ProfiledPart, *, disturbed: bool) -> Profile | None:
        weights = str(self._models[part.model].hash)
        device = self._profiling.device
        return loading.find_measured(
            weights, part.role, device, form=part.form, disturbed=disturbed
        )

    def _measure(self, part: ProfiledPart, clock: MeasuringClock) -> None:
        """Time the steps of one model and save the profile among the user's profiles."""
        settings = self._profiling
        rig = TimingRig(
            self._pair.needed_draft if part.model == "draft" else self._pair.target,
            clock,
            settings.seed,
            settings.runs,
        )
        factor = choose_factor(rig, part.configurations, AIM_S)
        started_at = datetime.now(UTC).isoformat(timespec="seconds")
        weights_hash = self._models[part.model].hash
        profile = profile_without_fit(
            settings, find_profiled_device(settings), part, started_at, weights_hash
        )
        # Profiles of one pair differ by hardware, and a short one must not replace a thorough one
        # of another.
        name = f"{profile.name}-short-{sha256(profile.hardware.encode()).hexdigest()[:NAME_DIGITS]}"
        note = (
            f"short: one run of {len(part.configurations)} configurations, measured by skit bench"
        )
        profile = structs.replace(profile, name=name, samples=f"{name}.csv", note=note)
        file = loading.data_folder() / f"{name}.csv"
        file.unlink(missing_ok=True)
        samples = Samples.open(file)
        blocks = list[MachineReadings]()
        with machine_recorded(self._probe, rig, part, samples, blocks.append):
            measured = measure_part(rig, part, factor, samples, inf, self._report)
        self.machine += blocks
        try:
            fitted, facts = fit_part(part, factor, samples, measured, settings.seed)
        except TooFewConfigurations as error:  # nothing but memory can cut this measurement short
            raise SkitError(
                f"no short latency profile of the {part.role}: {error}; free some memory"
            ) from error
        workload = WorkloadScale(len(part.configurations), factor)
        completed = complete_profile(ProfileResult(profile, fitted, facts), workload, PolicyCosts())
        doubts = disturbances(blocks)
        loading.save(
            loading.data_folder() / f"{name}.toml", marked(completed, doubts, forced=False)
        )
