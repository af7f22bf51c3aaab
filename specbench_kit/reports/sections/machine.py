"""How far a run's numbers are to be trusted by where they come from: the state of its machine, and
its provenance.

On a busy machine all times are void, or ratios hold and only speeds are in doubt.
"""

import shlex
from collections.abc import Iterable

from specbench_kit.reports.document import Blocks, CodeBlock, Folded, Paragraph, code, facts
from specbench_kit.reports.writing.formatting import ABSENT, interval, times
from specbench_kit.runs.document import RunDescription
from specbench_kit.runs.machine.limits import MachineReadings, control_of, disturbances, ratios_hold


def warnings(*runs: RunDescription) -> list[str]:
    """Return the lines that precede all other results, each once for all runs; none if the machine
    was quiet.

    Of several runs the worst readings are named.
    """
    samples = _samples(runs, hold=False)
    lines = []
    if samples:
        found = f"DISTURBED MACHINE: {'; '.join(disturbances(samples))}{_load(samples)}{_control(samples)}"
        lines.append(f"{found}. THE TIMES BELOW ARE NOT VALID: run it again.")
    every = [sample for run in runs for sample in run.machine]
    if sources := dict.fromkeys(sample.injected for sample in every if sample.injected):
        lines.append(
            f"INJECTED READINGS: the readings of the machine come from {', '.join(sources)}, not from the machine."
        )
    return lines


def cautions(*runs: RunDescription) -> list[str]:
    """Return the line about a busy machine on which ratios hold, since methods took turns; none on
    a quiet one.
    """
    samples = _samples(runs, hold=True)
    if not samples:
        return []
    return [
        f"BUSY MACHINE: {'; '.join(disturbances(samples))}{_load(samples)}. Tokens per second and percentiles would be "
        f"better on a quiet one; speedups and outputs are not affected{_control(samples)}."
    ]


def _samples(runs: Iterable[RunDescription], *, hold: bool) -> list[MachineReadings]:
    """Return the readings of the disturbed runs whose ratios hold, or of those whose do not."""
    disturbed_runs = [run.machine for run in runs if disturbances(run.machine)]
    return [
        sample for samples in disturbed_runs if ratios_hold(samples) == hold for sample in samples
    ]


def _load(samples: list[MachineReadings]) -> str:
    loads = [
        (start, end, sample.cpus)
        for sample in samples
        for start, end in [sample.load or (None, None)]
        if start is not None and end is not None
    ]
    if not loads:
        return ""
    start, end, cpus = max(loads, key=lambda load: max(load[:2]))
    return f"; load average {start:.1f} at the start and {end:.1f} at the end on {cpus} processors"


def _control(samples: list[MachineReadings]) -> str:
    control = control_of(samples)
    if control is None:
        return ""
    ratio = f"{times(control.speed)} ({interval(control.interval)})"
    words = f": autoregressive decoding beside itself came out at {ratio}"
    in_all = control.speed_in_all
    return f"{words} on a typical prompt and {times(in_all)} in all" if in_all else words


def provenance(run: RunDescription) -> Blocks:
    """Return commit, digests, seed, versions and command of a run, to open on a click."""
    commit = run.git_commit
    values = {
        "started": run.started_at,
        "git commit": f"{commit} with uncommitted changes" if commit and run.git_dirty else commit,
        "dataset digest": run.dataset.digest,
        **{f"{role} hash": model and model.hash for role, model in run.models.items()},
        "seed": run.config.seed,
        **(run.versions or {}),
    }
    rows = [(name, ABSENT if value is None else code(str(value))) for name, value in values.items()]
    command = CodeBlock(shlex.join(run.argv or []))
    return [Folded("Provenance", [facts(rows), Paragraph("Command:"), command])]
