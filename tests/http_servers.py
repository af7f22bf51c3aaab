"""Small HTTP servers that run in a thread of the tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
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
