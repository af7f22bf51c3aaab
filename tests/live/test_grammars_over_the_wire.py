"""Outputs that follow a grammar, with the target on a server: what local decoding writes under the same grammar."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from threading import Event, Thread
from typing import Any

import pytest

pytest.importorskip("llguidance")

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
from tiny_grammars import END, compiler, constraint, text
from tiny_heads import untrained
from tiny_models import GREEDY, decode, make_requests, make_runner, outputs, random_prompts

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.constraint import Grammars, schema_spec
from specbench_kit.decoding.records import RequestRecord
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.session import Request
from specbench_kit.live.connection import ClientIdentity, Connection
from specbench_kit.live.server.grammars import ServerGrammars
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.run import make_service
from specbench_kit.live.server.service import VerificationService
from specbench_kit.live.server.settings import ServeSettings
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.methods.spec import parse_method
from specbench_kit.models.executors.base import make_executor
from specbench_kit.models.pair import load_pair
from specbench_kit.models.runner import Runner
from specbench_kit.runs.deployment import Link

REGEX = "regex:ac[bc]{2,9}dcca[cd]bbd([bc]|dc){1,6}dd"
"""Begins with forced tokens, and has a run of them between free ones."""
PROMPTS = random_prompts([5, 9, 17], 64)
SAMPLED = Sampler(0.7)
ENDS = frozenset([END])
METHODS = ("fixed-k:k=3", "specedge:depth=3,budget=8,beams=4", "opt-tree", "suffix")
Records = dict[str, RequestRecord]


def requests(grammar: str | None = REGEX, tokens: int = 30) -> list[Request]:
    compiled = None if grammar is None else constraint(grammar)
    return [replace(one, constraint=compiled) for one in make_requests(PROMPTS, tokens)]


@contextmanager
def masking_server(**options: Any) -> Iterator[tuple[VerificationService, str]]:
    with serving(make_server(grammars=ServerGrammars(compiler), **options)) as running:
        yield running


COUNTS = attrgetter(
    *("submitted", "accepted", "committed", "forced", "forbidden"),
    *("forced_submitted", "forced_accepted"),
)


def counts(records: Records) -> dict[str, object]:
    """Return what both ways of decoding count of each request."""
    return {
        name: (
            *(record.grammar, record.finish_reason, record.forced_first),
            [COUNTS(step) for step in record.rounds],
        )
        for name, record in records.items()
    }


@pytest.mark.parametrize("skip_forced", [True, False])
@pytest.mark.parametrize("sampler", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("spec", METHODS)
def test_every_round_is_as_with_the_target_beside_the_draft_model(
    spec: str, sampler: Sampler, skip_forced: bool
) -> None:
    method = parse_method(spec)
    how = {"sampler": sampler, "eos_ids": ENDS, "skip_forced": skip_forced, "batch_size": 2}
    with masking_server() as (_, address):
        remote = decode_remotely(method, Connection(address, CALLER), requests(), **how)
    local = decode_here(method, requests(), **how)
    assert outputs(remote) == outputs(local)
    # What is drafted while a verdict is awaited depends on time.
    assert method.overlaps or counts(remote) == counts(local)
    assert {record.grammar for record in remote.values()} <= {"valid", "cut"}
    skipped = [record.forced_first for record in remote.values()]
    assert skipped == [2 * skip_forced] * len(PROMPTS)
    forced = sum(step.forced for record in remote.values() for step in record.rounds)
    assert (forced > 0) is skip_forced


@pytest.mark.parametrize("skip_forced", [True, False])
def test_what_the_server_decodes_by_itself_follows_the_grammar(skip_forced: bool) -> None:
    """Plainly, and with a draft model of its own."""
    spec = "fixed-k:k=3"
    how: dict[str, Any] = {"eos_ids": ENDS, "skip_forced": skip_forced, "batch_size": 2}
    with masking_server(methods=(spec,)) as (_, address):
        connection = Connection(address, CALLER)
        plain = generate_remotely(connection, requests(), **how)
        drafted = generate_remotely(connection, requests(), method=spec, **how)
    for method, remote in (("autoregressive", plain), (spec, drafted)):
        local = decode_here(parse_method(method), requests(), **how)
        assert outputs(remote) == outputs(local)
        assert counts(remote) == counts(local)


def test_greedy_outputs_are_those_of_masked_plain_decoding() -> None:
    plain = decode_here(parse_method("autoregressive"), requests(), eos_ids=ENDS)
    free = decode_here(parse_method("autoregressive"), requests(None), eos_ids=ENDS)
    assert outputs(plain) != outputs(free)
    with masking_server() as (_, address):
        for spec in METHODS:
            method, connection = parse_method(spec), Connection(address, CALLER)
            remote = decode_remotely(method, connection, requests(), eos_ids=ENDS, skip_forced=True)
            assert outputs(remote) == outputs(plain)


def test_requests_with_and_without_a_grammar_share_a_batch() -> None:
    first, second, third = requests()
    mixed = [
        first,
        replace(second, constraint=None),
        replace(third, constraint=constraint("regex:[ab]{9}")),
    ]
    how: dict[str, Any] = {"eos_ids": ENDS, "skip_forced": True, "batch_size": 3}
    method = parse_method("fixed-k:k=3")
    with masking_server() as (_, address):
        remote = decode_remotely(method, Connection(address, CALLER), mixed, **how)
    local = decode_here(method, mixed, **how)
    assert outputs(remote) == outputs(local)
    assert [remote[name].grammar for name in sorted(remote)] == ["valid", None, "valid"]
    assert set(text(remote["002"].output_ids)) <= {"a", "b"}


def test_drafts_that_are_sent_ahead_follow_the_grammar() -> None:
    """Their forced tokens are verified: a chain that is drafted ahead holds them already."""
    method = parse_method("decoupled:k=2")
    with masking_server() as (_, address):
        remote = decode_remotely(
            method, Connection(address, CALLER), requests(), eos_ids=ENDS, skip_forced=True
        )
    plain = decode_here(parse_method("autoregressive"), requests(), eos_ids=ENDS)
    assert outputs(remote) == outputs(plain)
    assert all(step.forced == 0 for record in remote.values() for step in record.rounds)


def test_tokens_of_a_server_that_went_on_alone_are_taken_with_their_forced_ones() -> None:
    """The link takes longer than the silence after which the server decodes by itself."""
    method = parse_method("fixed-k:k=3")
    with masking_server() as (service, address):
        remote = decode_remotely(
            method,
            Connection(address, CALLER, Link(rtt_s=0.3)),
            requests(),
            eos_ids=ENDS,
            skip_forced=True,
            silence_s=0.05,
        )
        relieved = service.handler.metrics.registry.get_sample_value("skit_silent_devices_total")
    assert relieved
    assert outputs(remote) == outputs(
        decode_here(method, requests(), eos_ids=ENDS, skip_forced=True)
    )


@pytest.mark.parametrize("spec", ["fixed-k:k=3", "decoupled:k=2", "autoregressive"])
def test_a_response_goes_on_under_its_grammar_at_another_server(spec: str) -> None:
    decoded: dict[str, list[int]] = {}
    how: dict[str, Any] = {"eos_ids": ENDS, "skip_forced": True}

    def decode() -> None:
        remote = (
            generate_remotely(connection, requests(), **how)
            if spec == "autoregressive"
            else decode_remotely(parse_method(spec), connection, requests(), **how)
        )
        decoded.update(outputs(remote))

    with masking_server() as (_, address):
        connection = Connection(address, CALLER, Link(rtt_s=0.02))
        device = Thread(target=decode)
        device.start()
        Event().wait(0.15)
    with masking_server(listen=ListenAddress(address)):
        device.join(60)
    assert connection.reconnections == 1
    assert decoded == outputs(decode_here(parse_method("autoregressive"), requests(), **how))


def test_a_server_that_knows_no_grammar_is_refused_before_it_could_pass_over_one() -> None:
    with serving() as (service, address):
        connection = Connection(address, CALLER)
        assert connection.welcome.grammar_bytes == 0
        for decode in (
            lambda: generate_remotely(connection, requests(), eos_ids=ENDS),
            lambda: decode_remotely(parse_method("fixed-k"), connection, requests(), eos_ids=ENDS),
            lambda: decode_remotely(
                parse_method("decoupled"), connection, requests(), eos_ids=ENDS
            ),
        ):
            with pytest.raises(SkitError) as refused:
                decode()
            assert str(refused.value).startswith(f"--constraint: {address} is a skit serve that")
            assert str(refused.value).endswith("or leave out --constraint")
        assert len(service.handler.sessions) == 0


def test_a_head_that_reads_states_drafts_under_a_grammar() -> None:
    """Its forced tokens are verified, since it needs the states of all tokens before it drafts."""
    drafts = parse_method("fixed-k:k=3,drafter=head")
    head = untrained(make_runner(TARGET, 1, CAPACITY))
    models = {"head:auto": Runner(make_executor(head, 3, CAPACITY, 64))}
    with masking_server() as (_, address):
        remote = decode_remotely(
            drafts,
            Connection(address, CALLER),
            requests(),
            eos_ids=ENDS,
            skip_forced=True,
            models=models,
        )
    plain = decode_here(parse_method("autoregressive"), requests(), eos_ids=ENDS)
    assert outputs(remote) == outputs(plain)
    assert all(step.forced == 0 for record in remote.values() for step in record.rounds)


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "maximum": 99},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def test_the_bundled_pair_writes_valid_json_over_the_wire() -> None:
    pair = load_pair("bundled")
    grammar = Grammars(pair.tokenizer, pair.eos_ids).compile(schema_spec(SCHEMA))
    prompts = [pair.tokenizer(asked)["input_ids"] for asked in ("Who is Ada?", "Tell me a name.")]
    asked = [replace(request, constraint=grammar) for request in make_requests(prompts, 48)]
    runners = pair.runners(2, CAPACITY)
    how: dict[str, Any] = {"eos_ids": pair.eos_ids, "skip_forced": True, "batch_size": 2}
    service, _ = make_service(ServeSettings(target="bundled", listen="127.0.0.1:0", slots=4))
    caller = ClientIdentity(tokenizer_hash(pair.tokenizer), pair.vocabulary)
    models = {"draft": runners[1]}
    with serving(service) as (_, address):
        connection = Connection(address, caller)
        streamed = generate_remotely(connection, asked, **how)
        found = {
            (spec, sampler): decode_remotely(
                parse_method(spec), connection, asked, sampler=sampler, models=models, **how
            )
            for spec in ("round-trips", "fixed-k:k=4", "opt-tree", "suffix")
            for sampler in (GREEDY, SAMPLED)
            if sampler.greedy or spec in ("round-trips", "suffix")
        }
    for (_, sampler), records in found.items():
        plain = decode(parse_method("autoregressive"), runners, asked, sampler=sampler, **how)
        assert outputs(records) == outputs(plain)
        for record in records.values():
            answer = json.loads(pair.tokenizer.decode(record.output_ids, skip_special_tokens=True))
            assert answer.keys() == {"name", "age"}
        assert sampler is SAMPLED or outputs(streamed) == outputs(plain)
