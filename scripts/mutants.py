"""Put small faults into the modules that `[tool.mutmut]` names, one at a time, and see whether the tests notice.

    python scripts/mutants.py                     every mutant
    python scripts/mutants.py '*__mutmut_*7'      about a tenth of them; several patterns may be given

A mutant that no test notices has to stand in tests/mutants.toml with the reason. Exit code 1 where one does not, where
one stands there that is noticed after all, or where a module falls short of 90 % without counting reasons.
"""

import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
REASONS = ROOT / "tests" / "mutants.toml"
WORKERS = "2"
REACH = 0.9
NOTICED = ("killed", "timeout", "segfault", "caught by type check")
MUTMUT = (sys.executable, "-m", "mutmut")


def outcomes(patterns: Sequence[str]) -> dict[str, str]:
    """By mutant what became of it, from a run that starts anew: the tests may have changed."""
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    subprocess.run([*MUTMUT, "run", "--max-children", WORKERS, *patterns], cwd=ROOT, check=True)
    lines = subprocess.run([*MUTMUT, "results", "--all", "true"], cwd=ROOT, check=True, capture_output=True, text=True)
    found = dict(line.strip().rsplit(": ", 1) for line in lines.stdout.splitlines() if ": " in line)
    return {name: became for name, became in found.items() if became != "not checked"}


def reasons() -> dict[str, str]:
    """Why nobody has to notice, by mutant."""
    content = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    return {name: entry["reason"] for entry in content.get("survivors", []) for name in entry["mutants"]}


def module(mutant: str) -> str:
    """Where a mutant is: its name without that of the function."""
    return mutant.removeprefix("specbench_kit.").rpartition(".")[0]


def table(found: Mapping[str, str]) -> dict[str, float]:
    """Print how many of each module's mutants were noticed; returns the shares."""
    every = Counter(map(module, found))
    noticed = Counter(module(name) for name, became in found.items() if became in NOTICED)
    for name in sorted(every):
        print(f"{name:36} {noticed[name]:5} of {every[name]:5}  {noticed[name] / every[name]:6.1%}")
    print(f"{'all':36} {noticed.total():5} of {every.total():5}  {noticed.total() / every.total():6.1%}")
    return {name: noticed[name] / count for name, count in every.items()}


def main(patterns: Sequence[str]) -> int:
    """The exit code."""
    found, listed = outcomes(patterns), reasons()
    survivors = {name for name, became in found.items() if became not in NOTICED}
    shares = table(found)
    complaints = [
        *(f"survived, and has no reason in {REASONS.name}: {name}" for name in sorted(survivors - set(listed))),
        *(f"listed in {REASONS.name}, but noticed: {name}" for name in sorted(set(listed) & set(found) - survivors)),
    ]
    if not patterns:
        complaints += [
            f"listed in {REASONS.name}, but does not exist: {name}" for name in sorted(set(listed) - set(found))
        ]
        complaints += [f"less than {REACH:.0%} noticed: {name}" for name, share in shares.items() if share < REACH]
    print(*complaints, sep="\n")
    print("python -m mutmut show NAME prints the change" if complaints else "every survivor has its reason")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
