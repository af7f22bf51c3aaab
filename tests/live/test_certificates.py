"""TLS on both ends: every mistake in files and certificates is a line of its own."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from certificates import make_certificate
from live_server import VOCABULARY, make_server, serving

from specbench_kit.core.errors import SkitError
from specbench_kit.live.certificates import read_certified_key
from specbench_kit.live.connection import Connection
from specbench_kit.live.connection_options import SYSTEM, ConnectionOptions
from specbench_kit.live.server.listening import ListenAddress
from specbench_kit.live.server.metrics import EventLog
from specbench_kit.live.server.settings import ServeSettings
from specbench_kit.live.server_address import ServerAddress

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl"
)
OPTIONS = ("--tls-cert", "--tls-key")


@dataclass(frozen=True)
class Files:
    """Certificates and keys of a server, of another one, of a device, and one for another name."""

    server: tuple[Path, Path]
    other: tuple[Path, Path]
    device: tuple[Path, Path]
    named: tuple[Path, Path]
    expired: tuple[Path, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("certificates")
    return Files(
        make_certificate(folder, "server"),
        make_certificate(folder, "other"),
        make_certificate(folder, "device"),
        make_certificate(folder, "named", subject="DNS:verifier.example"),
        make_certificate(folder, "expired", days=-1),
    )


@contextmanager
def secured(
    pair: tuple[Path, Path] | None, client_ca: Path | None = None, log: Path | None = None
) -> Iterator[str]:
    """Run a server with a certificate, and yield its address."""
    content = (None, None) if pair is None else tuple(path.read_bytes() for path in pair)
    listen = ListenAddress("127.0.0.1:0", *content, client_ca.read_bytes() if client_ca else None)
    service = make_server(listen=listen)
    service.log = service.handler.log = EventLog(log)
    with serving(service) as (_, address):
        yield address


def connect(address: str, **options: Any) -> Connection:
    return ServerAddress(address, ConnectionOptions(**options)).connect(
        tokenizer="same", vocabulary=VOCABULARY
    )


def test_names_certificates_of_devices_and_roots_of_the_system(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cert, key), log = files.device, tmp_path / "events.jsonl"
    with secured(files.named, client_ca=cert, log=log) as address:
        name = {"server_name": "verifier.example", "server_cert": cert, "server_key": key}
        assert connect(address, server_ca=files.named[0], **name).welcome.model == "tiny"
        monkeypatch.setenv("SSL_CERT_FILE", str(files.named[0]))
        assert connect(address, server_ca=SYSTEM, **name).welcome.model == "tiny"
    assert '"account": "certificate device"' in log.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ("server", {}, "it speaks TLS: give --server-ca"),
        ("plain", {"server_ca": "server"}, "it speaks no TLS: leave out --server-ca"),
        ("server", {"server_ca": "other"}, "its certificate was not signed by one of --server-ca"),
        (
            "named",
            {"server_ca": "named"},
            "its certificate is not for 127.0.0.1: give --server-name",
        ),
        ("expired", {"server_ca": "expired"}, "its certificate has expired"),
        (
            "mutual",
            {"server_ca": "server"},
            "it asks for a certificate of this device: give --server-cert",
        ),
        (
            "mutual",
            {"server_ca": "server", "own": "other"},
            "it does not trust the certificate of --server-cert",
        ),
    ],
)
def test_a_connection_that_cannot_be_says_why(
    server: str, client: dict[str, str], reason: str, files: Files
) -> None:
    pairs = {"plain": None, "mutual": files.server}
    pair = pairs[server] if server in pairs else getattr(files, server)
    options: dict[str, Path] = {}
    if "server_ca" in client:
        options["server_ca"] = getattr(files, client["server_ca"])[0]
    if "own" in client:
        options["server_cert"], options["server_key"] = getattr(files, client["own"])
    with (
        secured(pair, client_ca=files.device[0] if server == "mutual" else None) as address,
        pytest.raises(SkitError, match=f"no server answers at {address}: {reason}") as error,
    ):
        connect(address, **options)
    assert "start one with skit serve" not in str(error.value)


def test_a_mistake_in_the_files_is_found_before_the_model_is_loaded(
    files: Files, tmp_path: Path
) -> None:
    (cert, key), (_, foreign) = files.server, files.other
    empty, locked, damaged = (
        tmp_path / "empty.pem",
        tmp_path / "locked.pem",
        tmp_path / "damaged.pem",
    )
    empty.write_text("nothing")
    lock = ("openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked)
    subprocess.run(lock, check=True, capture_output=True)
    damaged.write_text(cert.read_text().replace("MII", "!!!", 1))
    mistakes = {
        (
            key,
            cert,
        ): f"--tls-cert {key} holds a private key, not a certificate: are the two swapped?",
        (empty, key): f"--tls-cert {empty} holds no certificate in the PEM format",
        (cert, empty): f"--tls-key {empty} holds no private key in the PEM format",
        (cert, foreign): f"--tls-key {foreign} is not the key of the certificate {cert}",
        (cert, locked): f"--tls-key {locked} is encrypted: give one without a password",
        (damaged, key): f"--tls-cert {damaged} or --tls-key {key} is damaged",
        files.expired: f"--tls-cert {files.expired[0]}: certificate has expired; make a new one",
        (tmp_path / "none.pem", key): f"cannot read {tmp_path / 'none.pem'}",
    }
    for (certificate, private), line in mistakes.items():
        with pytest.raises(SkitError) as error:
            read_certified_key(certificate, private, OPTIONS)
        assert str(error.value).startswith(line)
    with pytest.raises(SkitError, match=f"--server-ca {empty} holds no certificate"):
        connect("127.0.0.1:1", server_ca=empty)


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="--tls-client-ca needs TLS"):
        ServeSettings(tls_client_ca=tmp_path)
    for options, reason in (
        ({"server_cert": tmp_path}, "--server-cert and --server-key go together"),
        ({"server_name": "x"}, "need TLS: give --server-ca"),
        ({"server_wait": -1.0}, "--server-wait is 0 or more seconds"),
    ):
        with pytest.raises(SkitError, match=reason):
            ConnectionOptions(**options).require_connection_options()
