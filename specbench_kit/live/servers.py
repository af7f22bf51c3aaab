"""The servers that can verify for a benchmark: a `skit serve`, or another inference engine."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol

from specbench_kit.core.errors import SkitError
from specbench_kit.core.plain_text import last_part
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.constraint import GrammarSpec
from specbench_kit.decoding.drafting.base import DRAFT
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import RemoteVerifier
from specbench_kit.live.assembly import require_rounds
from specbench_kit.live.connection import Connection, ConnectionLostError
from specbench_kit.live.engine_verifier import EngineJudge, EngineStream, EngineVerifier
from specbench_kit.live.engines.base import EngineAdapter, engines
from specbench_kit.live.free_running import FreeRunningVerifier, require_ahead
from specbench_kit.live.pair import DraftModels, TargetDescription
from specbench_kit.live.server_address import ServerAddress
from specbench_kit.live.streaming import TokenStream
from specbench_kit.live.wire import tokenizer_hash
from specbench_kit.live.wire_verifier import (
    GrammarOf,
    ScoringJudge,
    WireStream,
    WireVerifier,
    require_grammar,
    require_masking,
    try_grammar,
    unconstrained,
)
from specbench_kit.methods.base import Method, SendsAhead
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.evidence import RemoteJudge
from specbench_kit.models.generation import end_tokens
from specbench_kit.runs.document import ServedRun, ServerReference

PROBE = "A text of 27 words, 3 of them numbers: 1, 2."
"""The text whose token ids show if an engine's tokenizer is that of the draft model."""
DEFAULT_CONTEXT = 2048
"""The context length, in tokens, of an engine that does not state it."""


@dataclass(frozen=True, slots=True)
class VerifierSetup:
    """What the engine of one method asks of its verifier.

    Verdicts bring the hidden states of `layers`. With `ahead`, drafts are sent before the verdicts
    on earlier ones.
    """

    sampler: Sampler
    seed: int
    clock: MeasuringClock
    layers: Sequence[int] = ()
    ahead: SendsAhead | None = None


class ServerConnection(Protocol):
    """The connection to a server that verifies for a benchmark."""

    target: TargetDescription

    @property
    def reconnections(self) -> int:
        """The number of times that the connection was lost and made again."""

    @property
    def notes(self) -> Sequence[str]:
        """Lines for the user about how the server verifies."""

    def require_verifiable(self, method: Method, sampler: Sampler) -> None:
        """Raise SkitError if the server cannot verify what a method drafts."""

    def require_masking(self) -> None:
        """Raise SkitError if the server cannot mask its target by a grammar."""

    def require_grammars(self, grammars: Sequence[GrammarSpec]) -> None:
        """Raise SkitError for a grammar that the server refuses, before anything is decoded."""

    def verifier(self, setup: VerifierSetup) -> RemoteVerifier:
        """Return a verifier for the engine of one method."""

    def stream(self, sampler: Sampler, seed: int, method: str = "") -> TokenStream:
        """Return the responses that the server decodes by itself, with a method of its offer or
        plainly.
        """

    def offered(self, method: Method, draft_hash: str | None) -> str | None:
        """Return the server's spec of a method with which it drafts by itself; None if it does not.

        Its draft model has to be that of `draft_hash`, if the method needs one.
        """

    def judge(self, sampler: Sampler, seed: int, grammar_of: GrammarOf) -> RemoteJudge:
        """Return a judge of outputs that differ from those of plain decoding, each under the
        grammar that it followed.
        """

    def describe(self) -> ServedRun:
        """Return the server's part of `run.json`."""

    def close(self) -> None:
        """End the connection."""


@dataclass
class SkitServer:
    """A `skit serve`."""

    address: ServerAddress
    connection: Connection
    target: TargetDescription = field(init=False)

    def __post_init__(self) -> None:
        welcome = self.connection.welcome
        self.target = TargetDescription(
            name=welcome.model,
            hash=welcome.model_hash,
            dtype=welcome.dtype,
            vocabulary=welcome.vocabulary,
            context=welcome.limits.context,
            eos_ids=tuple(welcome.eos_ids),
            bitwise=welcome.bitwise,
            parameters=welcome.parameters,
            layers=welcome.layers,
            hidden_size=welcome.hidden_size,
        )

    @property
    def reconnections(self) -> int:
        return self.connection.reconnections

    @property
    def notes(self) -> Sequence[str]:
        return ()

    def require_verifiable(self, method: Method, sampler: Sampler) -> None:
        require_rounds(method)
        if method.ahead is None:
            return
        require_ahead(
            self.address.address, self.connection.welcome.limits.ahead, method.ahead.in_flight
        )
        name = method.display_name
        if method.drafting.reads_states:
            raise SkitError(
                f"{name}: hidden states come with verdicts, for which it does not wait: name a drafter that reads none"
            )
        if self.address.silence_s:
            raise SkitError(
                f"{name}: the server never waits for its drafts: leave out --server-silence"
            )

    def require_masking(self) -> None:
        require_masking(self.connection)

    def require_grammars(self, grammars: Sequence[GrammarSpec]) -> None:
        for grammar in grammars:
            require_grammar(self.connection, grammar)
            try:
                refused = try_grammar(self.connection, grammar)
            except ConnectionLostError as lost:
                raise SkitError(f"--constraint: {self.address.address} left: {lost}") from lost
            if refused:
                raise SkitError(
                    f"--constraint: {self.address.address} refused the grammar: {refused}"
                )

    def verifier(self, setup: VerifierSetup) -> RemoteVerifier:
        common = (self.connection, setup.sampler, setup.seed, setup.clock)
        if setup.ahead is not None:
            return FreeRunningVerifier(*common, setup.ahead.chunk)
        return WireVerifier(*common, setup.layers, silence_s=self.address.silence_s)

    def stream(self, sampler: Sampler, seed: int, method: str = "") -> TokenStream:
        return WireStream(self.connection, sampler, seed, method)

    def offered(self, method: Method, draft_hash: str | None) -> str | None:
        welcome = self.connection.welcome
        specs = [spec for spec in welcome.drafting if parse_method(spec) == method]
        same_models = DRAFT not in method.drafting.models or draft_hash == welcome.draft_hash
        return specs[0] if specs and same_models else None

    def judge(
        self, sampler: Sampler, seed: int, grammar_of: GrammarOf = unconstrained
    ) -> RemoteJudge:
        return ScoringJudge(self.connection, sampler, seed, grammar_of)

    def describe(self) -> ServedRun:
        welcome = self.connection.welcome
        server = ServerReference(
            welcome.server, welcome.scheduler, welcome.device, baseline="streamed"
        )
        link = self.address.link
        return ServedRun(server, shaped_link=None if link is None else asdict(link))

    def close(self) -> None:
        self.connection.close()


@dataclass
class EngineServer:
    """Another inference engine; what it does not state of its model is taken from the draft model's
    tokenizer.
    """

    address: ServerAddress
    engine: EngineAdapter
    target: TargetDescription
    route: str = ""
    """How the engine verifies, in words."""
    reconnections: int = 0
    model: str | None = None
    """The engine's own name of its model, which may be a long path; None if nothing is longer than
    its target's.
    """

    @property
    def notes(self) -> Sequence[str]:
        return [f"{self.address.address} verifies {self.route}"] if self.route else ()

    def require_verifiable(self, method: Method, sampler: Sampler) -> None:
        name = method.display_name
        server = self.address.address
        require_rounds(method)
        self._require_sampling(sampler)
        if method.ahead is not None:
            raise SkitError(
                f"{name}: {server} takes one draft at a time: name pearl, or a skit serve"
            )
        if method.drafting.reads_states:
            raise SkitError(
                f"{name}: {server} sends no hidden states: name a drafter that reads none"
            )
        if method.submits_trees:
            raise SkitError(
                f"{name}: {server} verifies chains alone, and it submits trees: name a method that drafts a chain, "
                "such as fixed-k or threshold, or a skit serve"
            )
        if method.draws_tokens and not sampler.greedy:
            raise SkitError(
                f"{name}: {server} does not return the probabilities that tokens drawn at random need: name a method "
                "that drafts the most probable tokens, such as prompt-lookup, or leave out --temperature"
            )

    def require_masking(self) -> None:
        raise SkitError(
            f"--constraint: {self.address.address} verifies without the kit's masks: name a skit serve, or leave out "
            "--constraint"
        )

    def require_grammars(self, grammars: Sequence[GrammarSpec]) -> None:
        if grammars:
            self.require_masking()

    def verifier(self, setup: VerifierSetup) -> RemoteVerifier:
        self._require_sampling(setup.sampler)
        return EngineVerifier(self.engine, setup.sampler, setup.seed, setup.clock)

    def stream(self, sampler: Sampler, seed: int, method: str = "") -> TokenStream:
        self._require_sampling(sampler)
        return EngineStream(self.engine, sampler, seed)

    def _require_sampling(self, sampler: Sampler) -> None:
        if not (sampler.greedy or self.engine.supports_sampling):
            raise SkitError(
                f"{self.address.address} scores greedy drafts alone: ask it by completions://, or leave out "
                "--temperature"
            )

    def offered(self, method: Method, draft_hash: str | None) -> str | None:
        return None

    def judge(
        self, sampler: Sampler, seed: int, grammar_of: GrammarOf = unconstrained
    ) -> RemoteJudge:
        return EngineJudge(self.engine, sampler)

    def describe(self) -> ServedRun:
        link = self.address.link
        kind = self.address.address.partition("://")[0]
        is_path = self.model not in (None, self.target.name)
        return ServedRun(
            ServerReference(kind, baseline="streamed", model=self.model if is_path else None),
            self.route or None,
            None if link is None else asdict(link),
        )

    def close(self) -> None:
        self.engine.close()


def connect(address: ServerAddress, drafts: DraftModels) -> ServerConnection:
    """Connect to a server whose target shares the draft models' tokenizer; raise SkitError if that
    is impossible.
    """
    scheme, is_engine, host = address.address.partition("://")
    if is_engine:
        return _connect_engine(address, engines.get(scheme)(f"http://{host}"), drafts)
    connection = address.connect(
        tokenizer=tokenizer_hash(drafts.tokenizer), vocabulary=drafts.vocabulary
    )
    return SkitServer(address, connection)


def _connect_engine(
    address: ServerAddress, engine: EngineAdapter, drafts: DraftModels
) -> EngineServer:
    if address.options.concerns_server or address.silence_s:
        raise SkitError(
            "--server-token, -ca, -name, -cert, -key, -wait and -silence are for a skit serve: leave them out for an "
            "engine"
        )
    if address.link is not None:
        engine.emulate_link(address.link)
    name, context = engine.model()
    own_ids = drafts.tokenizer.encode(PROBE, add_special_tokens=False)
    if (engine_ids := engine.tokenize(PROBE)) not in (None, own_ids):
        raise SkitError(
            f"{name} at {address.address} has another tokenizer than the draft model: {engine_ids} for {own_ids}"
        )
    target = TargetDescription(
        name=last_part(name),
        hash="unknown",
        dtype="unknown",
        vocabulary=drafts.vocabulary,
        context=context or DEFAULT_CONTEXT,
        eos_ids=tuple(sorted(end_tokens(None, drafts.tokenizer))),
        bitwise=False,
    )
    return EngineServer(address, engine, target, engine.verification_route(), model=name)
