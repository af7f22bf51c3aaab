"""How long the pair's steps take here, for methods that ask: as profiled, or measured briefly there and then."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from specbench_kit.assembly import environment
from specbench_kit.bench.settings import Settings
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.methods.base import Latencies
from specbench_kit.models.pair import Pair
from specbench_kit.predictors.library import PairHashes
from specbench_kit.profilers import loading
from specbench_kit.profilers.measured_run import measure_part, unfitted
from specbench_kit.profilers.measurement import Report, Stand, choose_factor
from specbench_kit.profilers.part import Part, Result, parts_of
from specbench_kit.profilers.place import find_place
from specbench_kit.profilers.samples import Samples
from specbench_kit.profilers.saving import complete
from specbench_kit.profilers.settings import Settings as ProfileSettings

Fields = dict[str, Any]

BUDGET_S = 10.0
"""For each model; `skit profile-drafter` goes through the same steps three times, with longer contexts."""
DIGITS = 6


class Surroundings:
    """What methods are told of this place; `notes` says what had to be measured for them."""

    def __init__(self, settings: Settings, pair: Pair, models: Mapping[str, Fields], report: Report) -> None:
        self._pair, self._models, self._report = pair, models, report
        self._profiling = ProfileSettings(
            target=settings.target,
            draft=settings.draft,
            device=str(pair.target.model.device),
            dtype=settings.dtype,
            budget_s=BUDGET_S,
            runs=1,
            seed=settings.seed,
        )
        hashes = PairHashes(models["target"]["hash"], models["draft"]["hash"])
        self._known = environment(hashes, settings.deployment, pair.target.model.device)
        self._measures = settings.deployment is None
        self.environment = replace(self._known, latencies=self._latencies)
        self.notes: list[str] = []

    def _latencies(self) -> Latencies:
        missing = [part for part in parts_of(self._profiling) if self._lacks(part)] if self._measures else []
        if missing:
            self._measure(missing)
        return self._known.latencies()

    def _lacks(self, part: Part) -> bool:
        weights = self._models[part.model]["hash"]
        return loading.find_measured(weights, part.role, self._profiling.device, form=part.form) is None

    def _measure(self, parts: Sequence[Part]) -> None:
        """Time the steps of what is missing, and keep the profiles among the user's own."""
        clock = MeasuringClock(self._pair.target.model.device)
        with clock.running():
            for part in parts:
                self._measure_part(part, clock)
            spent_s = clock.now_s()
        self.notes.append(
            f"no latency profile of this pair on this machine: a short one was measured in {spent_s:.0f} s and kept "
            "for the next time; skit profile-drafter measures a thorough one"
        )

    def _measure_part(self, part: Part, clock: MeasuringClock) -> None:
        settings, loaded = self._profiling, self._pair.draft if part.model == "draft" else self._pair.target
        stand = Stand(loaded, clock, settings.seed, settings.runs)
        factor, deadline_s = choose_factor(stand, part.configurations, BUDGET_S), clock.now_s() + BUDGET_S
        run: Fields = {
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "models": self._models,
            "workload": {part.role: {"configurations": len(part.configurations), "factor": factor}},
        }
        profile = unfitted(settings, find_place(settings), part, run)
        # Profiles of one pair differ by hardware, and a short one must not replace a thorough one of another.
        name = f"{profile.name}-short-{sha256(profile.hardware.encode()).hexdigest()[:DIGITS]}"
        note = f"short: one run of at most {BUDGET_S:g} s, measured by skit bench"
        profile = replace(profile, name=name, samples=f"{name}.csv", note=note)
        samples = loading.data_folder() / f"{name}.csv"
        samples.unlink(missing_ok=True)
        found, told = measure_part(stand, part, factor, Samples.open(samples), deadline_s, self._report)
        loading.save(loading.data_folder() / f"{name}.toml", complete(Result(profile, found, told), run, {}))
