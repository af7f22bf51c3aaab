"""Interrupts: SIGINT (Ctrl-C) and SIGTERM end every command alike, with what is done kept."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any

from specbench_kit.core.errors import Interrupted


@contextmanager
def hear_interrupts() -> Iterator[None]:
    """Have SIGINT and SIGTERM raise KeyboardInterrupt inside; elsewhere than in the main thread,
    change nothing.

    A shell starts `skit ... &` in a script with SIGINT ignored, and Python then leaves it so: the
    process could only be killed.
    """
    if current_thread() is not main_thread():
        yield
        return
    handlers: dict[int, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: _interrupt,
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _interrupt(*_: object) -> None:
    """Pass SIGTERM on as SIGINT, so that an event loop, which has its own handler of SIGINT, hears
    it as well.
    """
    signal.raise_signal(signal.SIGINT)


@contextmanager
def kept_when_interrupted(kept: Callable[[], str]) -> Iterator[None]:
    """Turn an interrupt of the work inside into an error that says what is kept, and how to go on
    from there.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("; ".join(filter(None, ("interrupted", kept())))) from None
