"""What the operating system says of the machine; tests put a file of readings in its place."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from specbench_kit.core.errors import SkitError

Fields = dict[str, Any]

VARIABLE = "SKIT_MACHINE_READINGS"
"""Names the file of readings that stand in for the machine's; every report of such a run says so."""
LANE_READINGS, OTHER_READINGS = ("cpu_share", "spread"), ("steal", "load")


class SystemCounters(NamedTuple):
    """The load average over a minute, and processor seconds since the machine started, over all processors."""

    load: float
    stolen_s: float
    wanted_s: float
    """Those that were used, and those that the host withheld."""


class Probe(Protocol):
    """Where readings come from."""

    def system(self) -> SystemCounters:
        """The whole machine's counters."""

    def others_s(self) -> float:
        """Processor seconds of the processes that this one has started and that still run."""

    def believed(self, block: Fields) -> Fields:
        """A finished block of readings as it is to be judged."""


class LiveProbe:
    """This machine."""

    def system(self) -> SystemCounters:
        import psutil

        times = psutil.cpu_times()
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        guest_s = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # counted as user time too
        return SystemCounters(psutil.getloadavg()[0], getattr(times, "steal", 0.0), sum(times) - idle_s - guest_s)

    def others_s(self) -> float:
        import psutil

        times = [one.cpu_times() for one in psutil.Process().children(recursive=True)]
        return float(sum(one.user + one.system for one in times))

    def believed(self, block: Fields) -> Fields:
        return block


@dataclass(frozen=True, slots=True)
class InjectedProbe(LiveProbe):
    """This machine, but with the readings of a file: `cpu_share` and `spread` of all lanes, `steal` and `load`."""

    name: str
    readings: Fields

    @classmethod
    def read(cls, path: Path) -> "InjectedProbe":
        """The readings in a JSON file, each a number or null."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SkitError(f"{VARIABLE} names no readable JSON file: {path} ({error})") from error
        names = (*LANE_READINGS, *OTHER_READINGS)
        if not isinstance(found, dict) or sorted(found) != sorted(names) or not all(map(_is_reading, found.values())):
            raise SkitError(f"{VARIABLE}: {path} must hold {', '.join(names)}, each a number or null")
        return cls(path.name, found)

    def believed(self, block: Fields) -> Fields:
        lane = {name: self.readings[name] for name in LANE_READINGS}
        lanes = {label: {**found, **lane} for label, found in block["lanes"].items()}
        load = [self.readings["load"]] * 2
        return {**block, "lanes": lanes, "steal": self.readings["steal"], "load": load, "injected": self.name}


def probe_here() -> Probe:
    """This machine, unless the environment names a file of readings."""
    path = os.environ.get(VARIABLE)
    return InjectedProbe.read(Path(path)) if path else LiveProbe()


def _is_reading(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
