"""The event loop that streams are served in: libuv's where it runs, since a message takes less time there."""

from importlib.util import find_spec

if find_spec("uvloop") is None:  # there is none for Windows
    from asyncio import run as run_loop
else:
    from uvloop import run as run_loop

__all__ = ["run_loop"]
