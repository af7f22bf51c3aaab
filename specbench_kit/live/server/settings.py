"""What a server is asked to do."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from specbench_kit.core.common_options import Dtype, Target, TorchDevice
from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import DECODING, MODELS, OUTPUT, RUN, Option

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DOOR = "Door"
"""Panel of options."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Checked when made."""

    target: Target = "bundled"
    device: TorchDevice = "auto"
    dtype: Dtype = "auto"
    profile: Annotated[
        str | None,
        Option("What the scheduler expects of time: a latency profile; by default this machine's own.", MODELS),
    ] = None
    scheduler: Annotated[str, Option("Who is verified next: a name from `skit list schedulers`.", RUN)] = "fcfs"
    slots: Annotated[int, Option("Sessions whose KV is held; others come back cold.", DECODING)] = 16
    most: Annotated[int, Option("Requests of a batch.", DECODING, flag="max-batch")] = 64
    session_tokens: Annotated[int, Option("The longest session, prompt and draft included.", DECODING)] = 1024
    sessions: Annotated[int, Option("Sessions held.", DECODING)] = 4096
    listen: Annotated[str, Option("HOST:PORT; port 0 is any free one.", DOOR)] = "127.0.0.1:7070"
    metrics: Annotated[str | None, Option("HOST:PORT of a page for Prometheus.", DOOR)] = None
    log: Annotated[Path | None, Option("File that events are added to, one JSON object a line.", OUTPUT)] = None
    tls_cert: Annotated[Path | None, Option("Certificate chain, PEM.", DOOR)] = None
    tls_key: Annotated[Path | None, Option("Its key, PEM.", DOOR)] = None
    token_file: Annotated[Path | None, Option("Tokens that devices may show, one a line.", DOOR)] = None
    insecure: Annotated[bool, Option("Listen beyond loopback without TLS.", DOOR)] = False

    def __post_init__(self) -> None:
        for name in ("slots", "most", "session_tokens", "sessions"):
            flag = "max-batch" if name == "most" else name.replace("_", "-")
            require(getattr(self, name) >= 1, f"--{flag} must be at least 1, not {getattr(self, name)}")
        require((self.tls_cert is None) == (self.tls_key is None), "--tls-cert and --tls-key go together")
        host, _ = host_and_port(self.listen)
        safe = self.tls_cert is not None or host in LOOPBACK or self.insecure
        require(safe, f"without TLS the server listens on loopback alone, not on {host}: give --tls-cert and --tls-key")

    def tokens(self) -> list[str]:
        """Those that devices may show; none where anybody may come."""
        if self.token_file is None:
            return []
        found = [line.strip() for line in read(self.token_file).decode().splitlines() if line.strip()]
        require(bool(found), f"{self.token_file} holds no token: write one a line")
        return found


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of HOST:PORT."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 1 << 16):
        raise SkitError(f"'{address}' is no HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)


def read(path: Path) -> bytes:
    """A small file, or one line on why not."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
