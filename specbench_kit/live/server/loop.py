"""The event loop of the server: libuv's where it is installed, since it takes less time per message."""

from importlib.util import find_spec

if find_spec("uvloop") is None:  # uvloop does not exist for Windows
    from asyncio import run as run_loop
else:
    from uvloop import run as run_loop

__all__ = ["run_loop"]
