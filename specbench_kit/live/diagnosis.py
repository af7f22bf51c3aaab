"""Why a server cannot be reached: what a plain connection to it shows, in words."""

import socket
import ssl
from typing import NamedTuple

from specbench_kit.live.address import host_and_port
from specbench_kit.live.connection_options import ConnectionOptions

TIMEOUT_S = 3.0


class Diagnosis(NamedTuple):
    """What keeps a client from a server, in words; `is_there` if a server answers and refuses something."""

    reason: str
    is_there: bool = False


def diagnose(address: str, options: ConnectionOptions, roots: bytes | None) -> Diagnosis:
    """Return what keeps a client from a server; its reason is empty if a plain connection shows nothing.

    `roots` are the certificates that the client trusts, None without TLS.
    """
    host, port = host_and_port(address)
    try:
        with socket.create_connection((host.strip("[]"), port), TIMEOUT_S) as plain:
            reason = _without_tls(plain) if roots is None else _with_tls(plain, host, options, roots)
            return Diagnosis(reason, is_there=bool(reason))
    except socket.gaierror:
        return Diagnosis(f"no host is called {host}")
    except ConnectionRefusedError:
        return Diagnosis("nothing listens there")
    except OSError as error:
        return Diagnosis(error.strerror or "it does not answer")


def _without_tls(plain: socket.socket) -> str:
    """Return whether the server asks for TLS although this client was told of none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
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
            # A server sends its settings at once, unless it refuses this device after the handshake.
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
