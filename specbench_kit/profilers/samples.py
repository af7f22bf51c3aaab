"""Raw timings in a CSV file, one line each, appended as they are made."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specbench_kit.core.errors import SkitError
from specbench_kit.profilers.workload import Configuration

HEADER = "configuration,part,regime,rows,run,repeat,seconds"
"""`rows` are the requests of the batch, each as new/cached tokens."""


@dataclass
class Samples:
    """Seconds of each (configuration, run), kept on disk; reading drops a line that a kill cut short."""

    path: Path
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Samples":
        """The samples in a file, which is made where it is missing."""
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        samples = cls(path)
        for number, line in enumerate(lines[1:], 2):
            samples._take(line, f"{path}:{number}")
        samples._write("\n".join([HEADER, *lines[1:]]) + "\n", "w")
        return samples

    def add(self, configuration: Configuration, run: int, seconds: Sequence[float]) -> None:
        """Keep the repeated timings of one configuration in one run."""
        rows = " ".join(f"{new}/{cached}" for new, cached in configuration.rows)
        start = f"{configuration.name},{configuration.part},{configuration.regime},{rows},{run}"
        self._write("".join(f"{start},{repeat},{value:.9f}\n" for repeat, value in enumerate(seconds)), "a")
        self.seconds[configuration.name, run] = list(seconds)

    def runs(self) -> dict[str, list[list[float]]]:
        """By configuration, the timings of each of its runs."""
        found: dict[str, list[list[float]]] = defaultdict(list)
        for (name, _), seconds in sorted(self.seconds.items()):
            found[name].append(seconds)
        return dict(found)

    def _take(self, line: str, place: str) -> None:
        try:
            name, *_, run, _, seconds = line.split(",")
            self.seconds.setdefault((name, int(run)), []).append(float(seconds))
        except ValueError as error:
            raise SkitError(f"{place}: not a timing; remove the line and use --resume") from error

    def _write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            reason = error.strerror or error
            raise SkitError(f"cannot write {self.path}: {reason}; make room, then go on with --resume") from error
