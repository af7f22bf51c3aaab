"""The server that a benchmark's rounds are verified by."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.clock import MeasuringClock
from specbench_kit.decoding.sampling import Sampler
from specbench_kit.decoding.verification import RemoteVerifier
from specbench_kit.deployments.base import Link
from specbench_kit.deployments.description import finite
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.engine_verifier import EngineVerifier
from specbench_kit.live.engines.base import EngineAdapter, engines
from specbench_kit.live.pair import DraftModels, TargetDescription
from specbench_kit.live.verifier import WireVerifier
from specbench_kit.live.wire import tokenizer_hash

PROBE = "A text of 27 words, 3 of them numbers: 1, 2."
"""By which two tokenizers are held against each other."""
CONTEXT = 2048
"""Of an engine that does not say how much its model reads."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """How to connect a server: HOST:PORT or ENGINE://HOST:PORT, what to show there, and what to trust."""

    address: str
    token_file: Path | None = None
    roots: Path | None = None
    link: Link | None = None


class VerificationServer(Protocol):
    """Whatever verifies for a benchmark elsewhere."""

    target: TargetDescription

    @property
    def reconnections(self) -> int:
        """How often the connection was lost and made again."""

    def verifier(self, sampler: Sampler, seed: int, clock: MeasuringClock) -> RemoteVerifier:
        """Of one method's loop."""

    def describe(self) -> dict[str, Any]:
        """What a run remembers of it."""

    def close(self) -> None:
        """Let go of it."""


@dataclass
class SkitServer:
    """A `skit serve`."""

    way: ServerAddress
    connection: Connection
    target: TargetDescription = field(init=False)

    def __post_init__(self) -> None:
        told = self.connection.welcome
        self.target = TargetDescription(
            name=told.model,
            hash=told.model_hash,
            dtype=told.dtype,
            vocabulary=told.vocabulary,
            context=told.limits.context,
            eos_ids=tuple(told.eos_ids),
            bitwise=told.bitwise,
            parameters=told.parameters,
            server=told.server,
        )

    @property
    def reconnections(self) -> int:
        return self.connection.reconnections

    def verifier(self, sampler: Sampler, seed: int, clock: MeasuringClock) -> RemoteVerifier:
        return WireVerifier(self.connection, sampler, seed, clock)

    def describe(self) -> dict[str, Any]:
        told = self.connection.welcome
        link = self.way.link
        return {
            "server": {"kind": told.server, "scheduler": told.scheduler, "device": told.device},
            **({"shaped_link": shaped(link)} if link is not None else {}),
        }

    def close(self) -> None:
        self.connection.close()


@dataclass
class EngineServer:
    """An engine of others. What it does not say of itself is taken from the draft model's tokenizer."""

    way: ServerAddress
    engine: EngineAdapter
    target: TargetDescription
    reconnections: int = 0

    def verifier(self, sampler: Sampler, seed: int, clock: MeasuringClock) -> RemoteVerifier:
        if not (sampler.greedy or self.engine.supports_sampling):
            raise SkitError(f"{self.way.address} scores greedy drafts alone: ask it by completions://")
        return EngineVerifier(self.engine, sampler, seed)

    def describe(self) -> dict[str, Any]:
        return {"server": {"kind": self.way.address.partition("://")[0]}}

    def close(self) -> None:
        self.engine.close()


def shaped(link: Link) -> dict[str, Any]:
    """A shaped link in a run; a bandwidth of null is the real one's."""
    return finite(link)


def connect(way: ServerAddress, drafts: DraftModels) -> VerificationServer:
    """Connect to a server; one line says why that cannot be."""
    scheme, is_engine, address = way.address.partition("://")
    if is_engine:
        return _engine(way, engines.get(scheme)(f"http://{address}"), drafts)
    token = _read(way.token_file).decode().strip() if way.token_file else ""
    roots = _read(way.roots) if way.roots else None
    caller = ClientIdentity(tokenizer_hash(drafts.tokenizer), drafts.vocabulary, token, roots=roots)
    try:
        return SkitServer(way, Connection(way.address, caller, way.link))
    except ConnectionLostError as lost:
        raise SkitError(f"no server answers at {way.address}: {lost}; start one with skit serve") from lost


def _engine(way: ServerAddress, engine: EngineAdapter, drafts: DraftModels) -> EngineServer:
    if (way.token_file, way.roots, way.link) != (None, None, None):
        raise SkitError("--server-token, --server-ca and --link are for a skit serve: leave them out for an engine")
    name, context = engine.model()
    own = drafts.tokenizer.encode(PROBE, add_special_tokens=False)
    if (theirs := engine.tokenize(PROBE)) not in (None, own):
        raise SkitError(f"{name} at {way.address} has another tokenizer than the draft model: {theirs} for {own}")
    eos = drafts.tokenizer.eos_token_id
    target = TargetDescription(
        name=name,
        hash="unknown",
        dtype="unknown",
        vocabulary=drafts.vocabulary,
        context=context or CONTEXT,
        eos_ids=() if eos is None else (eos,),
        bitwise=False,
    )
    return EngineServer(way, engine, target)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
