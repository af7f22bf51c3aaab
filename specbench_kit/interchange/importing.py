"""From a file of another tool to a run directory, and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from specbench_kit.errors import SkitError
from specbench_kit.interchange.base import Found, formats
from specbench_kit.option import MODELS, RUN, Option
from specbench_kit.runs.folder import write_text

if TYPE_CHECKING:
    from specbench_kit.bench.conclusion import Conclusion
    from specbench_kit.runs.directory import RunDirectory

Fields = dict[str, Any]

CONFIG = ("max_new_tokens", "batch_size", "temperature", "top_p", "top_k", "seed", "limit", "device", "dtype")
MODEL: Mapping[str, None] = dict.fromkeys(("name", "hash", "parameters"))


@dataclass(frozen=True, slots=True)
class Names:
    """What a file does not say, or says in other words; None leaves it as it is."""

    method: Annotated[str | None, Option("What to call the method; as in the file if left out.", RUN)] = None
    dataset: Annotated[str | None, Option("What the prompts are.", RUN)] = None
    target: Annotated[str | None, Option("Name of the target.", MODELS)] = None
    draft: Annotated[str | None, Option("Name of the draft model.", MODELS)] = None


def import_file(
    path: Path, name: str, baseline: Path | None, names: Names, out: Path, argv: tuple[str, ...]
) -> "Conclusion":
    """Make a run directory of a file and, beside it, the file of the autoregressive baseline."""
    from specbench_kit.bench.conclusion import Conclusion, write_report
    from specbench_kit.runs.directory import RunDirectory

    form = formats.get(name)()
    found = form.read(path)
    plain = form.read(baseline) if baseline else None
    run = RunDirectory.create(out, _describe(name, found, plain, path, names, argv))
    for record in found.records:
        run.append(record)
    for record in plain.records if plain else ():
        run.append_baseline(record)
    conclusion = Conclusion(run, _summarise(run))
    write_report(conclusion)
    run.write_summary(conclusion.summary)
    return conclusion


def export_run(path: Path, name: str, out: Path) -> None:
    """Write a run directory as a file of that format."""
    from specbench_kit.runs.directory import RunDirectory

    form, run = formats.get(name)(), RunDirectory.find(path)
    if not run.records():
        raise SkitError(f"{run.path / 'requests.jsonl'} holds no finished request: there is nothing to export")
    write_text(out, form.write(run))


def _describe(name: str, found: Found, plain: Found | None, path: Path, names: Names, argv: tuple[str, ...]) -> Fields:
    """The content of `run.json`: null is what the tool does not say."""
    from specbench_kit.runs import provenance

    form, here = formats.get(name), provenance.collect(argv)
    prompts = {record.request_id for record in found.records}
    dataset = {"name": names.dataset or form.dataset, "source": "imported", "location": path.name, "digest": None}
    return {
        "method": names.method or found.method,
        "dataset": {**dataset, "total": None, "count": len(prompts)},
        "models": {"target": {**MODEL, "name": names.target}, "draft": {**MODEL, "name": names.draft}},
        "config": {**dict.fromkeys(CONFIG), **found.config, "repeats": _repeats(found), "baseline": plain is not None},
        "time_kind": "measured",
        "requests": len(found.records),
        "sample_reason": None,
        "imported": {
            "tool": form.tool,
            "format": name,
            "file": path.name,
            "sha256": provenance.hash_file(path),
            "at": here["started_at"],
            "by": {name: here[name] for name in ("argv", "git_commit", "git_dirty", "versions")},
            "notes": list(found.notes),
        },
        "started_at": found.started_at,
        **dict.fromkeys(("argv", "git_commit", "git_dirty", "versions", "platform", "hardware")),
    }


def _repeats(found: Found) -> int:
    return 1 + max(record.repeat for record in found.records)


def _summarise(run: "RunDirectory") -> Fields:
    from specbench_kit.metrics.summary import summarise_run

    records = run.records()
    failed = sum(record.finish_reason == "error" for record in records)
    return {
        "method": run.run["method"],
        "partial": False,
        "requests": {"planned": len(records), "finished": len(records) - failed, "failed": failed},
        "overlaps": False,
        **summarise_run(records, run.baseline_records() or None, None),
        "pipeline": None,
        "lossless": None,
    }
