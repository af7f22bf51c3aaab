"""Where the numbers of a report come from."""

import shlex
from typing import Any

from specbench_kit.reports.writing.formatting import ABSENT
from specbench_kit.reports.writing.markup import code, fence, folded, table

Fields = dict[str, Any]


def provenance(run: Fields) -> str:
    """Where the numbers come from, to open on a click."""
    models = run.get("models") or {}
    facts = {
        "started": run.get("started_at"),
        "git commit": _commit(run),
        "dataset digest": (run.get("dataset") or {}).get("digest"),
        **{f"{role} hash": (model or {}).get("hash") for role, model in models.items()},
        "seed": (run.get("config") or {}).get("seed"),
        **(run.get("versions") or {}),
    }
    rows = [(name, ABSENT if value is None else code(str(value))) for name, value in facts.items()]
    command = fence(shlex.join(run.get("argv") or []))
    return folded("Provenance", table(["", ""], rows) + f"\n\nCommand:\n\n{command}")


def _commit(run: Fields) -> str | None:
    commit = run.get("git_commit")
    return f"{commit} with uncommitted changes" if commit and run.get("git_dirty") else commit
