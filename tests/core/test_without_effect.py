"""Options without effect beside others are refused in one line that names them."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.core.without_effect import WithoutEffect, beside, refuse_without_effect, unless

RULES = (
    WithoutEffect(
        ("limit", "sample"),
        beside("trace", "--replay"),
        "a trace has its own prompts; leave out one of them",
    ),
    WithoutEffect(
        ("top_k",), unless("temperature"), "greedy decoding takes the most likely token; give both"
    ),
)


def refused(**given: object) -> str:
    def flag_of(name: str, value: object) -> str:
        return f"--no-{name}" if value is False else f"--{name.replace('_', '-')}"

    try:
        refuse_without_effect(RULES, given, flag_of)
    except SkitError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"trace": "a"}, ""),
        ({"limit": 3, "sample": False}, ""),
        (
            {"trace": "a", "limit": 3},
            "--limit has no effect with --replay: a trace has its own prompts; leave out one ",
        ),
        (
            {"trace": "a", "limit": 3, "sample": False},
            "--limit, --no-sample have no effect with --replay: ",
        ),
        ({"top_k": 3, "temperature": 0.5}, ""),
        (
            {"top_k": 3, "temperature": 0.0},
            "--top-k has no effect without --temperature: greedy decoding takes",
        ),
        ({"top_k": 3}, "--top-k has no effect without --temperature: greedy decoding takes"),
    ],
)
def test_the_line_names_the_options_and_the_case(given: dict[str, object], line: str) -> None:
    refusal = refused(**given)
    assert refusal.startswith(line)
    assert bool(refusal) is bool(line)
