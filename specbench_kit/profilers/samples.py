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
    """The seconds of each (configuration, run), which are on disk at once."""

    path: Path
    seconds: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @classmethod
    def open(cls, path: Path) -> "Samples":
        """Return the samples in a file, which is made if it is missing; raise SkitError for a damaged line."""
        # The last line has no end if the process was killed while writing it; it is dropped.
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        samples = cls(path)
        for number, line in enumerate(lines[1:], 2):
            try:
                name, *_, run, _, seconds = line.split(",")
                samples.seconds.setdefault((name, int(run)), []).append(float(seconds))
            except ValueError as error:
                raise SkitError(f"{path}:{number}: not a timing; remove the line and use --resume") from error
        samples._write("\n".join([HEADER, *lines[1:]]) + "\n", "w")
        return samples

    def add(self, configuration: Configuration, run: int, seconds: Sequence[float]) -> None:
        """Store the repeated timings of one configuration in one run."""
        rows = " ".join(f"{new}/{cached}" for new, cached in configuration.rows)
        start = f"{configuration.name},{configuration.part},{configuration.regime},{rows},{run}"
        self._write("".join(f"{start},{repeat},{value:.9f}\n" for repeat, value in enumerate(seconds)), "a")
        self.seconds[configuration.name, run] = list(seconds)

    def runs(self) -> dict[str, list[list[float]]]:
        """Return the timings of each run, by configuration."""
        runs: dict[str, list[list[float]]] = defaultdict(list)
        for (name, _), seconds in sorted(self.seconds.items()):
            runs[name].append(seconds)
        return dict(runs)

    def _write(self, text: str, mode: str) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            reason = error.strerror or error
            raise SkitError(f"cannot write {self.path}: {reason}; make room, then go on with --resume") from error
