"""Readings of the machine while a part of a profile is timed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specbench_kit.decoding.clock import read_processor_time
from specbench_kit.profilers.measurement import TimingRig
from specbench_kit.profilers.parts import ProfiledPart
from specbench_kit.profilers.samples import Samples
from specbench_kit.runs.machine.probe import Probe
from specbench_kit.runs.machine.watch import LaneTimes, Watch


@contextmanager
def machine_recorded(
    probe: Probe, rig: TimingRig, part: ProfiledPart, samples: Samples, keep: Callable[[dict[str, object]], None]
) -> Iterator[None]:
    """Pass the readings taken while one part is timed to `keep`, also if the timing fails."""
    watch, before = Watch(probe, rig.device), read_processor_time()
    try:
        yield
    finally:
        steps = [[seconds for run in runs for seconds in run] for runs in samples.runs().values()]
        keep(watch.end({f"the {part.role}": LaneTimes(read_processor_time().since(before), steps)}))
