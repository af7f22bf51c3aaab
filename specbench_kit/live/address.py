"""Addresses and small files of a network connection. Imports nothing heavy."""

from pathlib import Path

from specbench_kit.core.errors import SkitError


def host_and_port(address: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; raise SkitError for any other text."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isdigit() and int(port) < 1 << 16):
        raise SkitError(f"'{address}' is no HOST:PORT, such as 127.0.0.1:7070")
    return host, int(port)


def read_file(path: Path) -> bytes:
    """Return the content of a file of certificates or tokens; raise SkitError if it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise SkitError(f"cannot read {path}: {error.strerror}") from error
