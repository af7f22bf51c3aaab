"""Resuming an interrupted run: what must be as before, and what the run remembers of it."""

from collections.abc import Sequence

from msgspec import to_builtins

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import flat
from specbench_kit.runs.document import ENVIRONMENT, Resumption, ResumptionFields, RunDescription
from specbench_kit.runs.folder import Defining
from specbench_kit.runs.provenance import Provenance


def require_same_environment(name: str, run: Defining, environment: Provenance) -> None:
    """Raise SkitError if the run `name` was begun with other software or on another machine than
    `environment`.
    """
    changes = environment_changes(run, environment)
    if changes:
        raise SkitError(
            f"{name} was begun under other conditions ({', '.join(changes)}): start it anew without --resume, or mix "
            "the two with --force"
        )


def resumption_changes(run: RunDescription, resumptions: Sequence[Resumption]) -> list[str]:
    """Return a line for every field of the environment that differed when the run was resumed, each
    line once.
    """
    begun = to_builtins(run)
    changes: dict[str, None] = {}
    for resumption in resumptions:
        now = to_builtins(resumption)
        now |= {"git_commit": resumption.commit, "git_dirty": resumption.dirty}
        changes |= dict.fromkeys(environment_changes(begun, now))
    return list(changes)


def environment_changes(run: Defining, environment: Defining) -> list[str]:
    """Return a line such as `versions.torch 2.11 then, 2.12 now` for every field that differs."""
    before = flat({name: run.get(name) for name in ENVIRONMENT})
    after = flat({name: environment.get(name) for name in ENVIRONMENT})
    names = dict.fromkeys([*before, *after])
    return [
        f"{name} {_short(before.get(name))} then, {_short(after.get(name))} now"
        for name in names
        if before.get(name) != after.get(name)
    ]


def resumption_entry(environment: Provenance, done: int) -> ResumptionFields:
    """Return the entry of `resumptions` in `run.json` for a run that is resumed after `done`
    finished requests.
    """
    return {
        "when": environment["started_at"],
        "commit": environment["git_commit"],
        "dirty": environment["git_dirty"],
        "versions": environment["versions"],
        "platform": environment["platform"],
        "hardware": environment["hardware"],
        "threads": environment["hardware"]["torch_threads"],
        "done": done,
    }


def _short(value: object) -> str:
    """Return the text of a value, of a git commit its first twelve digits."""
    return str(value)[:12] if isinstance(value, str) and len(value) == 40 else str(value)
