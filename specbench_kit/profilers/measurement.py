"""Timed forwards on the real Runner, after prompts whose KV was really computed.

Every timing is appended to a CSV file as it is made.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.latency import InteractionModel, logit_rows_of
from specbench_kit.models.executors.base import Executor, make_executor
from specbench_kit.models.memory import free_bytes
from specbench_kit.models.pair import LoadedModel
from specbench_kit.models.runner import Append, Runner
from specbench_kit.profilers.fit import MIN_TEST, MIN_TRAIN, non_negative
from specbench_kit.profilers.workload import FACTORS, Configuration
from specbench_kit.runs.provenance import hardware

HEADER = "configuration,part,regime,rows,run,repeat,seconds"
"""`rows` are the requests of the batch, each as new/cached tokens."""


@dataclass
class Samples:
    """The seconds of each (configuration, run), which are on disk at once."""

    path: Path
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Samples":
        """Return the samples in a file, which is made if it is missing; raise SkitError for a
        damaged line.
        """
        # The last line has no end if the process was killed while writing it; it is dropped.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        samples = cls(path)
        for number, line in enumerate(lines[1:], 2):
            try:
                name, *_, run, _, seconds = line.split(",")
                samples.seconds.setdefault((name, int(run)), []).append(float(seconds))
            except ValueError as error:
                raise SkitError(
                    f"{path}:{number}: not a timing; remove the line and use --resume"
                ) from error
        samples._write("\n".join([HEADER, *lines[1:]]) + "\n", "w")
        return samples

    def add(self, configuration: Configuration, run: int, seconds: Sequence[float]) -> None:
        """Store the repeated timings of one configuration in one run."""
        rows = " ".join(f"{new}/{cached}" for new, cached in configuration.rows)
        start = f"{configuration.name},{configuration.part},{configuration.regime},{rows},{run}"
        self._write(
            "".join(f"{start},{repeat},{value:.9f}\n" for repeat, value in enumerate(seconds)), "a"
        )
        self.seconds[configuration.name, run] = list(seconds)

    def runs(self) -> dict[str, list[list[float]]]:
        """Return the timings of each run, by configuration."""
        runs: dict[str, list[list[float]]] = defaultdict(list)
        for (name, _), seconds in sorted(self.seconds.items()):
            runs[name].append(seconds)
        return dict(runs)

    def _write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            reason = error.strerror or error
            raise SkitError(
                f"cannot write {self.path}: {reason}; make room, then go on with --resume"
            ) from error


WARM_UPS = 10
RUNS = 3
"""Untimed forwards before the first timed one, and passes through the workload (WISP, Appendix
C).
"""
WARM_UP_S = 1.0
"""Seconds of untimed forwards after which a slow model needs no more of them."""
REPEATS = 10
ENOUGH_S = 0.2
"""Most forwards of one configuration in a run, and the seconds in all after which fewer are
enough.
"""
PILOT_LENGTHS = (1, 64, 256, 1024)
SPARE = 0.8
"""Share of the budget, and of the free memory, that is planned for."""


class TimingRig:
    """One model on one device, with as much KV as a workload needs, which is timed in `runs`
    passes.
    """

    def __init__(
        self, loaded: LoadedModel, clock: MeasuringClock, seed: int, runs: int = RUNS
    ) -> None:
        self.loaded = loaded
        self.clock = clock
        self.seed = seed
        self.runs = runs
        self.make_executor: Callable[..., Executor] = partial(
            make_executor, name=loaded.named_executor
        )
        self.vocabulary = int(loaded.text_config.vocab_size)
        self._runner = self._make_runner(1, min(loaded.context, PILOT_LENGTHS[-1]))

    @property
    def device(self) -> torch.device:
        return self.loaded.device

    def make_room(self, configurations: Sequence[Configuration]) -> None:
        """Allocate the KV that the configurations need."""
        # The old KV is freed before the new one is allocated: both may not fit.
        del self._runner
        self._runner = self._make_runner(*_kv_shape(configurations))

    def fits(self, configurations: Sequence[Configuration]) -> bool:
        """Return whether context and free memory can hold the longest and the widest of the
        configurations.
        """
        slots, length = _kv_shape(configurations)
        needed = self._runner.executor.kv_bytes(slots, length)
        return length <= self.loaded.context and needed <= SPARE * free_bytes(self.device)

    def warm_up(self) -> None:
        """Forward some prompts, so that thread pools, caches and clock rates settle."""
        length = min(PILOT_LENGTHS[1], self._runner.capacity)
        started_s = self.clock.now_s()
        for number in range(WARM_UPS):
            if self.clock.now_s() - started_s > WARM_UP_S:
                break
            self.time(
                Configuration(f"warm-up-{number}", "train", "mixed", ((length, 0),)),
                run=-1,
                repeats=1,
            )

    def time(self, configuration: Configuration, run: int, repeats: int = REPEATS) -> list[float]:
        """Return the seconds of each forward that brings every request's new tokens, argmax
        included.

        The first forward is not counted, unless it takes so long on a CPU that its peculiarities do
        not matter: a GPU loads kernels when they are first needed, and captures graphs.
        """
        random = Random(f"{self.seed}/{configuration.name}/{run}")
        with self._prefilled(configuration, random) as slots:
            rows = [
                Append(slot, self._tokens(random, row[0]), keep=logit_rows_of(row))
                for slot, row in zip(slots, configuration.rows, strict=True)
            ]
            first = self._forward(rows)
            seconds = (
                [first] if first >= ENOUGH_S and self._runner.executor.device.type == "cpu" else []
            )
            while len(seconds) < repeats and sum(seconds) < ENOUGH_S:
                seconds.append(self._forward(rows))
        return seconds

    @contextmanager
    def _prefilled(self, configuration: Configuration, random: Random) -> Iterator[list[int]]:
        """Yield slots that hold each request's cached tokens."""
        slots = [self._runner.acquire() for _ in configuration.rows]
        try:
            for slot, (_, cached) in zip(slots, configuration.rows, strict=True):
                if cached:
                    self._runner.forward([Append(slot, self._tokens(random, cached))])
                    self._runner.commit(slot, range(cached))
            yield slots
        finally:
            for slot in slots:
                self._runner.release(slot)

    def _forward(self, rows: list[Append]) -> float:
        """Return the seconds of one forward, whose tokens do not stay in KV."""
        self.clock.take()
        with self.clock.phase("verify"):
            self._runner.forward(rows).argmax()
        for row in rows:
            self._runner.commit(row.slot, ())
        return self.clock.take()["verify"]

    def _tokens(self, random: Random, count: int) -> list[int]:
        return random.choices(range(self.vocabulary), k=count)

    def _make_runner(self, slots: int, length: int) -> Runner:
        return Runner(self.make_executor(self.loaded.shell, slots, length, self.vocabulary))


@dataclass
class MeasurementGaps:
    """The gaps of a measurement: configurations that did not fit the memory, and timings that the
    budget cut off.
    """

    skipped: list[str] = field(default_factory=list)
    cut_off: int = 0


def measure(
    rig: TimingRig,
    configurations: Sequence[Configuration],
    samples: Samples,
    deadline_s: float,
    step: str,
    progress: ProgressCallback,
) -> MeasurementGaps:
    """Time what the samples lack, in an order that is drawn anew for each run, until the clock says
    `deadline_s`.

    Wide batches come last, if the memory holds them.
    """
    gaps = MeasurementGaps()
    planned = len(configurations) * rig.runs
    for wide in (False, True):
        group = [
            configuration
            for configuration in configurations
            if (configuration.regime == "batched") is wide
        ]
        if wide and group and not rig.fits(group):
            gaps.skipped += [configuration.name for configuration in group]
        elif group:
            rig.make_room(group)
            rig.warm_up()
            for run in range(rig.runs):
                for configuration in Random(f"order/{rig.seed}/{run}").sample(group, len(group)):
                    if (
                        configuration.name,
                        run,
                    ) not in samples.seconds and configuration.name not in gaps.skipped:
                        if rig.clock.now_s() > deadline_s:
                            gaps.cut_off += 1
                        else:
                            _time(rig, configuration, run, samples, gaps)
                    progress(step, len(samples.seconds), planned)
    return gaps


def _time(
    rig: TimingRig, configuration: Configuration, run: int, samples: Samples, gaps: MeasurementGaps
) -> None:
    """Time one configuration in one run; note it as skipped if the memory does not hold it."""
    try:
        samples.add(configuration, run, rig.time(configuration, run))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        gaps.skipped.append(configuration.name)
        if rig.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_factor(
    rig: TimingRig,
    configurations: Sequence[Configuration],
    budget_s: float,
    *,
    ends_there: bool = False,
) -> float:
    """Return the largest factor for the lengths that fits context, memory and budget.

    If none fits the budget, return the smallest that fits context and memory; raise SkitError if
    none does, or if the measurement `ends_there`, before there is enough for a fit. Wide batches
    need not fit: those that do not are skipped.
    """
    pilot = _pilot(rig, budget_s)
    narrow = [
        configuration for configuration in configurations if configuration.regime != "batched"
    ]
    fitting = [factor for factor in FACTORS if rig.fits(_scaled(narrow, factor))]
    if not fitting:
        raise SkitError(
            f"the workload does not fit: {rig.loaded.source.label} takes {rig.loaded.context} positions and "
            f"{free_bytes(rig.device) / 1e9:.1f} GB are free, which is too little even for lengths / 32"
        )
    for factor in fitting:
        if planned_s(_scaled(configurations, factor), pilot) * rig.runs <= SPARE * budget_s:
            return factor
    enough_s = _least_share(narrow) * planned_s(_scaled(narrow, fitting[-1]), pilot) / SPARE
    if ends_there and enough_s > budget_s:
        raise SkitError(
            f"the budget ends before there is enough for a fit: {rig.loaded.source.label} takes about {enough_s:.0f} s "
            f"here, and may take {budget_s:.0f}; give a --budget at least {enough_s / budget_s:.1f} times as long"
        )
    return fitting[-1]


def _scaled(configurations: Iterable[Configuration], factor: float) -> list[Configuration]:
    return [configuration.scaled(factor) for configuration in configurations]


def _least_share(configurations: Sequence[Configuration]) -> float:
    """Return the share of a workload, timed in any order, that is enough for a fit."""
    train = sum(configuration.part == "train" for configuration in configurations)
    return max(MIN_TRAIN / train, MIN_TEST / (len(configurations) - train))


def planned_s(configurations: Sequence[Configuration], latency: InteractionModel) -> float:
    """Return the seconds that one run of a workload will take: prompts, an untimed forward each,
    and the timed ones.
    """
    total_s = 0.0
    for configuration in configurations:
        forward_s = latency.seconds(configuration.rows)
        forwards = 1 if forward_s >= ENOUGH_S else 1 + min(REPEATS, 1 + ENOUGH_S // forward_s)
        prompts_s = sum(
            latency.seconds([(cached, 0)]) for _, cached in configuration.rows if cached
        )
        total_s += prompts_s + forward_s * forwards
    return total_s


def _pilot(rig: TimingRig, budget_s: float) -> InteractionModel:
    """Return a rough latency model, from prompts of growing length for as long as they take little
    of the budget.
    """
    lengths = []
    seconds = []
    for length in PILOT_LENGTHS:
        if length <= rig.loaded.context:
            pilot = Configuration(f"pilot-{length}", "train", "compute-bound", ((length, 0),))
            lengths.append(length)
            seconds.append(median(rig.time(pilot, run=-1)))
        if seconds[-1] > budget_s / 100:
            break
    a_s, b_compute_s, c_s = non_negative([(n, n * n, 1) for n in lengths], seconds)
    return InteractionModel(a_s, b_compute_s, 0.0, max(c_s, 1e-6))


def _kv_shape(configurations: Sequence[Configuration]) -> tuple[int, int]:
    """Return the number of KV slots that the configurations need, and of tokens per slot."""
    slots = max(len(configuration.rows) for configuration in configurations)
    return slots, max(configuration.longest for configuration in configurations)


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device has no memory left; on a CPU torch raises a plain
    RuntimeError.
    """
    plain = "not enough memory" in str(error) or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or plain


def hardware_text(device: torch.device) -> str:
    """Return the hardware that the speed of a measurement depends on, as profiles name it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    machine = hardware()
    return (
        f"{machine['cpu']}, {machine['physical_cores']} cores, {machine['torch_threads']} threads"
    )
