"""Standard output and standard error that no failure of printing ends: the work behind them goes on
and is kept.

A character that the terminal or file cannot show is replaced. What cannot be written, because a
reader such as `head` has left or a disk is full, is dropped.
"""

import errno
import io
import os
import sys
from typing import Any, TextIO


class LastingOutput(io.FileIO):
    """A descriptor that keeps its first failure to write, and takes whatever follows without
    writing it.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes, or drop them once writing has failed."""
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


class Outputs:
    """The two standard streams of a command, made so that printing cannot end it."""

    def __init__(self) -> None:
        self._stdout = self._held("stdout", "replace")
        self._stderr = self._held("stderr", "backslashreplace")

    def _held(self, name: str, errors: str) -> LastingOutput | None:
        """Put a lasting stream in the place of a standard one; None where another program has put
        its own there.
        """
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # closed by whoever started the command
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
            return None
        if not isinstance(stream, io.TextIOWrapper):
            return None
        stream.reconfigure(errors=errors)
        unbuffered = isinstance(stream.buffer, io.FileIO)  # PYTHONUNBUFFERED
        if stream.isatty() or not (
            unbuffered or isinstance(getattr(stream.buffer, "raw", None), io.FileIO)
        ):
            return None
        stream.flush()
        raw = LastingOutput(stream.fileno())
        lasting = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, lasting)
        return raw

    def lost(self) -> str | None:
        """Return why the output of the command was lost, after all of it was printed; None if it
        was not.

        A reader that wants no more, as `head` does, loses nothing that it asked for.
        """
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        failure = self._stdout.failure if self._stdout is not None else None
        if failure is None or failure.errno == errno.EPIPE:
            return None
        return failure.strerror or type(failure).__name__
