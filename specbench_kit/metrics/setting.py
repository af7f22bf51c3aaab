"""A run's settings in few words: its method, its sampling, its deployment."""

from specbench_kit.core.typed_json import flat
from specbench_kit.runs.deployment import Link
from specbench_kit.runs.document import RunConfig, RunDescription

FEW = 1
"""Number of options in a label, unless more were given: tables and legends have little room."""


def method_label(run: RunDescription) -> str:
    """Return a label such as `fixed-k (k=4)`: the given options and, up to a few, the others that
    are set.

    A run whose resolved options are not known is labelled by its spec.
    """
    spec = str(run.method)
    options = run.options
    if not options:
        return spec
    name, _, tail = spec.partition(":")
    given_names = [item.partition("=")[0] for item in tail.split(",") if item]
    set_names = [
        key
        for key, value in options.items()
        if key not in given_names and value not in (None, False)
    ]
    chosen = {*given_names, *set_names[: max(0, FEW - len(given_names))]}
    shown = [f"{key}={_text(value)}" for key, value in options.items() if key in chosen]
    return f"{name} ({', '.join(shown)})" if shown else name


def describe_options(run: RunDescription) -> str:
    """Return every option of the method with its value, in one line; empty if the run does not
    say.
    """
    return ", ".join(f"{key}={_text(value)}" for key, value in (run.options or {}).items())


def describe_inputs(run: RunDescription) -> str:
    """Return what the method was prepared with, such as predictor, threshold or profile, by dotted
    name.
    """
    return ", ".join(f"{name}={_text(value)}" for name, value in flat(run.uses).items())


def sampling_sentence(config: RunConfig) -> str:
    """Return `greedy`, or the sampling parameters that are set."""
    if config.temperature is None:
        return "sampling not stated"
    if not config.temperature:
        return "greedy"
    top_p = f", top-p {config.top_p:g}" if config.top_p else ""
    top_k = f", top-k {config.top_k}" if config.top_k else ""
    return f"temperature {config.temperature:g}{top_p}{top_k}, seed {config.seed}"


STREAMED = "AR at the server, streamed"
"""Plain decoding across a link: the target decodes by itself, and only the first token waits for
the link.
"""


def plain_decoding(run: RunDescription) -> str | None:
    """Return how the run's baseline decodes across its link; None if there is no link."""
    if run.server:
        return STREAMED
    link = run.deployment.link if run.deployment else Link()
    crosses = link.rtt_s or link.jitter_s or link.up_bytes_per_s or link.down_bytes_per_s
    return STREAMED if crosses else None


def _text(value: object) -> str:
    """Return a value as a spec writes it."""
    if isinstance(value, list):
        return "-".join(map(_text, value))
    if value is None:
        return "none"
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
