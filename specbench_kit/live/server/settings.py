"""The settings of `skit serve`. Imports nothing heavy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Dtype, ExecutorName, Target, TorchDevice
from specbench_kit.core.errors import require
from specbench_kit.core.option import DECODING, FIRST, MODELS, OUTPUT, RUN, Option
from specbench_kit.live.connection_options import host_and_port, read_file
from specbench_kit.live.server.admission import ServerLimits

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
NETWORK = "Network"
"""Heading of the options about connections."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The checked options of `skit serve`."""

    target: Annotated[Target, FIRST] = "auto"
    draft: Annotated[
        str | None,
        Option(
            "Draft model, for methods with which the server drafts by itself; none by default.",
            MODELS,
        ),
        FIRST,
    ] = None
    methods: Annotated[
        tuple[str, ...],
        Option(
            "Method with which devices may ask the server to draft and verify by itself; may be given several times.",
            RUN,
            flag="method",
        ),
        FIRST,
    ] = ()
    device: Annotated[TorchDevice, FIRST] = "auto"
    dtype: Dtype = "auto"
    executor: ExecutorName = "auto"
    profile: Annotated[
        str | None,
        Option(
            "Latency profile that the scheduler plans with; by default one that was measured on this machine, or else "
            "a few timed forwards.",
            MODELS,
        ),
    ] = None
    scheduler: Annotated[
        str,
        Option(
            "Scheduler that decides which rounds form a batch, see `skit list schedulers`.", RUN
        ),
        FIRST,
    ] = "fcfs"
    slots: Annotated[
        int,
        Option("Sessions whose KV is held at a time; any other computes its text again.", DECODING),
    ] = 16
    max_batch: Annotated[int, Option("Largest number of requests in a batch.", DECODING), FIRST] = (
        64
    )
    session_tokens: Annotated[
        int,
        Option(
            "Longest session in tokens, prompt and draft included; at most the target's context.",
            DECODING,
        ),
    ] = 1024
    sessions: Annotated[
        int, Option("Largest number of sessions that are remembered.", DECODING)
    ] = 4096
    listen: Annotated[
        str, Option("HOST:PORT to listen on; port 0 takes any free port.", NETWORK), FIRST
    ] = "127.0.0.1:7070"
    metrics: Annotated[
        str | None,
        Option("HOST:PORT that serves metrics to Prometheus; none by default.", NETWORK),
        FIRST,
    ] = None
    log: Annotated[
        Path | None,
        Option("File to append events to, one JSON object per line; none by default.", OUTPUT),
    ] = None
    tls_cert: Annotated[
        Path | None, Option("Certificate chain for TLS, PEM; needs --tls-key.", NETWORK), FIRST
    ] = None
    tls_key: Annotated[Path | None, Option("Private key of the certificate, PEM.", NETWORK)] = None
    tls_client_ca: Annotated[
        Path | None,
        Option(
            "PEM file of the authority that signs devices' certificates; a device then needs one.",
            NETWORK,
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            "File of access tokens, one per line; a device must send one of them. By default none is needed.",
            NETWORK,
        ),
        FIRST,
    ] = None
    streams: Annotated[int, Option("Largest number of devices that are connected.", NETWORK)] = 1024
    token_sessions: Annotated[
        int,
        Option(
            "Sessions of all devices with one access token; 0 for an equal share of --sessions.",
            NETWORK,
        ),
    ] = 0
    token_streams: Annotated[
        int,
        Option(
            "Devices connected with one access token; 0 for an equal share of --streams.", NETWORK
        ),
    ] = 0
    stream_bytes: Annotated[
        int, Option("Bytes per second that are read from one device; more has to wait.", NETWORK)
    ] = 16_000_000
    token_bytes: Annotated[
        int,
        Option("Bytes per second that are read from all devices with one access token.", NETWORK),
    ] = 64_000_000
    insecure: Annotated[bool, Option("Allow to listen beyond loopback without TLS.", NETWORK)] = (
        False
    )

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "max_batch",
            "session_tokens",
            "sessions",
            "streams",
            "stream_bytes",
            "token_bytes",
        ):
            value = getattr(self, name)
            require(value >= 1, f"--{name.replace('_', '-')} must be at least 1, not {value}")
        require(
            min(self.token_sessions, self.token_streams) >= 0,
            "--token-sessions and --token-streams are 0 or more",
        )
        require(
            len(set(self.methods)) == len(self.methods),
            "a method is given twice: name each --method once",
        )
        require(
            (self.tls_cert is None) == (self.tls_key is None),
            "--tls-cert and --tls-key go together",
        )
        require(
            self.tls_client_ca is None or self.tls_cert is not None,
            "--tls-client-ca needs TLS: give --tls-cert and --tls-key",
        )
        host, _ = host_and_port(self.listen)
        safe = self.tls_cert is not None or host in LOOPBACK or self.insecure
        require(
            safe,
            f"without TLS the server listens on loopback alone, not on {host}: give --tls-cert and --tls-key",
        )

    def tokens(self) -> list[str]:
        """Return the access tokens; none if any device may connect."""
        if self.token_file is None:
            return []
        lines = read_file(self.token_file).decode().splitlines()
        tokens = [line.strip() for line in lines if line.strip()]
        require(bool(tokens), f"{self.token_file} holds no token: write one per line")
        require(
            len(set(tokens)) == len(tokens),
            f"{self.token_file} holds a token twice: write each once",
        )
        return tokens

    def limits(self, context: int) -> ServerLimits:
        """Return what devices may use of the server, with sessions of up to `context` tokens."""
        return ServerLimits(
            context=context,
            sessions=self.sessions,
            streams=self.streams,
            token_sessions=self.token_sessions,
            token_streams=self.token_streams,
            stream_bytes_per_s=self.stream_bytes,
            token_bytes_per_s=self.token_bytes,
        )
