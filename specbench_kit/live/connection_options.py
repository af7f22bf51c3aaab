"""The options of every command that connects to a `skit serve`. Imports nothing heavy."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated

from specbench_kit.core.errors import require
from specbench_kit.core.option import SERVER, Option

TEMPERATURES = 0.01, 100.0
"""Temperatures above 0 that a server takes: at these, the logits of any model stay finite."""
SHORTEST_SILENCE_S, LONGEST_SILENCE_S = 0.05, 3600.0
"""Silences of a device after which a server can go on by itself."""
SYSTEM = Path("system")
"""The value of --server-ca that stands for the certificates of this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The token and certificates that a server asks for, and how long to wait for it."""

    server_token: Annotated[Path | None, Option("File with the access token of the server.", SERVER)] = None
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
        Option("Name in the server's certificate, where it differs from the host that --server names.", SERVER),
    ] = None
    server_cert: Annotated[
        Path | None,
        Option("Certificate of this device, PEM, for a server that asks for one; needs --server-key.", SERVER),
    ] = None
    server_key: Annotated[Path | None, Option("Private key of --server-cert, PEM.", SERVER)] = None
    server_wait: Annotated[
        float, Option("Seconds to wait at the start for a server that is not there yet.", SERVER)
    ] = 0.0

    def require_connection_options(self) -> None:
        """Raise SkitError for options that do not go together."""
        require((self.server_cert is None) == (self.server_key is None), "--server-cert and --server-key go together")
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
        files = (self.server_token, self.server_ca, self.server_name, self.server_cert, self.server_key)
        return any(value is not None for value in files) or self.server_wait > 0
