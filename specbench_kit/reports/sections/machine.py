"""The warnings that void a run's times: the machine was too busy while they were taken."""

from collections.abc import Iterable

from specbench_kit.reports.stored import RunFile
from specbench_kit.runs.machine.limits import disturbances


def warnings(run: RunFile) -> list[str]:
    """Return the lines that precede all other results; none if the machine was quiet or no clock was read."""
    samples, exceeded, lines = run.get("machine") or [], disturbed(run), []
    if exceeded:
        loads = [(*sample["load"], sample.get("cpus")) for sample in samples if None not in sample["load"]]
        load = ""
        if loads:
            start, end, cpus = max(loads, key=lambda sample: max(sample[:2]))
            load = f"; load average {start:.1f} at the start and {end:.1f} at the end on {cpus} processors"
        lines.append(f"DISTURBED MACHINE: {'; '.join(exceeded)}{load}. THE TIMES BELOW ARE NOT VALID: run it again.")
    if sources := dict.fromkeys(sample["injected"] for sample in samples if sample.get("injected")):
        lines.append(
            f"INJECTED READINGS: the readings of the machine come from {', '.join(sources)}, not from the machine."
        )
    return lines


def disturbed(run: RunFile) -> list[str]:
    """Return every limit that was exceeded while the run was timed."""
    return disturbances(run.get("machine") or [])


def of_all(runs: Iterable[RunFile]) -> list[str]:
    """Return the warnings of several runs, each once."""
    return list(dict.fromkeys(line for run in runs for line in warnings(run)))
