"""What a reader must know first: that the machine was too busy for its times to hold."""

from collections.abc import Iterable, Mapping
from typing import Any

from specbench_kit.runs.machine.limits import disturbances

Fields = Mapping[str, Any]


def warnings(run: Fields) -> list[str]:
    """Goes before everything else that is said of a run; nothing where the machine was quiet or no clock was read."""
    blocks, found = run.get("machine") or [], disturbed(run)
    lines = []
    if found:
        lines.append(
            f"DISTURBED MACHINE: {'; '.join(found)}{_loads(blocks)}. THE TIMES BELOW DO NOT HOLD: run it again."
        )
    if names := dict.fromkeys(block["injected"] for block in blocks if block.get("injected")):
        lines.append(f"INJECTED READINGS: what is said of the machine comes from {', '.join(names)}, not from it.")
    return lines


def disturbed(run: Fields) -> list[str]:
    """Every limit that was passed while the run was timed."""
    return disturbances(run.get("machine") or [])


def of_all(runs: Iterable[Fields]) -> list[str]:
    """The warnings of several runs, each once."""
    return list(dict.fromkeys(line for run in runs for line in warnings(run)))


def _loads(blocks: Iterable[Fields]) -> str:
    loads = [(*block["load"], block.get("cpus")) for block in blocks if None not in block["load"]]
    if not loads:
        return ""
    first, last, cpus = max(loads, key=lambda found: max(found[:2]))
    return f"; load average {first:.1f} at the start and {last:.1f} at the end on {cpus} processors"
