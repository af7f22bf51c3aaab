"""Resuming an interrupted run: what must be as before, and what the run remembers of it."""

from collections.abc import Sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import JsonObject, flat

ENVIRONMENT = ("git_commit", "git_dirty", "versions", "platform", "hardware")
"""The fields of `run.json` that describe the software and the machine."""


def require_same_environment(name: str, run: JsonObject, environment: JsonObject) -> None:
    """Raise SkitError if the run `name` was begun with other software or on another machine than `environment`."""
    changes = environment_changes(run, environment)
    if changes:
        raise SkitError(
            f"{name} was begun under other conditions ({', '.join(changes)}): start it anew without --resume, or mix "
            "the two with --force"
        )


def environment_changes(run: JsonObject, environment: JsonObject) -> list[str]:
    """Return a line such as `versions.torch 2.11 then, 2.12 now` for every field that differs."""
    before, after = (flat({name: source.get(name) for name in ENVIRONMENT}) for source in (run, environment))
    names = dict.fromkeys([*before, *after])
    return [
        f"{name} {_short(before.get(name))} then, {_short(after.get(name))} now"
        for name in names
        if before.get(name) != after.get(name)
    ]


def resumption_entry(environment: JsonObject, done: int) -> dict[str, object]:
    """Return the entry of `resumptions` in `run.json` for a run that is resumed after `done` finished requests."""
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


def environment_of(resumption: JsonObject) -> dict[str, object]:
    """Return the environment of an entry of `resumptions`, with the names of `run.json`."""
    names = {"git_commit": "commit", "git_dirty": "dirty"}
    return {name: resumption.get(names.get(name, name)) for name in ENVIRONMENT}


def resumptions(run: JsonObject) -> Sequence[JsonObject]:
    """Return an entry for every time that the run was resumed, in order."""
    return run.get("resumptions") or ()


def spans_interruption(run: JsonObject) -> bool:
    """Return True if the run's clock has a gap, so that nothing may be divided by its makespan.

    A run on modelled time is decoded again from its start when it is resumed, and has no gap.
    """
    return bool(resumptions(run)) and run.get("time_kind") != "modelled"


def _short(value: object) -> str:
    """Return the text of a value, of a git commit its first twelve digits."""
    return str(value)[:12] if isinstance(value, str) and len(value) == 40 else str(value)
