"""What a profiling measurement notes of the machine."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.profilers.measurement import TimingRig
from specbench_kit.profilers.parts import ProfiledPart
from specbench_kit.profilers.samples import Samples
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.runs.machine.watch import LaneTimes, Watch

Fields = dict[str, Any]


@contextmanager
def machine_recorded(
    probe: Probe, stand: TimingRig, part: ProfiledPart, samples: Samples, keep: Callable[[Fields], None]
) -> Iterator[None]:
    """Hand over the readings on the timing of one part, however that ends."""
    watch, before = Watch(probe, stand.device), read_processor_time()
    try:
        yield
    finally:
        steps = [[one for run in runs for one in run] for runs in samples.runs().values()]
        keep(watch.end({f"the {part.role}": LaneTimes(read_processor_time().since(before), steps)}))
