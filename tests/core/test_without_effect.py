"""Options without effect beside others are refused in one line that names them."""

from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_type_hints

import pytest

from specbench_kit.cli.commands import commands
from specbench_kit.core.errors import SkitError
from specbench_kit.core.option import FIRST, First, Option, WithoutEffect, options_in
from specbench_kit.core.without_effect import beside, refuse_without_effect, unless

REPLAYED = WithoutEffect(
    beside("trace", "--replay"), "a trace has its own prompts; leave out one of them"
)
GREEDY = WithoutEffect(
    unless("temperature"), "greedy decoding takes the most likely token; give both"
)
Limit = Annotated[int, Option("Prompts.")]


@dataclass
class Prompts:
    sample: Annotated[bool, Option("Use a sample.")] = True


@dataclass
class Settings:
    limit: Annotated[Limit, FIRST, REPLAYED] = 1
    top_k: Annotated[int, Option("Top-k."), GREEDY] = 0
    seed: Annotated[int, Option("Seed.")] = 0


OPTIONS = {field.name: option for field, _, option in options_in(Settings)}
OPTIONS |= {
    field.name: option.beside(field.name, [REPLAYED]) for field, _, option in options_in(Prompts)
}


def refused(**given: object) -> str:
    def flag_of(name: str, value: object) -> str:
        return f"--no-{name}" if value is False else f"--{name.replace('_', '-')}"

    try:
        refuse_without_effect(OPTIONS, given, flag_of)
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


def test_a_mark_is_about_the_options_that_it_names_and_leaves_the_shared_option_alone() -> None:
    assert OPTIONS["limit"].first
    assert not get_args(Limit)[1].first
    assert OPTIONS["seed"] == Option("Seed.")
    marks = [FIRST.of("seed"), REPLAYED.of("limit", "top_k")]
    seed = OPTIONS["seed"].beside("seed", marks)
    assert (seed.first, seed.without_effect) == (True, ())
    assert [rule.case for rule in OPTIONS["top_k"].beside("top_k", marks).without_effect] == [
        GREEDY.case,
        REPLAYED.case,
    ]


@pytest.mark.parametrize("command", commands.all())
def test_every_mark_of_a_command_names_options_that_there_are(command: str) -> None:
    function: Any = commands.get(command).load()
    for annotation in get_type_hints(function, include_extras=True).values():
        for mark in getattr(annotation, "__metadata__", ()):
            if isinstance(mark, First | WithoutEffect) and mark.options:
                (kind,) = get_args(annotation)[:1]
                settings = get_args(kind)[0] if get_args(kind) else kind
                names = {field.name for field, _, _ in options_in(settings)}
                assert set(mark.options) <= names
