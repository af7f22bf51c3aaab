"""Going on with a run that was interrupted: what must be as before, and what the run remembers of it."""

from collections.abc import Mapping, Sequence
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.core.nested import flat

Fields = Mapping[str, Any]

ENVIRONMENT = ("git_commit", "git_dirty", "versions", "platform", "hardware")
"""What `run.json` says of the place that the numbers came from."""


def require_same_environment(name: str, run: Fields, here: Fields) -> None:
    """Refuse to mix numbers of two places in one run, naming what changed."""
    found = environment_changes(run, here)
    if found:
        raise SkitError(
            f"{name} was begun under other conditions ({', '.join(found)}): start it anew without --resume, or mix "
            "the two with --force"
        )


def environment_changes(run: Fields, here: Fields) -> list[str]:
    """`versions.torch 2.11 then, 2.12 now` for everything that is not as it was."""
    before, now = (flat({name: place.get(name) for name in ENVIRONMENT}) for place in (run, here))
    names = dict.fromkeys([*before, *now])
    return [
        f"{name} {_said(before.get(name))} then, {_said(now.get(name))} now"
        for name in names
        if before.get(name) != now.get(name)
    ]


def resumption_entry(here: Fields, done: int) -> dict[str, Any]:
    """What a run remembers of one resumption; `done` requests had finished before it."""
    return {
        "when": here["started_at"],
        "commit": here["git_commit"],
        "dirty": here["git_dirty"],
        "versions": here["versions"],
        "platform": here["platform"],
        "hardware": here["hardware"],
        "threads": here["hardware"]["torch_threads"],
        "done": done,
    }


def environment_of(resumption: Fields) -> dict[str, Any]:
    """A block in the words of `run.json`."""
    names = {"git_commit": "commit", "git_dirty": "dirty"}
    return {name: resumption.get(names.get(name, name)) for name in ENVIRONMENT}


def resumptions(run: Fields) -> Sequence[Fields]:
    """Every time that the run was taken up again, in order."""
    return run.get("resumptions") or ()


def spans_interruption(run: Fields) -> bool:
    """Whether the run's own clock has a gap: under a deployment it is decoded again from its start, and has none."""
    return bool(resumptions(run)) and run.get("time_kind") != "modelled"


def _said(value: object) -> str:
    return str(value)[:12] if isinstance(value, str) and len(value) == 40 else str(value)
