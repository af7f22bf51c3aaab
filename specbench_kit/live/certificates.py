"""Certificates and keys of both ends of a connection: every mistake in their files is one line."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from specbench_kit.core.errors import SkitError, require
from specbench_kit.live.connection_options import read_file

CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
KEY = b"PRIVATE KEY-----"


@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A certificate chain and its private key, PEM."""

    certificate: bytes
    key: bytes


def read_certified_key(certificate: Path, key: Path, options: tuple[str, str]) -> CertifiedKey:
    """Return the content of a certificate file and of its key; raise SkitError with the mistake if
    they do not work.

    `options` are the names under which the user gave the two files.
    """
    pair = CertifiedKey(read_file(certificate), read_file(key))
    if KEY in pair.certificate and CERTIFICATE not in pair.certificate:
        raise SkitError(
            f"{options[0]} {certificate} holds a private key, not a certificate: are the two swapped?"
        )
    require(
        CERTIFICATE in pair.certificate,
        f"{options[0]} {certificate} holds no certificate in the PEM format",
    )
    require(KEY in pair.key, f"{options[1]} {key} holds no private key in the PEM format")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def refuse_password() -> str:
        raise SkitError(
            f"{options[1]} {key} is encrypted: give one without a password, as `openssl pkey` writes it"
        )

    try:
        context.load_cert_chain(certificate, key, refuse_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SkitError(
                f"{options[1]} {key} is not the key of the certificate {certificate}"
            ) from error
        raise SkitError(
            f"{options[0]} {certificate} or {options[1]} {key} is damaged: {error.reason}"
        ) from error
    fault = _validity(context, pair.certificate)
    require(not fault, f"{options[0]} {certificate}: {fault}; make a new one")
    return pair


def read_roots(path: Path, option: str) -> bytes:
    """Return the certificates of a file; raise SkitError if it holds none."""
    content = read_file(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(
            cadata=content.decode("ascii", "replace")
        )
    except ssl.SSLError as error:
        raise SkitError(f"{option} {path} holds no certificate in the PEM format") from error
    return content


def system_roots() -> bytes:
    """Return the certificates that this machine trusts; raise SkitError if it has none."""
    places = ssl.get_default_verify_paths()
    files = [Path(places.cafile)] if places.cafile is not None else []
    if not files and places.capath is not None:
        files = sorted(Path(places.capath).glob("*.0"))
    stored = (
        ssl.create_default_context().get_ca_certs(binary_form=True) if not files else []
    )  # Windows has no files
    roots = [
        *map(Path.read_bytes, files),
        *(ssl.DER_cert_to_PEM_cert(root).encode() for root in stored),
    ]
    require(
        bool(roots),
        "this machine has no certificates that it trusts: give the authority's file by --server-ca",
    )
    return b"\n".join(roots)


def _validity(server: ssl.SSLContext, certificate: bytes) -> str:
    """Return what is wrong with the dates of a certificate, by a handshake of it with itself; empty
    if nothing.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=certificate.decode("ascii", "replace"))
    to_server = ssl.MemoryBIO()
    to_client = ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for end in (*ends, *ends):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return (
                error.verify_message
                if "expired" in error.verify_message or "yet" in error.verify_message
                else ""
            )
        except ssl.SSLError:
            return ""
    return ""
