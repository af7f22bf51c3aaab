"""Timed forwards on the real Runner, after prompts whose KV was really computed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from statistics import median

import torch

from specbench_kit.core.errors import SkitError
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.latency import InteractionModel, logit_rows_of
from specbench_kit.models.executors.base import Executor, make_executor
from specbench_kit.models.pair import LoadedModel
from specbench_kit.models.runner import Append, Runner
from specbench_kit.profilers.fit import non_negative
from specbench_kit.profilers.samples import Samples
from specbench_kit.profilers.workload import FACTORS, Configuration
from specbench_kit.runs.provenance import hardware

WARM_UPS, RUNS = 10, 3
"""Untimed forwards before the first timed one, and times that the workload is gone through (WISP, Appendix C)."""
REPEATS, ENOUGH_S = 10, 0.2
"""Forwards of one configuration in one run: so many, or fewer once they have taken so long."""
PILOT_LENGTHS = (1, 64, 256, 1024)
SPARE = 0.8
"""Share of the budget, and of the free memory, that is planned for."""


class TimingRig:
    """One model on one device, with as much KV as a workload needs; `runs` times it is to be gone through."""

    def __init__(self, loaded: LoadedModel, clock: MeasuringClock, seed: int, runs: int = RUNS) -> None:
        self.loaded, self.clock, self.seed, self.runs = loaded, clock, seed, runs
        self.make_executor: Callable[..., Executor] = make_executor
        self.vocabulary = int(loaded.text_config.vocab_size)
        self._runner = self._make_runner(1, min(loaded.context, PILOT_LENGTHS[-1]))

    @property
    def device(self) -> torch.device:
        device: torch.device = self.loaded.model.device
        return device

    def provide(self, configurations: Sequence[Configuration]) -> None:
        """Make room for all of them."""
        del self._runner
        self._runner = self._make_runner(*_room(configurations))

    def kv_bytes(self, configurations: Sequence[Configuration]) -> int:
        """Memory of the KV that they need."""
        slots, length = _room(configurations)
        return self._runner.executor.kv_bytes(slots, length)

    def warm_up(self) -> None:
        """Let thread pools, caches and clock rates settle."""
        length = min(PILOT_LENGTHS[1], self._runner.capacity)
        for number in range(WARM_UPS):
            self.time(Configuration(f"warm-up-{number}", "train", "mixed", ((length, 0),)), run=-1, repeats=1)

    def time(self, configuration: Configuration, run: int, repeats: int = REPEATS) -> list[float]:
        """Seconds of the forward that brings each request's new tokens, argmax included.

        The first forward is not counted, unless it takes so long that what is special about it does not matter.
        """
        random = Random(f"{self.seed}/{configuration.name}/{run}")
        with self._prefilled(configuration, random) as slots:
            rows = [
                Append(slot, self._tokens(random, row[0]), keep=logit_rows_of(row))
                for slot, row in zip(slots, configuration.rows, strict=True)
            ]
            first = self._forward(rows)
            seconds = [first] if first >= ENOUGH_S else []
            while len(seconds) < repeats and sum(seconds) < ENOUGH_S:
                seconds.append(self._forward(rows))
        return seconds

    @contextmanager
    def _prefilled(self, configuration: Configuration, random: Random) -> Iterator[list[int]]:
        """Slots that hold each request's cached tokens."""
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
        """Seconds of one forward, which leaves no trace."""
        self.clock.take()
        with self.clock.phase("verify"):
            self._runner.forward(rows).argmax()
        for row in rows:
            self._runner.commit(row.slot, ())
        return self.clock.take()["verify"]

    def _tokens(self, random: Random, count: int) -> list[int]:
        return random.choices(range(self.vocabulary), k=count)

    def _make_runner(self, slots: int, length: int) -> Runner:
        return Runner(self.make_executor(self.loaded.model, slots, length, self.vocabulary))


@dataclass
class MeasurementGaps:
    """What a measurement left out: configurations that did not fit the memory, and runs that the budget cut off."""

    skipped: list[str] = field(default_factory=list)
    cut_off: int = 0


def measure(
    stand: TimingRig,
    configurations: Sequence[Configuration],
    samples: Samples,
    deadline_s: float,
    step: str,
    report: ProgressCallback,
) -> MeasurementGaps:
    """Time what the samples lack, in an order that is drawn anew for each run, until the clock says `deadline_s`.

    Wide batches come last, where the memory holds them.
    """
    outcome, planned = MeasurementGaps(), len(configurations) * stand.runs
    for wide in (False, True):
        group = [one for one in configurations if (one.regime == "batched") is wide]
        if wide and group and not _fits(stand, group):
            outcome.skipped += [one.name for one in group]
        elif group:
            stand.provide(group)
            stand.warm_up()
            for one, run in _in_turn(stand, group):
                if (one.name, run) not in samples.seconds and one.name not in outcome.skipped:
                    if stand.clock.now_s() > deadline_s:
                        outcome.cut_off += 1
                    else:
                        _time(stand, one, run, samples, outcome)
                report(step, len(samples.seconds), planned)
    return outcome


def _in_turn(stand: TimingRig, configurations: Sequence[Configuration]) -> Iterator[tuple[Configuration, int]]:
    for run in range(stand.runs):
        for one in Random(f"order/{stand.seed}/{run}").sample(configurations, len(configurations)):
            yield one, run


def _time(stand: TimingRig, one: Configuration, run: int, samples: Samples, outcome: MeasurementGaps) -> None:
    try:
        samples.add(one, run, stand.time(one, run))
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        outcome.skipped.append(one.name)
        if stand.device.type == "cuda":
            torch.cuda.empty_cache()


def choose_factor(stand: TimingRig, configurations: Sequence[Configuration], budget_s: float) -> float:
    """The largest factor by which the lengths fit context, memory and budget; else the smallest, if that fits.

    Wide batches do not have to fit: those that do not are skipped.
    """
    pilot, narrow = _pilot(stand, budget_s), [one for one in configurations if one.regime != "batched"]
    fitting = [factor for factor in FACTORS if _fits(stand, [one.scaled(factor) for one in narrow])]
    if not fitting:
        raise SkitError(
            f"the workload does not fit: {stand.loaded.source.label} takes {stand.loaded.context} positions and "
            f"{free_bytes(stand.device) / 1e9:.1f} GB are free, which is too little even for lengths / 32"
        )
    for factor in fitting:
        if planned_s([one.scaled(factor) for one in configurations], pilot) * stand.runs <= SPARE * budget_s:
            return factor
    return fitting[-1]


def planned_s(configurations: Sequence[Configuration], latency: InteractionModel) -> float:
    """Seconds that one run of a workload will take: prompts, an untimed forward each, and the timed ones."""
    total_s = 0.0
    for one in configurations:
        forward_s = latency.seconds(one.rows)
        forwards = 1 if forward_s >= ENOUGH_S else 1 + min(REPEATS, 1 + ENOUGH_S // forward_s)
        total_s += sum(latency.seconds([(cached, 0)]) for _, cached in one.rows if cached) + forward_s * forwards
    return total_s


def _pilot(stand: TimingRig, budget_s: float) -> InteractionModel:
    """A rough latency model, from prompts of growing length for as long as they take little of the budget."""
    lengths, seconds = [], []
    for length in PILOT_LENGTHS:
        if length <= stand.loaded.context:
            pilot = Configuration(f"pilot-{length}", "train", "compute-bound", ((length, 0),))
            lengths.append(length)
            seconds.append(median(stand.time(pilot, run=-1)))
        if seconds[-1] > budget_s / 100:
            break
    a_s, b_compute_s, c_s = non_negative([(n, n * n, 1) for n in lengths], seconds)
    return InteractionModel(a_s, b_compute_s, 0.0, max(c_s, 1e-6))


def _fits(stand: TimingRig, configurations: Sequence[Configuration]) -> bool:
    """Whether the context and the free memory can hold the longest and the widest of them."""
    length = _room(configurations)[1]
    return length <= stand.loaded.context and stand.kv_bytes(configurations) <= SPARE * free_bytes(stand.device)


def _room(configurations: Sequence[Configuration]) -> tuple[int, int]:
    """Slots, and tokens per slot."""
    return max(len(one.rows) for one in configurations), max(one.longest for one in configurations)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left; on a CPU torch raises a plain RuntimeError."""
    plain = "not enough memory" in str(error) or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or plain


def free_bytes(device: torch.device) -> float:
    """Memory that is free now."""
    import psutil

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    return float(psutil.virtual_memory().available)


def hardware_text(device: torch.device) -> str:
    """What was measured on, as far as it decides the speed."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    found = hardware()
    return f"{found['cpu']}, {found['physical_cores']} cores, {found['torch_threads']} threads"
