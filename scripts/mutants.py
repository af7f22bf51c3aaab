"""Put small faults into the modules that `[tool.mutmut]` names, one at a time, and check that the tests notice.

    python scripts/mutants.py                     every mutant
    python scripts/mutants.py '*__mutmut_*7'      about a tenth of them; several patterns may be given

A mutant that no test notices must be listed in tests/mutants.toml with the reason. Exit code 1 if one is not and, after
a run over all mutants, if an entry matches none, or if less than 90% of a module's mutants were noticed.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
REASONS = ROOT / "tests" / "mutants.toml"
WORKERS = "2"
REACH = 0.9
NOTICED = ("killed", "timeout", "segfault", "caught by type check")
MUTMUT = (sys.executable, "-m", "mutmut")


def outcomes(patterns: Sequence[str]) -> dict[str, str]:
    """Return the outcome of each mutant, from a fresh run, because the tests may have changed."""
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    subprocess.run([*MUTMUT, "run", "--max-children", WORKERS, *patterns], check=True)
    lines = subprocess.run(
        [*MUTMUT, "results", "--all", "true"], check=True, capture_output=True, text=True
    )
    found = dict(line.strip().rsplit(": ", 1) for line in lines.stdout.splitlines() if ": " in line)
    return {name: became for name, became in found.items() if became != "not checked"}


@dataclass(frozen=True)
class Entry:
    """A change that no test has to notice, in functions whose names match `within`, with the reason."""

    was: str
    became: str
    reason: str
    within: str = "*"

    def explains(self, mutant: str, before: str, after: str) -> bool:
        """Return True if a mutant is this change; its number does not identify it, since it moves with the code."""
        places = re.finditer(re.escape(self.was), before)
        changes = (
            before[: place.start()] + self.became + before[place.end() :] for place in places
        )
        return fnmatch(mutant.rpartition("__mutmut_")[0], self.within) and after in changes


def entries() -> list[Entry]:
    """Return the entries of tests/mutants.toml."""
    return [
        Entry(**entry)
        for entry in tomllib.loads(REASONS.read_text(encoding="utf-8")).get("survivors", [])
    ]


def changed(mutant: str) -> tuple[str, str]:
    """Return the lines that a mutant changes, before and after."""
    from mutmut.mutation.diff_apply import get_diff_for_mutant

    lines = [
        line
        for line in get_diff_for_mutant(mutant).splitlines()
        if not line.startswith(("---", "+++"))
    ]
    before, after = (
        "\n".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+"
    )
    return before, after


def module(mutant: str) -> str:
    """Return the module of a mutant: its name without that of the function."""
    return mutant.removeprefix("specbench_kit.").rpartition(".")[0]


def table(found: Mapping[str, str]) -> dict[str, float]:
    """Print how many of each module's mutants were noticed, and return the shares."""
    every = Counter(map(module, found))
    noticed = Counter(module(name) for name, became in found.items() if became in NOTICED)
    for name in sorted(every):
        print(f"{name:36} {noticed[name]:5} of {every[name]:5}  {noticed[name] / every[name]:6.1%}")
    print(
        f"{'all':36} {noticed.total():5} of {every.total():5}  {noticed.total() / every.total():6.1%}"
    )
    return {name: noticed[name] / count for name, count in every.items()}


def main(patterns: Sequence[str]) -> int:
    """Run the mutants and return the exit code."""
    found = outcomes(patterns)
    shares, used, complaints = table(found), set(), []
    for name in sorted(name for name, became in found.items() if became not in NOTICED):
        before, after = changed(name)
        fitting = [entry for entry in entries() if entry.explains(name, before, after)]
        used.update(fitting)
        if not fitting:
            complaints.append(f"nobody noticed {name}\n    - {before}\n    + {after}")
    if not patterns:
        complaints += [
            f"{REASONS.name}: no survivor is {entry}" for entry in entries() if entry not in used
        ]
        complaints += [
            f"less than {REACH:.0%} noticed: {name}"
            for name, share in shares.items()
            if share < REACH
        ]
    print(*complaints, sep="\n")
    return bool(complaints)


if __name__ == "__main__":
    os.chdir(ROOT)  # where mutmut looks for its configuration
    sys.exit(main(sys.argv[1:]))
