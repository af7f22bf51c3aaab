"""What a server takes for a grammar, which session keeps it, and how outputs under one are scored again."""

import asyncio
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("llguidance")

import torch
from live_server import (
    CALLER,
    CAPACITY,
    TARGET,
    decode_here,
    decode_remotely,
    generate_remotely,
    make_server,
    serving,
)
from offline_server import PROMPT, ask, device, offline, verify
from test_kinds_of_servers import engine_server, skit_server
from tiny_grammars import END, PIECES, TOKENS, compiler, constraint
from tiny_models import GREEDY, make_requests, make_runner, outputs, random_prompts
from tiny_tokenizers import byte_pairs

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Constraint, Grammars, GrammarSpec, parse_constraint
from specbench_kit.decoding.drafter import Draft
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import RequestRandom
from specbench_kit.decoding.session import Request, Session
from specbench_kit.decoding.tree import TokenTree
from specbench_kit.live.connection import Connection
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.scoring import read_evidence
from specbench_kit.live.server import grammars as server_grammars
from specbench_kit.live.server.grammars import MOST_BYTES, ServerGrammars, fault_within
from specbench_kit.live.server.service import DeviceStream
from specbench_kit.live.wire import Status, Up
from specbench_kit.live.wire_verifier import ScoringJudge, catch_up, try_grammar
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.evidence import GreedyChoice, OutputEvidence, gather_evidence
from specbench_kit.metrics.shapes import RecomputedLogits

REGEX = "regex:ac[bc]{2,9}dcca[cd]bbd([bc]|dc){1,6}dd"
ENDS = frozenset([END])
ENDLESS = "lark:start: A\nA: " + " & ".join(f"/(.*{c}.{{12}}.*{c})*/" for c in "abcdefghijkl")
"""Keeps the library busy for minutes."""
A, B, C, D = range(4)


class _AnyText(GrammarSpec):
    """Any text in place of that of a grammar."""

    def __init__(self, spec: str) -> None:
        object.__setattr__(self, "kind", spec)
        object.__setattr__(self, "text", "")


def test_a_wrong_grammar_is_refused_in_one_line(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text("{}")
    texts = (
        *(REGEX, "regex:a(", "lark:start: b", f"json-schema:{schema}", "grammar:a"),
        *("regex:" + "a" * MOST_BYTES, 'json-schema:{"a":' * 2000, "lark:start: " + "(" * 30_000),
    )
    with serving(make_server(grammars=ServerGrammars(compiler))) as (service, address):
        connection = Connection(address, CALLER)
        said = [try_grammar(connection, _AnyText(text)) for text in texts]
        assert said == [try_grammar(connection, _AnyText(text)) for text in texts]
        assert len(service.handler.sessions) == 0
    reasons = [reason.removeprefix("BROKEN_GRAMMAR: ") for reason in said]
    assert reasons[:3] == [
        "",
        "not a valid regex: unclosed group",
        'not a valid lark: at 1(8): unknown name: "b"',
    ]
    # A device's text opens no file of the server.
    assert reasons[3].startswith("a JSON schema is not valid JSON: ")
    assert reasons[4] == "a grammar begins with json-schema, regex, lark and a colon"
    assert reasons[5] == f"a text of {MOST_BYTES + 6} bytes; this server takes {MOST_BYTES}"
    assert all(len(reason.splitlines()) == 1 for reason in reasons[1:])


def test_a_grammar_that_never_compiles_is_given_up_while_others_decode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_grammars, "LONGEST_COMPILATION_S", 4.0)
    said: list[str] = []
    requests = make_requests(random_prompts([5], 64), 12)
    with serving(make_server(grammars=ServerGrammars(compiler))) as (_, address):
        attacker = Connection(address, CALLER)
        attack = Thread(target=lambda: said.append(try_grammar(attacker, _AnyText(ENDLESS))))
        attack.start()
        records = decode_remotely(
            parse_method("fixed-k:k=3"), Connection(address, CALLER), requests
        )
        assert attack.is_alive()
        attack.join(30)
    assert said == ["BROKEN_GRAMMAR: it takes longer than 4 seconds to compile"]
    assert outputs(records) == outputs(decode_here(parse_method("fixed-k:k=3"), requests))


def test_a_grammar_that_ends_the_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check runs in a process of its own, which may crash without harm."""
    assert fault_within(REGEX, 30.0) == ""
    monkeypatch.setattr(server_grammars.sys, "executable", "false")
    assert fault_within(REGEX, 30.0) == "it cannot be compiled"


def under(stream: DeviceStream, grammar: str, **more: Any) -> Any:
    """Open a session under a grammar as a stream's reader does."""
    frame = {"session": "s", "prompt": PROMPT, "grammar": grammar, "max_tokens": 9, **more}
    asyncio.run(stream._handler.grammars.prepare(Up(open=frame)))
    return ask(stream, open=frame)


def begun(**more: Any) -> DeviceStream:
    """Return the stream of a device whose session has three tokens under `regex:ac[bc]...`."""
    stream = device(offline(grammars=ServerGrammars(compiler)))
    under(stream, REGEX, output=[A, C, B], **more)
    return stream


@pytest.mark.parametrize(
    ("change", "is_resumed"),
    [
        ({}, True),
        ({"output": [A, C]}, True),
        ({"grammar": "regex:ac[bc]{3}"}, False),
        ({"grammar": ""}, False),
        ({"skip_forced": True}, False),
    ],
)
def test_a_session_is_resumed_under_its_own_grammar_alone(
    change: dict[str, Any], is_resumed: bool
) -> None:
    stream = begun()
    before = stream.sessions["s"]
    frame = {"grammar": REGEX, "output": [A, C, B], **change}
    opened = under(stream, **frame)
    assert isinstance(opened, messages.Opened)
    session = stream.sessions["s"]
    assert (session is before) is is_resumed
    assert (session.text.grammar is None) is (frame["grammar"] == "")


@pytest.mark.parametrize(
    ("frame", "says"),
    [
        ({"output": [B]}, "the output does not follow it: the grammar refused a token"),
        ({"output": [A, C, B], "max_tokens": 2}, "an output of 3 tokens, and max_tokens is 2"),
        ({"max_tokens": 0}, "an output of 0 tokens, and max_tokens is 0"),
        ({"skip_forced": True, "layers": [1]}, "goes with no hidden states"),
        ({"skip_forced": True, "grammar": ""}, "skip_forced needs a grammar"),
        ({"grammar": "regex:a", "output": [A, END, A]}, "the output goes on behind its end"),
    ],
)
def test_a_session_that_contradicts_its_grammar_is_refused(
    frame: dict[str, Any], says: str
) -> None:
    stream = device(offline(grammars=ServerGrammars(compiler)))
    refused = under(stream, **{"grammar": REGEX, **frame})
    assert (refused.status, len(stream._handler.sessions)) == (Status.BROKEN_GRAMMAR, 0)
    assert says in refused.reason
    known_none = device(offline())
    assert under(known_none, REGEX).reason == "this server knows no grammars"


def test_forced_tokens_join_the_servers_text_behind_what_it_verified() -> None:
    stream = device(offline(grammars=ServerGrammars(compiler)))
    under(stream, "regex:[ab]cdc[ab]d", skip_forced=True, max_tokens=20)
    session = stream.sessions["s"]
    for number, joined in ((1, 3), (2, 2)):  # c, d and c, then d and the end
        base = len(session.text.tokens)
        stream.receive(Up(draft={"session": "s", "round": number, "base": base}))
        verify(stream._handler)
        verdict = stream.answers.get_nowait().verdict  # type: ignore[union-attr]
        assert (verdict.forced, verdict.bonus in (A, B)) == (joined, True)
        assert len(session.text.tokens) == base + 1 + joined
        # They are in no KV: the next round computes them behind the token before.
        assert session.cached == base
    assert session.text.finish_reason == "eos"
    written = [TOKENS[token] for token in session.text.tokens[len(PROMPT) :]]
    assert written[1:4] + written[5:] == ["c", "d", "c", "d", "<end>"]


class _OtherGrammars(Grammars):
    """Compiles another grammar than the one that is asked for."""

    def compile(self, spec: GrammarSpec, where: str = "") -> Constraint:
        return super().compile(parse_constraint("regex:[abcd]{23}"), where)


def test_ends_that_force_other_tokens_end_the_run() -> None:
    """As would two versions of the library that disagree."""
    other = ServerGrammars(lambda: _OtherGrammars(byte_pairs([("a", "b")], PIECES), [END]))
    requests = [
        replace(one, constraint=constraint("regex:[abcd]cc[abcd]{20}"))
        for one in make_requests(random_prompts([5], 64), 30)
    ]
    how: dict[str, Any] = {"eos_ids": ENDS, "skip_forced": True}
    method = parse_method("fixed-k:k=1,drafter=suffix")
    says = "the server's grammar forces other tokens than this device's: install the same version"
    with serving(make_server(grammars=other)) as (_, address), pytest.raises(SkitError, match=says):
        decode_remotely(method, Connection(address, CALLER), requests, **how)


def test_tokens_that_a_device_catches_up_on_are_taken_with_the_forced_ones() -> None:
    request = Request("s", "", tuple(PROMPT), 9, constraint=constraint("regex:[ab]cd[cd]{2}"))
    text = Session(
        request, RequestRandom(0, "s"), ENDS, 0.0, RequestRecord("s", "", []), skip_forced=True
    )
    draft = Draft(text, TokenTree(PROMPT[-1]))
    ahead = [A, C, D, D]
    assert (catch_up(draft, [], ahead).tokens, ahead) == ([A], [D])
    with pytest.raises(SkitError, match="forces other tokens than this device's"):
        catch_up(draft, [], [A, C])


def test_only_the_latest_grammars_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_grammars, "MOST_GRAMMARS", 2)
    made = []

    def make() -> Any:
        made.append(compiler())
        return made[0]

    stream = device(offline(grammars=ServerGrammars(make)))
    for number in (1, 2, 3):
        under(stream, f"regex:a{{{number}}}")
    assert [spec.text for spec in made[0]._constraints] == ["a{2}", "a{3}"]
    assert len(made) == 1
    refused = ask(stream, open={"session": "t", "prompt": PROMPT, "grammar": "regex:a{1}"})
    assert (refused.status, refused.retry_ms > 0) == (Status.OVERLOADED, True)


def test_servers_that_cannot_mask_are_refused_in_one_line() -> None:
    with pytest.raises(SkitError, match="vllm://host:1 verifies without the kit's masks: name a"):
        engine_server().require_masking()
    with pytest.raises(SkitError, match=r"host:1 .* masks by no grammar: install this version"):
        skit_server().require_masking()
    skit_server(grammar_bytes=9).require_masking()
    with pytest.raises(SkitError, match="at most 9 bytes, and this one has 11: make it smaller"):
        skit_server(grammar_bytes=9).require_grammars([parse_constraint("regex:abcde")])


def test_an_output_is_scored_under_its_grammar_in_the_shapes_that_it_had() -> None:
    requests = [
        replace(one, constraint=constraint(REGEX))
        for one in make_requests(random_prompts([5], 64), 30)
    ]
    how: dict[str, Any] = {"eos_ids": ENDS, "skip_forced": True}
    with serving(make_server(grammars=ServerGrammars(compiler))) as (_, address):
        connection = Connection(address, CALLER)
        plain = generate_remotely(connection, requests, **how)["000"]
        record = decode_remotely(parse_method("fixed-k:k=3"), connection, requests, **how)["000"]
        position = next(  # a place where the grammar leaves a choice
            place for place in range(record.forced_first, 9) if record.output_ids[place] in (B, C)
        )
        other = B + C - record.output_ids[position]
        plain.output_ids = [*plain.output_ids[:position], other]
        judges = [
            ScoringJudge(connection, GREEDY, 0, lambda _, spec=spec: spec)  # type: ignore[misc]
            for spec in (parse_constraint(REGEX), None)
        ]
        masked, free = (
            read_evidence(judge._score(record, plain, position)) for judge in judges[:1] * 2
        )
        with pytest.raises(Exception, match="forced tokens that cannot begin the output"):
            judges[1]._score(record, plain, position)
    assert masked == free
    assert near(masked, scored_here(record, plain, position))
    assert masked.divergences[0].are_best  # of the two that the grammar allows


def scored_here(record: RequestRecord, plain: RequestRecord, position: int) -> OutputEvidence:
    shapes = RecomputedLogits(make_runner(TARGET, 4, CAPACITY), TARGET)
    masks = shapes.under(lambda one: list(constraint(REGEX).allowed_along(one.output_ids)))
    with torch.inference_mode():
        return gather_evidence(masks, record, plain, position, GreedyChoice(), exact=False)


def near(left: OutputEvidence, right: OutputEvidence) -> bool:
    pairs = zip(left.divergences, right.divergences, strict=True)
    return left.noise == pytest.approx(right.noise, abs=1e-5) and all(
        (one.token, one.expected, one.are_best) == (two.token, two.expected, two.are_best)
        and one.margin == pytest.approx(two.margin, abs=1e-4)
        for one, two in pairs
    )


def test_a_grammar_that_is_known_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []

    def check(text: str, seconds: float) -> str:
        checked.append(text)
        return fault_within(text, seconds)

    monkeypatch.setattr(server_grammars, "fault_within", check)
    grammars = [parse_constraint(text) for text in (REGEX, REGEX, "regex:a(", "regex:a(")]
    with serving(make_server(grammars=ServerGrammars(compiler))) as (_, address):
        for connection in (Connection(address, CALLER), Connection(address, CALLER)):
            said = [bool(try_grammar(connection, grammar)) for grammar in grammars]
            assert said == [False, False, True, True]
    assert checked == [REGEX, "regex:a("]
