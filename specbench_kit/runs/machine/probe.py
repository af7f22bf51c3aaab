"""Readings of the operating system about the machine; tests replace them by a file of readings."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from msgspec import Struct, structs

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Number, decode
from specbench_kit.runs.machine.limits import MachineReadings

VARIABLE = "SKIT_MACHINE_READINGS"
"""The environment variable that names a file of readings; every report of such a run says so."""


class SystemCounters(NamedTuple):
    """The load average over a minute, and processor seconds since the machine started, over all
    processors.
    """

    load: float
    stolen_s: float
    wanted_s: float
    """Seconds that were used, plus those that the host withheld."""


class Probe(Protocol):
    """A source of readings about the machine."""

    def system(self) -> SystemCounters:
        """Return the counters of the whole machine."""

    def children_s(self) -> float:
        """Return the processor seconds of the child processes that still run."""

    def adjusted(self, block: MachineReadings) -> MachineReadings:
        """Return a finished block of readings as it is to be judged."""


class LiveProbe:
    """Reads this machine."""

    def system(self) -> SystemCounters:
        import psutil

        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        guest_s = getattr(times, "guest", 0.0) + getattr(
            times, "guest_nice", 0.0
        )  # counted as user time too
        return SystemCounters(
            psutil.getloadavg()[0], getattr(times, "steal", 0.0), sum(times) - idle_s - guest_s
        )

    def children_s(self) -> float:
        import psutil

        times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
        return float(sum(child.user + child.system for child in times))

    def adjusted(self, block: MachineReadings) -> MachineReadings:
        return block


class InjectedReadings(Struct, forbid_unknown_fields=True, frozen=True):
    """The readings of a file, each a number or null: `cpu_share` and `spread` are of all lanes."""

    cpu_share: Number | None
    spread: Number | None
    steal: Number | None
    load: Number | None


@dataclass(frozen=True, slots=True)
class InjectedProbe(LiveProbe):
    """Reads this machine, and puts the readings of a file in place of the results."""

    name: str
    readings: InjectedReadings

    @classmethod
    def read(cls, path: Path) -> "InjectedProbe":
        """Return the probe with the readings of a JSON file."""
        try:
            return cls(path.name, decode(InjectedReadings, path.read_bytes()))
        except OSError as error:
            raise SkitError(f"{VARIABLE} names no readable JSON file: {path} ({error})") from error
        except ValueError as error:
            names = ", ".join(InjectedReadings.__struct_fields__)
            raise SkitError(
                f"{VARIABLE}: {path} must hold {names}, each a number or null: {error}"
            ) from error

    def adjusted(self, block: MachineReadings) -> MachineReadings:
        readings = self.readings
        lanes = {
            label: structs.replace(lane, cpu_share=readings.cpu_share, spread=readings.spread)
            for label, lane in block.lanes.items()
        }
        load = (readings.load, readings.load)
        return structs.replace(
            block, lanes=lanes, steal=readings.steal, load=load, injected=self.name
        )


def probe_here() -> Probe:
    """Return the probe of this machine, or the file of readings that the environment names."""
    path = os.environ.get(VARIABLE)
    return InjectedProbe.read(Path(path)) if path else LiveProbe()
