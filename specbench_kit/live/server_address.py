"""The servers that the user names, the connection to them, and in words what keeps a client from
one.
"""

import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from specbench_kit.core.errors import SkitError
from specbench_kit.live.certificates import read_certified_key, read_roots, system_roots
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.connection_options import (
    SYSTEM,
    ConnectionOptions,
    host_and_port,
    read_file,
)
from specbench_kit.runs.deployment import Link


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The HOST:PORT of a `skit serve`, or several with commas, or ENGINE://HOST:PORT, and how to
    connect.

    `link` is emulated on this machine. With `silence_s`, a `skit serve` goes on with a response by itself while this
    device sends nothing for that long.
    """

    address: str
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    link: Link | None = None
    silence_s: float = 0.0

    def connect(
        self, *, tokenizer: str = "", vocabulary: int = 0, model_hash: str = ""
    ) -> Connection:
        """Return a connection to a `skit serve`; raise SkitError with one line if there is none."""
        for address in self.address.split(","):
            host_and_port(address)
        identity = self._identity(tokenizer, vocabulary, model_hash)
        try:
            return Connection(self.address, identity, self.link, self.options.server_wait)
        except ConnectionLostError as lost:
            found = {
                address: diagnose(address, self.options, identity.roots)
                for address in self.address.split(",")
            }
            lines = [
                f"{address}: {diagnosis.reason}" if len(found) > 1 else diagnosis.reason
                for address, diagnosis in found.items()
                if diagnosis.reason
            ]
            advice = "start one with skit serve, or wait for it with --server-wait"
            if all(diagnosis.is_there for diagnosis in found.values()):
                advice = ""
            reasons = "; ".join(filter(None, [*(lines or [str(lost)]), advice]))
            raise SkitError(f"no server answers at {self.address}: {reasons}") from lost

    def _identity(self, tokenizer: str, vocabulary: int, model_hash: str) -> ClientIdentity:
        """Return what the server is told of this device, with the content of all files."""
        options = self.options
        roots = None
        own = None
        token = _read_token(options.server_token) if options.server_token else ""
        if options.server_ca is not None:
            roots = (
                system_roots()
                if options.server_ca == SYSTEM
                else read_roots(options.server_ca, "--server-ca")
            )
        if options.server_cert is not None and options.server_key is not None:
            own = read_certified_key(
                options.server_cert, options.server_key, ("--server-cert", "--server-key")
            )
        return ClientIdentity(
            tokenizer,
            vocabulary,
            token,
            model_hash,
            device=token_hex(16),
            roots=roots,
            server_name=options.server_name or "",
            certificate=own.certificate if own else None,
            key=own.key if own else None,
        )


def _read_token(path: Path) -> str:
    """Return the token in a file without blanks around it; SkitError, which does not repeat it, if
    it is no text.
    """
    try:
        return read_file(path).decode().strip()
    except UnicodeDecodeError as error:
        raise SkitError(
            f"--server-token {path} holds no text: write the token alone into it, in UTF-8"
        ) from error


TIMEOUT_S = 3.0


class Diagnosis(NamedTuple):
    """What keeps a client from a server, in words; `is_there` if a server answers and refuses
    something.
    """

    reason: str
    is_there: bool = False


def diagnose(address: str, options: ConnectionOptions, roots: bytes | None) -> Diagnosis:
    """Return what keeps a client from a server; its reason is empty if a plain connection shows
    nothing.

    `roots` are the certificates that the client trusts, None without TLS.
    """
    host, port = host_and_port(address)
    place = host.strip("[]"), port
    try:
        if roots is None and _speaks_http(place):
            kind = f"name its kind, as in llama-cpp://{address}, where the command takes other servers than skit serve"
            return Diagnosis(
                f"an HTTP server answers there, and no skit serve: {kind}", is_there=True
            )
        with socket.create_connection(place, TIMEOUT_S) as plain:
            reason = (
                _without_tls(plain) if roots is None else _with_tls(plain, host, options, roots)
            )
            return Diagnosis(reason, is_there=bool(reason))
    except socket.gaierror:
        if "://" in address:
            return Diagnosis(
                "this takes a skit serve, as HOST:PORT; skit bench and skit ab take other kinds of servers"
            )
        return Diagnosis(f"no host is called {host}")
    except ConnectionRefusedError:
        return Diagnosis("nothing listens there")
    except OSError as error:
        return Diagnosis(error.strerror or "it does not answer")


def _speaks_http(place: tuple[str, int]) -> bool:
    """Return whether a server answers a request of HTTP/1.1, which a gRPC server does not."""
    with socket.create_connection(place, TIMEOUT_S) as plain:
        plain.settimeout(TIMEOUT_S)
        plain.sendall(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        try:
            return plain.recv(5) == b"HTTP/"
        except OSError:
            return False


def _without_tls(plain: socket.socket) -> str:
    """Return whether the server asks for TLS although this client was told of none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except OSError:
        return ""
    return "it speaks TLS: give --server-ca"


def _with_tls(plain: socket.socket, host: str, options: ConnectionOptions, roots: bytes) -> str:
    """Return what a handshake with the client's options shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=roots.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    if options.server_cert is not None and options.server_key is not None:
        context.load_cert_chain(options.server_cert, options.server_key)
    name = options.server_name or host
    try:
        with context.wrap_socket(plain, server_hostname=name.strip("[]")) as secure:
            # A server sends its settings at once, unless it refuses this device after the
            # handshake.
            accepted = bool(secure.recv(1))
    except ssl.SSLCertVerificationError as error:
        return _untrusted(error.verify_message, name)
    except ssl.SSLError as error:
        if {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"} & {error.reason}:
            return "it speaks no TLS: leave out --server-ca"
        accepted = False
    except TimeoutError:
        return ""
    except OSError:
        accepted = False
    if accepted:
        return ""
    if options.server_cert is None:
        return "it asks for a certificate of this device: give --server-cert and --server-key"
    return "it does not trust the certificate of --server-cert"


def _untrusted(message: str, name: str) -> str:
    if "mismatch" in message:
        return f"its certificate is not for {name}: give --server-name with a name that it is for"
    if "expired" in message or "not yet valid" in message:
        return f"its {message}"
    return f"its certificate was not signed by one of --server-ca ({message})"
