"""JSON and TOML as typed records: what is wrong is said with the field's name."""

from typing import ClassVar, Literal

import pytest
from msgspec import Struct

from specbench_kit.core.typed_json import Count, Number, convert, decode, parse, stated


class Layer(Struct, forbid_unknown_fields=True):
    """A part of a document."""

    rows: Count


class ProfileDocument(Struct):
    """A document."""

    seconds: Number
    name: str | None = None
    kind: Literal["draft", "target"] = "draft"
    layers: list[Layer] = []


def test_fields_of_a_newer_kit_are_passed_over() -> None:
    assert decode(
        ProfileDocument, b'{"seconds": 1, "layers": [{"rows": 3}], "mood": 2}'
    ) == ProfileDocument(1.0, layers=[Layer(3)])
    assert decode(ProfileDocument, '{"seconds": 1, "name": "\\ud800"}') == ProfileDocument(
        1.0, "\ud800"
    )
    assert convert(ProfileDocument, {"seconds": 1.5, "name": "x"}) == ProfileDocument(1.5, "x")


def test_a_number_of_any_length_is_text_and_does_no_harm_where_nobody_reads_it() -> None:
    digits = "7" * 5000
    assert decode(ProfileDocument, f'{{"seconds": 1, "mood": {digits}}}') == ProfileDocument(1.0)
    assert parse(f"[1, {digits}]") == [1, digits]
    with pytest.raises(ValueError, match="rows must be a whole number"):
        decode(ProfileDocument, f'{{"seconds": 1, "layers": [{{"rows": {digits}}}]}}')


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, r"^seconds is missing$"),
        ([], r"^the document must be an object, not \[\]$"),
        ({"seconds": "1"}, '^seconds must be a number, not "1"$'),
        ({"seconds": float("nan")}, "^seconds must be a number > "),
        ({"seconds": float("inf")}, "^seconds must be a number < "),
        ({"seconds": True}, "^seconds must be a number, not true$"),
        ({"seconds": 1, "name": 2}, "^name must be text or null, not 2$"),
        ({"seconds": 1, "kind": "old"}, '^kind must be "draft" or "target", not "old"$'),
        (
            {"seconds": 1, "layers": [{"rows": 1}, {"rows": 1.5}]},
            r"^layers\[1\].rows must be a whole number, not 1.5$",
        ),
        (
            {"seconds": 1, "layers": [{"rows": -1}]},
            r"^layers\[0\].rows must be a whole number >= 0, not -1$",
        ),
        (
            {"seconds": 1, "layers": [{"rows": 1, "columns": 1}]},
            r"^layers\[0\].columns is unknown; known: rows$",
        ),
        (
            {"seconds": 1, "layers": [{"row": 1}]},
            r"^layers\[0\].row is unknown \(did you mean 'rows'\?\); known: rows$",
        ),
    ],
)
def test_a_wrong_field_is_named(document: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(ProfileDocument, document)


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", '{"seconds": NaN}', '{"seconds": 1e999}', '{"seconds": 1} 2']
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^.+\Z"):
        decode(ProfileDocument, text)


def test_endless_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        decode(dict[str, object], '{"a":' * 100_000)


class Part(Struct):
    """A part of a file that states its size always."""

    ALWAYS: ClassVar = ("size",)
    name: str | None = None
    size: int | None = None
    parts: list["Part"] | None = None


def test_what_is_not_known_is_left_out_of_a_file_unless_it_is_always_stated() -> None:
    whole = Part(name="a", parts=[Part(size=0), Part()])
    parts = [{"size": 0}, {"size": None}]
    assert stated({"models": {"target": whole}, "none": None}) == {
        "models": {"target": {"name": "a", "size": None, "parts": parts}},
        "none": None,
    }
