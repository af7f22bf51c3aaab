"""The arrivals that `--arrivals` names: a process with its options, or the file of a trace."""

from collections.abc import Mapping

from specbench_kit.core.errors import SkitError
from specbench_kit.core.foreign_file import StatedFile
from specbench_kit.core.specs import from_options
from specbench_kit.serving.arrival_traces import parse_arrival_file
from specbench_kit.serving.arrivals import ArrivalProcess, ClosedLoop, Levels, Poisson, Waves

PROCESSES: Mapping[str, type[ArrivalProcess]] = {
    "closed": ClosedLoop,
    "poisson": Poisson,
    "waves": Waves,
    "levels": Levels,
}


def parse_arrivals(text: str, scale: float) -> ArrivalProcess:
    """Return the arrivals that `closed:think_s=5`, `poisson:rate_per_s=2`, a varying rate, or a
    trace file names.
    """
    name, _, options = text.partition(":")
    if name in PROCESSES:
        if scale != 1:
            raise SkitError("--arrivals-scale is for the arrivals of a file")
        return from_options(name, PROCESSES[name], options)
    if not StatedFile.parse(text).path.exists():
        raise SkitError(
            f"unknown arrivals '{text}': name closed:think_s=0, poisson:rate_per_s=2, waves:rate_per_s=2,swing=0.8, "
            "levels:rate_per_s=2,cv=1, or the file of a trace"
        )
    return parse_arrival_file(text).scaled(scale)
