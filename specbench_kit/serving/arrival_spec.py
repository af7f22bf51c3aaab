"""The arrivals that `--arrivals` names: a process with its options, a bundled trace, or the file of
a trace.
"""

from collections.abc import Mapping
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import StatedFile
from specbench_kit.core.specs import from_options
from specbench_kit.serving.arrival_traces import read_arrivals
from specbench_kit.serving.arrivals import ArrivalProcess, ClosedLoop, Levels, Poisson, Waves

PROCESSES: Mapping[str, type[ArrivalProcess]] = {
    "closed": ClosedLoop,
    "poisson": Poisson,
    "waves": Waves,
    "levels": Levels,
}
RECORDED = Path(__file__).with_name("recorded")


def recorded_traces() -> dict[str, Path]:
    """Return the traces of arrivals that ship with the kit, by name."""
    return {path.stem: path for path in sorted(RECORDED.glob("*.csv"))}


def parse_arrivals(text: str, scale: float) -> ArrivalProcess:
    """Return the arrivals that `closed:think_s=5`, `poisson:rate_per_s=2`, a varying rate, a bundled
    trace such as `adaspec-conv`, or a trace file names.
    """
    name, _, options = text.partition(":")
    if name in PROCESSES:
        if scale != 1:
            raise SkitError("--arrivals-scale is for the arrivals of a file")
        return from_options(name, PROCESSES[name], options)
    file = StatedFile.parse(text)
    bundled = recorded_traces()
    path = file.path if file.path.exists() else bundled.get(str(file.path))
    if path is None:
        raise SkitError(
            f"unknown arrivals '{text}': name closed:think_s=0, poisson:rate_per_s=2, waves:rate_per_s=2,swing=0.8, "
            f"levels:rate_per_s=2,cv=1, one of {', '.join(bundled)}, or the file of a trace"
        )
    return read_arrivals(path, stated=file.options).scaled(scale)
