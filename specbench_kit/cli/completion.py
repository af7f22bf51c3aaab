"""Names with which a shell completes the values of options. Imports nothing heavy: a shell waits for it."""

from collections.abc import Callable, Mapping

KIND_OF: Mapping[str, str] = {
    "--method": "methods",
    "--dataset": "datasets",
    "--deployment": "deployments",
    "--target": "models",
    "--draft": "models",
    "--replay": "traces",
    "--trace": "traces",
    "--system": "systems",
    "--scheduler": "schedulers",
    "--preset": "presets",
    "--software": "software",
    "--profile": "profiles",
    "--estimator-profile": "profiles",
    "names": "experiments",
    "kind": "kinds",
}
"""What `skit list` calls the names that an option or an argument takes."""

Completer = Callable[[str], list[tuple[str, str]]]


def completer_of(shown_name: str) -> Completer | None:
    """Return the function that completes an option's value; None for options that take no names."""
    if shown_name not in KIND_OF:
        return None

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [(name, summary) for name, summary in _names(KIND_OF[shown_name]) if name.startswith(incomplete)]

    return complete


def _names(kind: str) -> list[tuple[str, str]]:
    """Return names with what they stand for."""
    from specbench_kit.cli.listing import KINDS

    if kind == "kinds":
        return [(name, "") for name in KINDS]
    return [(str(entry["name"]), str(entry["summary"])) for entry in KINDS[kind]()]
