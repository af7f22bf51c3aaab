"""A grammar's state along a text: what may follow, below any path of a draft, and where an output ends."""

from itertools import product

import pytest

pytest.importorskip("llguidance")

from tiny_grammars import END, TOKENS, allowed_by, constraint, grammars
from tiny_tokenizers import byte_pairs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Grammars, GrammarSpec, parse_constraint, schema_spec

A, B, C, D, _, AB = range(len(TOKENS))
TEXTS = [f"a{middle}d" for middle in ("", "b", "c", "bb", "bc", "cb", "cc")]
REGEX = "regex:a[bc]{0,2}d"


def test_after_every_path_exactly_what_leads_to_a_text_may_follow() -> None:
    """In any order of paths, so that what one left behind would show in the next."""
    state = constraint(REGEX).state()
    paths = [path for length in range(5) for path in product(range(len(TOKENS)), repeat=length)]
    reached = 0
    for path in (*paths, *reversed(paths)):
        possible = all(path[i] in allowed_by(TEXTS, path[:i]) for i in range(len(path)))
        allowed = state.allowed(path)
        if not possible or END in path:
            assert allowed is None
        else:
            reached += 1
            assert allowed is not None
            assert allowed.nonzero()[0].tolist() == allowed_by(TEXTS, path)
    assert reached > 20


def test_committed_tokens_are_the_beginning_of_every_path() -> None:
    state = constraint(REGEX).state()
    state.allowed([AB, C, D])
    state.advance([AB])
    assert [bool(state.allows([], token)) for token in range(6)] == [0, 1, 1, 1, 0, 0]
    state.advance([C, D])
    assert [bool(state.allows([], token)) for token in range(6)] == [0, 0, 0, 0, 1, 0]
    state.advance([END])
    assert state.allowed([]) is None
    with pytest.raises(SkitError, match="refused a token"):
        constraint(REGEX).state().advance([B])


def test_what_is_below_a_forbidden_token_is_not_judged() -> None:
    state = constraint(REGEX).state()
    assert not state.allows([], C)
    assert state.allows([C], C)
    assert not state.allows([], 4_000)


def test_forced_tokens_are_those_without_an_alternative() -> None:
    state = constraint("regex:a(b|c)dcd").state()
    assert state.forced([]) == []  # `a` or `ab`
    assert state.forced([A, C])[:1] == [D]
    assert state.forced([A, C, D, C, D]) == [END]
    assert state.forced([B]) == []


def test_an_output_is_judged_anew() -> None:
    grammar = constraint(REGEX)
    assert grammar.outcome([AB, D, END]) == "valid"
    assert grammar.outcome([AB, D]) == "valid"
    assert grammar.outcome([AB]) == "cut"
    assert grammar.outcome([AB, END]) == "invalid"
    assert grammar.outcome([D]) == "invalid"
    assert grammar.outcome([A, D, END, A]) == "invalid"


def test_a_place_without_a_token_is_an_error_of_one_line() -> None:
    state = constraint("regex:aé").state()
    with pytest.raises(SkitError, match="no token of the vocabulary goes on"):
        state.allowed([A])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("regex:a(b", "--constraint: not a valid regex: unclosed group"),
        ("lark:start: b", '--constraint: not a valid lark: at 1(8): unknown name: "b"'),
        ('json-schema:{"type":"foo"}', "--constraint: not a valid json-schema: Invalid type: foo"),
    ],
)
def test_a_wrong_grammar_is_named_in_one_line(text: str, says: str) -> None:
    with pytest.raises(SkitError) as refused:
        constraint(text)
    assert str(refused.value) == says


def test_a_model_without_an_end_token_is_refused() -> None:
    with pytest.raises(SkitError, match="no end token"):
        Grammars(byte_pairs([], ["a"]), [])


def test_a_grammar_is_compiled_once() -> None:
    assert constraint(REGEX) is grammars().compile(parse_constraint(REGEX))


def test_a_spec_holds_the_grammar_and_no_file(tmp_path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{ "type":\n "boolean" }')
    lark = tmp_path / "grammar.lark"
    lark.write_text('start: "a"+\n')
    by_file = parse_constraint(f"json-schema:{schema}")
    assert by_file.spec == 'json-schema:{"type":"boolean"}'
    assert by_file == schema_spec({"type": "boolean"}) == parse_constraint(by_file.spec)
    grammar = parse_constraint(f"lark:{lark}")
    assert grammar == GrammarSpec("lark", 'start: "a"+\n') == parse_constraint(grammar.spec)
    assert parse_constraint("dataset").spec == "dataset"
    hashes = {by_file.hash, grammar.hash, parse_constraint("regex:a").hash}
    assert len(hashes) == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("grammar:a", "--constraint takes json-schema:FILE"),
        ("regex:", "--constraint takes json-schema:FILE"),
        ("json-schema:nowhere.json", "cannot read 'nowhere.json': No such file"),
        ("lark:nowhere.lark", "cannot read 'nowhere.lark': No such file"),
        ('json-schema:{"a"', "not valid JSON"),
    ],
)
def test_what_names_no_grammar_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(SkitError, match=r"^[^\n]+$") as refused:
        parse_constraint(text)
    assert says in str(refused.value)
