"""Small HTTP servers that run in a thread of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

POLL_S = 0.02
"""How often a server looks whether it is to stop; the library's own half a second is waited for in every test."""


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[int]:
    """Serve in a thread, yield the port, and stop at the end."""
    thread = Thread(target=server.serve_forever, args=(POLL_S,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class ReplyingHandler(BaseHTTPRequestHandler):
    """Replies with whole contents over connections that stay open, and writes no log."""

    disable_nagle_algorithm = (
        True  # else each reply waits 40 ms for the acknowledgement of the last one
    )
    protocol_version = "HTTP/1.1"

    def reply(self, status: int, content: bytes) -> None:
        """Send the status, and a body of known length."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


class OneModelHandler(ReplyingHandler):
    """Lists one model, `tiny`, and knows no other address to read."""

    def do_GET(self) -> None:
        is_list = self.path == "/v1/models"
        self.reply(200 if is_list else 404, b'{"data": [{"id": "tiny"}]}' if is_list else b"{}")
