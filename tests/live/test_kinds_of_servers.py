"""What a benchmark learns of a server before its run: its target, what it verifies and offers, and notes."""

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from test_answers_of_a_batch import ChosenEngine, Scripted
from tiny_models import GREEDY

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import stated
from specbench_kit.decoding.clock import ModelledClock
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.live import servers
from specbench_kit.live.connection_options import ConnectionOptions
from specbench_kit.live.engine_verifier import EngineJudge, EngineStream, EngineVerifier
from specbench_kit.live.free_running import FreeRunningVerifier
from specbench_kit.live.pair import DraftModels, TargetDescription
from specbench_kit.live.protocol import verification_pb2 as messages
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.servers import EngineServer, SkitServer, VerifierSetup, connect
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.live.wire_verifier import ScoringJudge, WireStream, WireVerifier
from specbench_kit.methods.base import SendsAhead
from specbench_kit.methods.spec import parse_method
from specbench_kit.runs.deployment import Link

SAMPLED = Sampler(0.8)
CLOCK: Any = ModelledClock()
WELCOME = {
    "server": "skit serve 1",
    "model": "tiny",
    "model_hash": "abc",
    "dtype": "bfloat16",
    "vocabulary": 64,
    "eos_ids": [3, 9],
    "bitwise": True,
    "parameters": 123,
    "layers": 2,
    "hidden_size": 32,
    "scheduler": "fcfs",
    "device": "a card",
    "generates": True,
    "drafting": ["fixed-k:k=3", "prompt-lookup"],
    "draft_hash": "draft",
    "limits": {"context": 160, "ahead": 4},
}
TARGET = TargetDescription(
    "tiny",
    "abc",
    "bfloat16",
    64,
    160,
    (3, 9),
    bitwise=True,
    parameters=123,
    layers=2,
    hidden_size=32,
)


def skit_server(link: Link | None = None, silence_s: float = 0.0, **welcome: object) -> SkitServer:
    connection: Any = Scripted(welcome=messages.Welcome(**(WELCOME | welcome)), reconnections=7)
    return SkitServer(ServerAddress("host:1", link=link, silence_s=silence_s), connection)


def engine_server(
    route: str = "", model: str | None = "tiny", samples: bool = True, **address: Any
) -> EngineServer:
    engine = ChosenEngine()
    engine.supports_sampling = samples  # type: ignore[misc]
    return EngineServer(
        ServerAddress("vllm://host:1", **address), engine, TARGET, route, model=model
    )


def test_a_skit_serve_is_described_by_its_welcome() -> None:
    server = skit_server(Link(rtt_s=0.25))
    assert (server.target, server.reconnections, [*server.notes]) == (TARGET, 7, [])
    described = {
        "kind": "skit serve 1",
        "scheduler": "fcfs",
        "device": "a card",
        "baseline": "streamed",
    }
    assert stated(server.describe())["server"] == described
    assert server.describe().shaped_link["rtt_s"] == 0.25
    assert stated(skit_server().describe()) == {"server": described}


def test_an_engine_is_described_by_its_address() -> None:
    server = engine_server("by scoring", "/models/tiny", link=Link(rtt_s=0.25))
    assert [*server.notes] == ["vllm://host:1 verifies by scoring"]
    described = stated(server.describe())
    assert described["server"] == {"kind": "vllm", "baseline": "streamed", "model": "/models/tiny"}
    assert described["verification"] == "by scoring"
    assert described["shaped_link"]["rtt_s"] == 0.25
    for model in ("tiny", None):  # its target's own name, or none
        plain = engine_server(model=model)
        assert [*plain.notes] == []
        assert stated(plain.describe()) == {"server": {"kind": "vllm", "baseline": "streamed"}}


def test_the_verifier_of_a_server_is_that_of_the_method() -> None:
    server = skit_server(silence_s=0.25)
    waits = server.verifier(VerifierSetup(SAMPLED, 5, CLOCK, layers=(1, 2)))
    assert isinstance(waits, WireVerifier)
    assert (waits.sampler, waits.seed, waits.clock, waits.layers, waits.silence_s) == (
        SAMPLED,
        5,
        CLOCK,
        (1, 2),
        0.25,
    )
    ahead = server.verifier(VerifierSetup(SAMPLED, 5, CLOCK, ahead=SendsAhead(3, 4)))
    assert isinstance(ahead, FreeRunningVerifier)
    assert (ahead.sampler, ahead.seed, ahead.clock, ahead.chunk) == (SAMPLED, 5, CLOCK, 3)
    scorer = server.judge(SAMPLED, 5)
    assert isinstance(scorer, ScoringJudge)
    assert (scorer.connection, scorer.sampler, scorer.seed) == (server.connection, SAMPLED, 5)
    stream = server.stream(SAMPLED, 5, "suffix")
    assert isinstance(stream, WireStream)
    assert (stream.sampler, stream.seed, stream.method) == (SAMPLED, 5, "suffix")
    engine = engine_server()
    scores, decodes = engine.verifier(VerifierSetup(SAMPLED, 5, CLOCK)), engine.stream(SAMPLED, 5)
    assert isinstance(scores, EngineVerifier)
    assert (scores.engine, scores.sampler, scores.seed, scores.clock) == (
        engine.engine,
        SAMPLED,
        5,
        CLOCK,
    )
    assert isinstance(decodes, EngineStream)
    assert (decodes.engine, decodes.sampler, decodes.seed) == (engine.engine, SAMPLED, 5)
    judge = engine.judge(SAMPLED, 5)
    assert isinstance(judge, EngineJudge)
    assert (judge.engine, judge.sampler) == (engine.engine, SAMPLED)


@pytest.mark.parametrize(
    ("spec", "draft_hash", "offered"),
    [
        ("fixed-k:k=3", "draft", "fixed-k:k=3"),
        ("fixed-k:k=3", "another", None),
        ("fixed-k:k=3", None, None),
        ("fixed-k:k=4", "draft", None),
        ("prompt-lookup", None, "prompt-lookup"),  # needs no draft model
    ],
)
def test_a_method_is_offered_with_the_draft_model_that_it_needs(
    spec: str, draft_hash: str | None, offered: str | None
) -> None:
    assert skit_server().offered(parse_method(spec), draft_hash) == offered
    assert engine_server().offered(parse_method(spec), draft_hash) is None


@pytest.mark.parametrize(
    ("server", "spec", "sampler", "reason"),
    [
        (skit_server(), "specpipe", GREEDY, "a pipeline's stages cannot be behind a wire"),
        (
            skit_server(),
            "decoupled:k=2,in_flight=5",
            GREEDY,
            "host:1 takes 4 drafts ahead of their verdicts",
        ),
        (
            skit_server(limits={}),
            "decoupled:in_flight=1",
            GREEDY,
            "host:1 is a skit serve of an earlier version",
        ),
        (skit_server(silence_s=0.5), "decoupled:in_flight=4", GREEDY, "leave out --server-silence"),
        (
            skit_server(),
            "decoupled:in_flight=4,drafter=head",
            GREEDY,
            "name a drafter that reads none",
        ),
        (engine_server(), "specpipe", GREEDY, "a pipeline's stages cannot be behind a wire"),
        (engine_server(samples=False), "fixed-k", SAMPLED, "scores greedy drafts alone"),
        (engine_server(), "decoupled", GREEDY, "takes one draft at a time"),
        (engine_server(), "fixed-k:drafter=head", GREEDY, "sends no hidden states"),
        (engine_server(), "opt-tree", GREEDY, "verifies chains alone"),
        (engine_server(), "fixed-k", SAMPLED, "the probabilities that tokens drawn at random need"),
    ],
)
def test_what_a_server_cannot_verify_is_refused(
    server: Any, spec: str, sampler: Sampler, reason: str
) -> None:
    with pytest.raises(SkitError, match=reason):
        server.require_verifiable(parse_method(spec), sampler)


@pytest.mark.parametrize(
    ("server", "spec", "sampler"),
    [
        (skit_server(), "opt-tree", SAMPLED),
        (skit_server(silence_s=0.5), "fixed-k:drafter=head", GREEDY),
        (skit_server(), "decoupled:in_flight=4", SAMPLED),
        (engine_server(samples=False), "fixed-k", GREEDY),
        (engine_server(), "prompt-lookup", SAMPLED),
    ],
)
def test_what_a_server_can_verify_is_not_refused(server: Any, spec: str, sampler: Sampler) -> None:
    server.require_verifiable(parse_method(spec), sampler)


def test_an_engine_that_only_decodes_greedily_is_not_asked_to_draw() -> None:
    server = engine_server(samples=False)
    with pytest.raises(SkitError, match="scores greedy drafts alone"):
        server.verifier(VerifierSetup(SAMPLED, 5, CLOCK))
    with pytest.raises(SkitError, match="scores greedy drafts alone"):
        server.stream(SAMPLED, 5)


class Letters:
    """A tokenizer whose tokens are bytes; its texts end with token 5."""

    eos_token_id = 5
    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def __len__(self) -> int:
        return 64

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [*text.encode()] + [5] * add_special_tokens

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1}

    def get_added_vocab(self) -> dict[str, int]:
        return {}


DRAFTS = DraftModels(Letters(), {}, ())
"""No draft models at all, whose tokenizer the target has to share."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ChosenEngine:
    """The engine that is found at every address; it states all that engines may state."""
    found = ChosenEngine()
    found.model = lambda: ("/models/tiny", 512)  # type: ignore[method-assign]
    found.tokenize = lambda text: [*text.encode()]  # type: ignore[method-assign]
    found.verification_route = lambda: "by scoring"  # type: ignore[method-assign]
    found.linked = []  # type: ignore[attr-defined]
    found.emulate_link = found.linked.append  # type: ignore[attr-defined,method-assign]
    monkeypatch.setattr(
        servers, "engines", SimpleNamespace(get=lambda kind: partial(reached, found, kind))
    )
    return found


def reached(engine: Any, kind: str, base: str) -> ChosenEngine:
    engine.address = (kind, base)
    return engine  # type: ignore[no-any-return]


def test_an_engine_is_asked_for_what_it_states_of_its_model(engine: Any) -> None:
    link = Link(rtt_s=0.25)
    server = connect(ServerAddress("vllm://host:1", link=link), DRAFTS)
    assert isinstance(server, EngineServer)
    assert (engine.address, engine.linked, server.engine) == (
        ("vllm", "http://host:1"),
        [link],
        engine,
    )
    target = TargetDescription(
        "tiny", "unknown", "unknown", DRAFTS.vocabulary, 512, (5,), bitwise=False
    )
    assert (server.target, server.route, server.model) == (target, "by scoring", "/models/tiny")


def test_what_an_engine_does_not_state_is_taken_from_the_draft_models(engine: Any) -> None:
    engine.model = lambda: ("tiny", None)
    engine.tokenize = lambda _: None
    server = connect(ServerAddress("vllm://host:1"), DRAFTS)
    assert (server.target.context, engine.linked) == (2048, [])
    engine.tokenize = lambda text: [*text.encode(), 5]
    with pytest.raises(
        SkitError, match="tiny at vllm://host:1 has another tokenizer than the draft model"
    ):
        connect(ServerAddress("vllm://host:1"), DRAFTS)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("options", "silence_s"),
    [(ConnectionOptions(server_wait=1.0), 0.0), (ConnectionOptions(), 0.5)],
)
def test_options_of_a_skit_serve_are_refused_for_an_engine(
    options: ConnectionOptions, silence_s: float
) -> None:
    with pytest.raises(SkitError, match="are for a skit serve: leave them out"):
        connect(ServerAddress("vllm://host:1", options, silence_s=silence_s), DRAFTS)


def test_a_skit_serve_is_told_the_tokenizer_of_the_draft_models(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: dict[str, object] = {}
    connection = Scripted()

    def reach(_: ServerAddress, **identity: object) -> Scripted:
        told.update(identity)
        return connection

    monkeypatch.setattr(ServerAddress, "connect", reach)
    address = ServerAddress("host:1")
    server = connect(address, DRAFTS)
    assert isinstance(server, SkitServer)
    assert (server.address, server.connection) == (address, connection)
    assert told == {"tokenizer": tokenizer_hash(DRAFTS.tokenizer), "vocabulary": DRAFTS.vocabulary}
