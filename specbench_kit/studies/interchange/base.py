"""The contract of a file format that other tools read or write, and what such a file holds."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import OptionValues
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
    """The run that a file holds: a record per request, the name of the method, and its start in ISO
    8601 if known.

    `notes` are lines that a reader of the numbers must know, `doubts` values that cannot be, and `left_out` counts
    requests by why they are not in it.
    """

    method: str
    records: Sequence[RequestRecord]
    started_at: str | None = None
    config: OptionValues = field(default_factory=dict)
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ForeignTrace:
    """The acceptance that a file holds: a trace of every request, without draft statistics or step
    times.

    `lacks` names what else of a trace's header is missing, and `left_out` counts requests by why they are not in it.
    """

    requests: "Sequence[RequestTrace]"
    max_draft: int
    lacks: tuple[str, ...] = ()
    draft: str | None = None
    notes: Sequence[str] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


class Format(ABC):
    """A file format: it implements `read` or `read_trace`, `write`, or both."""

    summary: ClassVar[str]
    """One line on what the files hold."""
    tool: ClassVar[str]
    """The tool whose format it is."""
    holds: ClassVar[str] = "accepted tokens, without times"
    """What is read of its files, with the units of times."""
    dataset: ClassVar[str] = "unnamed"
    """The name of the prompts if an import does not name them."""
    gives_traces: ClassVar[bool] = False
    """True if its files are imported as traces, which can be replayed, instead of runs."""

    def read(self, path: Path) -> ForeignRun:
        """Return the run that a file holds; SkitError names the line of bad content."""
        raise SkitError(
            f"files of {self.tool} cannot be imported, as they do not tell requests apart: import answers of "
            "Spec-Bench (--format spec-bench) or responses of vLLM (--format vllm-responses)"
        )

    def read_trace(self, path: Path, draft: str | None) -> ForeignTrace:
        """Return the acceptance that a file holds; `draft` names one of several drafters."""
        raise NotImplementedError

    def write(self, run: "RunDirectory") -> str:
        """Return the text of the file for a run."""
        raise SkitError(f"runs cannot be exported to {self.tool}")

    def save(self, run: "RunDirectory", out: Path) -> None:
        """Write a run to `out`: a file, or a folder in which the tool keeps runs."""
        write_text(out, self.write(run))


formats: Registry[type[Format]] = Registry(
    "format", "specbench_kit.studies.interchange", group="specbench_kit.interchange"
)


SLACK = 4
"""Tokens at the end of a prompt that may be cut differently once an answer follows."""


def dialogues(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Return the records of one repeat by prompt id, turns in order.

    The turns of dialogue `d` are named `d/1`, `d/2`, and so on; an id of a single turn may look the
    same, so a second turn must continue the first turn's prompt.
    """
    by_id = {record.request_id: record for record in records}
    by_prompt: dict[str, list[RequestRecord]] = {}
    for record in records:
        name, _, turn = record.request_id.rpartition("/")
        first = by_id.get(f"{name}/1")
        second = by_id.get(f"{name}/2")
        is_turn = False
        if name and turn.isdigit() and first and second:
            # An id may contain a slash of its own, so that the prompts decide.
            start = first.prompt_ids[: max(0, len(first.prompt_ids) - SLACK)]
            is_turn = second.prompt_ids[: len(start)] == start
        if is_turn:
            by_prompt.setdefault(name, []).append(record)
        else:
            by_prompt[record.request_id] = [record]
    for turns in by_prompt.values():
        if len(turns) > 1:
            turns.sort(key=lambda record: int(record.request_id.rpartition("/")[2]))
    return by_prompt
