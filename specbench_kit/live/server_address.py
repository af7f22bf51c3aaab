"""The servers that the user names, and the connection to them."""

from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from specbench_kit.core.errors import SkitError
from specbench_kit.deployments.base import Link
from specbench_kit.live.address import host_and_port, read_file
from specbench_kit.live.certificates import read_certified_key, read_roots, system_roots
from specbench_kit.live.connection import ClientIdentity, Connection, ConnectionLostError
from specbench_kit.live.connection_options import SYSTEM, ConnectionOptions
from specbench_kit.live.diagnosis import diagnose


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The HOST:PORT of a `skit serve`, or several with commas, or ENGINE://HOST:PORT, and how to connect.

    `link` is emulated on this machine. With `silence_s`, a `skit serve` goes on with a response by itself while this
    device sends nothing for that long.
    """

    address: str
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    link: Link | None = None
    silence_s: float = 0.0

    def connect(self, *, tokenizer: str = "", vocabulary: int = 0, model_hash: str = "") -> Connection:
        """Return a connection to a `skit serve`; raise SkitError with one line if there is none."""
        for address in self.address.split(","):
            host_and_port(address)
        identity = self._identity(tokenizer, vocabulary, model_hash)
        try:
            return Connection(self.address, identity, self.link, self.options.server_wait)
        except ConnectionLostError as lost:
            found = {address: diagnose(address, self.options, identity.roots) for address in self.address.split(",")}
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
        options, roots, own = self.options, None, None
        token = _read_token(options.server_token) if options.server_token else ""
        if options.server_ca is not None:
            roots = system_roots() if options.server_ca == SYSTEM else read_roots(options.server_ca, "--server-ca")
        if options.server_cert is not None and options.server_key is not None:
            own = read_certified_key(options.server_cert, options.server_key, ("--server-cert", "--server-key"))
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
    """Return the token in a file without blanks around it; SkitError, which does not repeat it, if it is no text."""
    try:
        return read_file(path).decode().strip()
    except UnicodeDecodeError as error:
        raise SkitError(f"--server-token {path} holds no text: write the token alone into it, in UTF-8") from error
