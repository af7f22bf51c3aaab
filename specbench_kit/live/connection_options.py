"""The options of every command that connects to a `skit serve`, and how their texts are read.
Imports nothing heavy.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from pathlib import Path
from typing import Annotated

from specbench_kit.core.errors import SkitError, require
from specbench_kit.core.option import SERVER, Option
from specbench_kit.core.specs import from_options
from specbench_kit.runs.deployment import Link

TEMPERATURES = 0.01, 100.0
"""Temperatures above 0 that a server takes: at these, the logits of any model stay finite."""
SHORTEST_SILENCE_S = 0.05
LONGEST_SILENCE_S = 3600.0
"""Silences of a device after which a server can go on by itself."""
SYSTEM = Path("system")
"""The value of --server-ca that stands for the certificates of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The token and certificates that a server asks for, and how long to wait for it."""

    server_token: Annotated[
        Path | None, Option("File with the access token of the server.", SERVER)
    ] = None
    server_ca: Annotated[
        Path | None,
        Option(
            "PEM file of the authority that signed the server's certificate, or 'system' for all that this machine "
            "trusts; turns TLS on.",
            SERVER,
        ),
    ] = None
    server_name: Annotated[
        str | None,
        Option(
            "Name in the server's certificate, where it differs from the host that --server names.",
            SERVER,
        ),
    ] = None
    server_cert: Annotated[
        Path | None,
        Option(
            "Certificate of this device, PEM, for a server that asks for one; needs --server-key.",
            SERVER,
        ),
    ] = None
    server_key: Annotated[Path | None, Option("Private key of --server-cert, PEM.", SERVER)] = None
    server_wait: Annotated[
        float, Option("Seconds to wait at the start for a server that is not there yet.", SERVER)
    ] = 0.0

    def require_connection_options(self) -> None:
        """Raise SkitError for options that do not go together."""
        require(
            (self.server_cert is None) == (self.server_key is None),
            "--server-cert and --server-key go together",
        )
        needs_ca = self.server_cert is not None or self.server_name is not None
        require(
            self.server_ca is not None or not needs_ca,
            "--server-name, --server-cert and --server-key need TLS: give --server-ca, 'system' if in doubt",
        )
        require(
            isfinite(self.server_wait) and self.server_wait >= 0,
            f"--server-wait is 0 or more seconds, not {self.server_wait}",
        )

    @property
    def concerns_server(self) -> bool:
        """Return True if an option was given that makes sense with a server alone."""
        files = (
            self.server_token,
            self.server_ca,
            self.server_name,
            self.server_cert,
            self.server_key,
        )
        return any(value is not None for value in files) or self.server_wait > 0


def parse_link(text: str) -> Link:
    """Return the link of a text such as `rtt_s=0.02,jitter_s=0.002,up_bytes_per_s=1.25e6`, as
    deployments have it.
    """
    require(
        "=" in text or not text[:1].isdigit(),
        f"--link emulates a link to a server and takes its fields, as in rtt_s=0.06, not '{text}'; the round trip of a "
        f"modelled deployment is --set link.rtt_s={text}",
    )
    link = from_options("--link", Link, text)
    rates = (link.up_bytes_per_s, link.down_bytes_per_s)
    has_bandwidth = all(rate is None or rate > 0 for rate in rates)
    if not (0 <= link.rtt_s < inf and 0 <= link.jitter_s < inf and has_bandwidth):
        raise SkitError("--link: times are 0 or more seconds, bandwidths above 0 bytes per second")
    # An infinite bandwidth is one without a limit, which JSON can only state as null.
    up, down = (None if rate == inf else rate for rate in rates)
    return replace(link, up_bytes_per_s=up, down_bytes_per_s=down)


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; raise SkitError for any other text."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 1 << 16):
        raise SkitError(f"'{address}' is no HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)


def read_file(path: Path) -> bytes:
    """Return the content of a file of certificates or tokens; raise SkitError if it cannot be
    read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
