"""How long the pair's steps take here, for methods that ask: as profiled, or measured briefly there and then."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.deployments.placing import environment
from specbench_kit.methods.base import Latencies
from specbench_kit.models.pair import Pair
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers import loading
from specbench_kit.profilers.base import Profile
from specbench_kit.profilers.fit import Fit, TooLittle
from specbench_kit.profilers.measured_run import fit_part, measure_part, unfitted
from specbench_kit.profilers.measurement import Measured, Stand, choose_factor
from specbench_kit.profilers.part import Part, Result, parts_of
from specbench_kit.profilers.place import find_place
from specbench_kit.profilers.samples import Samples
from specbench_kit.profilers.saving import complete
from specbench_kit.profilers.settings import Settings as ProfileSettings
from specbench_kit.profilers.watching import watched
from specbench_kit.runs.machine.limits import disturbances
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.studies.bench.settings import BenchSettings

Fields = dict[str, Any]

AIM_S = 10.0
"""For each model. It decides how long the requests are, never how many configurations are timed: those are all, once,
while `skit profile-drafter` goes through them three times.
"""
DIGITS = 6
NO_MODEL = "none"
"""Stands for the hash of a draft model where there is none; nothing was ever trained for it."""


class MeasuredEnvironment:
    """What methods are told of this place; `notes` says what had to be measured for them."""

    def __init__(
        self, settings: BenchSettings, pair: Pair, models: Mapping[str, Fields], report: ProgressCallback, probe: Probe
    ) -> None:
        self._pair, self._models, self._report, self._probe = pair, models, report, probe
        self._resumes = settings.resume
        self._profiling = ProfileSettings(
            target=settings.target,
            draft=settings.draft,
            device=str(pair.target.model.device),
            dtype=settings.dtype,
            budget_s=AIM_S,
            runs=1,
            seed=settings.seed,
        )
        hashes = PairHashes(models["target"]["hash"], models.get("draft", {}).get("hash", NO_MODEL))
        self._known = environment(hashes, settings.deployment, pair.target.model.device)
        self._measures = settings.deployment is None
        self.environment = replace(self._known, latencies=self._latencies, temperature=settings.temperature)
        self.notes: list[str] = []
        self.machine: list[Fields] = []
        """How quiet the machine was while latencies were measured."""

    def _latencies(self) -> Latencies:
        if not self._measures:
            return self._known.latencies()
        parts = parts_of(self._profiling)
        if missing := [part for part in parts if self._find(part, disturbed=self._resumes) is None]:
            self._measure(missing)
        found = [profile.latency() for part in parts if (profile := self._find(part, disturbed=True))]
        return Latencies(*found)  # the parts are the drafter and the verifier, in this order

    def _find(self, part: Part, *, disturbed: bool) -> Profile | None:
        weights, device = self._models[part.model]["hash"], self._profiling.device
        return loading.find_measured(weights, part.role, device, form=part.form, disturbed=disturbed)

    def _measure(self, parts: Sequence[Part]) -> None:
        """Time the steps of what is missing, and keep the profiles among the user's own."""
        clock = MeasuringClock(self._pair.target.model.device)
        with clock.running():
            for part in parts:
                self._measure_part(part, clock)
            spent_s = clock.now_s()
        doubts = disturbances(self.machine)
        kept = f"for --resume alone, since {'; '.join(doubts)}" if doubts else "for the next time"
        self.notes.append(
            f"no latency profile of this pair on this machine: a short one was measured in {spent_s:.0f} s and kept "
            f"{kept}; skit profile-drafter measures a thorough one"
        )

    def _measure_part(self, part: Part, clock: MeasuringClock) -> None:
        settings, loaded = self._profiling, self._pair.needed_draft if part.model == "draft" else self._pair.target
        stand = Stand(loaded, clock, settings.seed, settings.runs)
        factor = choose_factor(stand, part.configurations, AIM_S)
        run: Fields = {
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "models": self._models,
            "workload": {part.role: {"configurations": len(part.configurations), "factor": factor}},
        }
        profile = unfitted(settings, find_place(settings), part, run)
        # Profiles of one pair differ by hardware, and a short one must not replace a thorough one of another.
        name = f"{profile.name}-short-{sha256(profile.hardware.encode()).hexdigest()[:DIGITS]}"
        note = f"short: one run of {len(part.configurations)} configurations, measured by skit bench"
        profile = replace(profile, name=name, samples=f"{name}.csv", note=note)
        file = loading.data_folder() / f"{name}.csv"
        file.unlink(missing_ok=True)
        samples, blocks = Samples.open(file), list[Fields]()
        with watched(self._probe, stand, part, samples, blocks.append):
            measured = measure_part(stand, part, factor, samples, inf, self._report)
        self.machine += blocks
        found, told = _fit(part, factor, samples, measured, settings.seed)
        if doubts := disturbances(blocks):
            told["disturbed"] = doubts
        loading.save(loading.data_folder() / f"{name}.toml", complete(Result(profile, found, told), run, {}))


def _fit(part: Part, factor: float, samples: Samples, measured: Measured, seed: int) -> tuple[Fit, Fields]:
    try:
        return fit_part(part, factor, samples, measured, seed)
    except TooLittle as error:  # nothing but memory can cut this measurement short
        raise SkitError(f"no short latency profile of the {part.role}: {error}; free some memory") from error
