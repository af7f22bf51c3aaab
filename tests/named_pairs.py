"""A small named pair, wheels with its parts in a folder for pip, and a local server in the place of the hub."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from zipfile import ZipFile

import pytest
from http_servers import running
from huggingface_hub import constants
from transformers import AutoTokenizer

from benchmarks import gguf_file
from specbench_kit.models.catalogue import locate
from specbench_kit.models.named import NamedPair, read_pairs
from specbench_kit.models.pair import load_model

PARTS = 2
VERSION = "1.0"
CATALOGUE_ENTRY = """
[{name}.{role}]
title = "Tiny {role}"
repository = "nobody/tiny-{role}"
hub_file = "tiny-{role}.gguf"
size_bytes = {size}
parameters = {parameters}
sha256 = "{digest}"
package.name = "tiny-{role}-part{{part}}"
package.version = "1.0"
package.file = "tiny_{role}_part{{part}}/data/part{{part:02}}.bin"
package.parts = {parts}
package.part_bytes = {part_bytes}
"""


def write_models(folder: Path) -> dict[str, Path]:
    """Write the bundled draft model as two GGUF files with other bytes, by role."""
    draft = locate("bundled", "draft")
    loaded, tokenizer = load_model(draft), AutoTokenizer.from_pretrained(draft.location)
    files = {}
    for role, kind in (("target", "F16"), ("draft", "Q8_0")):
        files[role] = folder / f"tiny-{role}.gguf"
        gguf_file.write(loaded, tokenizer, files[role], kind)
    return files


def write_catalogue(path: Path, files: dict[str, Path], name: str = "tiny") -> NamedPair:
    """Write a catalogue with one pair of these files, and read it again."""
    text = f'[{name}]\nsummary = "A tiny pair"\nlicence = "none"\n'
    for role, file in files.items():
        content = file.read_bytes()
        text += CATALOGUE_ENTRY.format(
            name=name,
            role=role,
            size=len(content),
            parameters=len(content) // 2,
            digest=sha256(content).hexdigest(),
            parts=PARTS,
            part_bytes=part_bytes(content),
        )
    path.write_text(text)
    return read_pairs(path)[name]


def part_bytes(content: bytes) -> int:
    """The size of every part except the last, which is smaller."""
    return len(content) // PARTS + 1


def write_wheels(folder: Path, role: str, content: bytes) -> list[Path]:
    """Cut a file into wheels, whose code must not run."""
    size = part_bytes(content)
    return [
        write_wheel(folder, role, part, content[(part - 1) * size : part * size])
        for part in range(1, PARTS + 1)
    ]


def write_wheel(folder: Path, role: str, part: int, content: bytes) -> Path:
    """Write the wheel of one part."""
    module = f"tiny_{role}_part{part}"
    wheel = folder / f"{module}-{VERSION}-py3-none-any.whl"
    information = f"{module}-{VERSION}.dist-info"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(f"{module}/__init__.py", "raise RuntimeError('imported')\n")
        archive.writestr(f"{module}/data/part{part:02}.bin", content)
        name = module.replace("_", "-")
        archive.writestr(
            f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n"
        )
        archive.writestr(
            f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{information}/RECORD", "")
    return wheel


class Hub:
    """A local server's files, and the requests that it got.

    `files` are the contents by name. `cut_after` is the number of bytes after which it closes the connection, and
    `hold_after` that after which it falls silent until `released`.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.ranges: list[str | None] = []
        self.cut_after: int | None = None
        self.hold_after: int | None = None
        self.knows_ranges = True
        self.held, self.released = threading.Event(), threading.Event()


@contextmanager
def local_hub() -> Iterator[Hub]:
    """Serve files as the hub does, at an address of this machine."""

    class HubHandler(BaseHTTPRequestHandler):
        disable_nagle_algorithm = (
            True  # else each event waits 40 ms for the acknowledgement of the last one
        )

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            owner_and_name, _, file = self.path.removeprefix("/").partition("/resolve/main/")
            content = hub.files.get(file) if owner_and_name.startswith("nobody/") else None
            if content is None:
                self.send_error(404)
                return
            range_header = self.headers.get("Range")
            hub.ranges.append(range_header)
            start = (
                int(range_header.removeprefix("bytes=").rstrip("-"))
                if range_header and hub.knows_ranges
                else 0
            )
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self._send(content[start:])

        def _send(self, content: bytes) -> None:
            if hub.hold_after is not None:
                self.wfile.write(content[: hub.hold_after])
                self.wfile.flush()
                hub.held.set()
                hub.released.wait()
            else:
                self.wfile.write(content[: hub.cut_after])

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), HubHandler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    with running(server):
        try:
            yield hub
        finally:
            hub.released.set()


def use_hub(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    """Make this process take the local server for the hub."""
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
