"""The event loop that streams are served in: libuv's where it runs, since a message takes less time there."""

import sys

if sys.platform == "win32":
    from asyncio import run as run_loop
else:
    from uvloop import run as run_loop

__all__ = ["run_loop"]
