"""The contract of a file format that other tools read or write."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from specbench_kit.core.errors import SkitError
from specbench_kit.core.registry import Registry
from specbench_kit.decoding.records import MAY_BE_UNKNOWN, RequestRecord
from specbench_kit.runs.folder import write_text

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory
    from specbench_kit.traces.trace import RequestTrace

UNKNOWN = dict.fromkeys(MAY_BE_UNKNOWN)
"""The fields of a round that another tool does not record."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """What a file says: one record per request, the name of what decoded them, and when, in ISO 8601, if it says so.

    `notes` are lines on what a reader of the numbers must know.
    """

    method: str
    records: Sequence[RequestRecord]
    started_at: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ForeignTrace:
    """What a file says of acceptance: a trace of every request, without draft statistics or step times.

    `lacks` names what else a header says that there is not.
    """

    requests: "Sequence[RequestTrace]"
    max_draft: int
    lacks: tuple[str, ...] = ()
    draft: str | None = None
    notes: Sequence[str] = ()


class Format(ABC):
    """One file per format: `read` or `read_trace`, `write`, or both."""

    summary: ClassVar[str]
    """One line: what the files hold."""
    tool: ClassVar[str]
    """Whose format it is."""
    dataset: ClassVar[str] = "unnamed"
    """What the prompts are where an import does not name them."""
    gives_traces: ClassVar[bool] = False
    """Whether its files are imported as traces, to be replayed, rather than as runs."""

    def read(self, path: Path) -> ForeignRun:
        """The content of a file; bad content is an error with its line."""
        raise SkitError(
            f"files of {self.tool} cannot be imported, as they do not tell requests apart: import answers of "
            "Spec-Bench (--format spec-bench) or responses of vLLM (--format vllm-responses)"
        )

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        """What a file says of acceptance; `draft` names one of several drafters."""
        raise NotImplementedError

    def write(self, run: "RunDirectory") -> str:
        """The text of the file for a run."""
        raise SkitError(f"runs cannot be exported to {self.tool}")

    def save(self, run: "RunDirectory", out: Path) -> None:
        """Write a run to `out`: a file, or whatever else the tool keeps runs in."""
        write_text(out, self.write(run))


formats: Registry[type[Format]] = Registry(
    "format", "specbench_kit.studies.interchange", group="specbench_kit.interchange"
)
