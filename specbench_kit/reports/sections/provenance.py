"""The section on where the numbers of a report come from."""

import shlex

from specbench_kit.reports.document import Blocks, CodeBlock, Folded, Paragraph, code, facts
from specbench_kit.reports.stored import RunFile
from specbench_kit.reports.writing.formatting import ABSENT


def provenance(run: RunFile) -> Blocks:
    """Return commit, digests, seed, versions and command of a run, to open on a click."""
    commit = run.get("git_commit")
    values = {
        "started": run.get("started_at"),
        "git commit": f"{commit} with uncommitted changes" if commit and run.get("git_dirty") else commit,
        "dataset digest": (run.get("dataset") or {}).get("digest"),
        **{f"{role} hash": (model or {}).get("hash") for role, model in (run.get("models") or {}).items()},
        "seed": (run.get("config") or {}).get("seed"),
        **(run.get("versions") or {}),
    }
    rows = [(name, ABSENT if value is None else code(str(value))) for name, value in values.items()]
    command = CodeBlock(shlex.join(run.get("argv") or []))
    return [Folded("Provenance", [facts(rows), Paragraph("Command:"), command])]
