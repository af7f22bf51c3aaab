"""Ends a policy that never returns, which would hang a run without a word.

A policy may take its time, but it drafts, or it returns. Two things show that it does neither:
calls of the drafter one after another that add no token, and a long time without any call.
"""

import ctypes
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from types import TracebackType

from specbench_kit.core.errors import PolicyError
from specbench_kit.decoding.clock import monotonic_s
from specbench_kit.decoding.distributions import DraftForward
from specbench_kit.decoding.drafter import Draft, Drafter, PlannedRound

FRUITLESS_CALLS = 1000
"""Calls of a drafter, one after another, that add no token, after which a policy is taken to never
return.
"""
SILENT_S = 30.0
"""Seconds in which a policy neither drafts nor returns after which it is taken to never return."""
LONGEST_STEP = 2.0
"""How many pauses between two looks count at most."""
POLLING_S = 1.0
"""Pause between two looks at a policy that is at work; a loop cannot be ended sooner than after the
next look.
"""


class NeverReturnsError(BaseException):
    """Raised inside a policy that takes too long; no `except Exception` of the policy may swallow
    it.
    """


class Watch:
    """Watches the hooks of one policy, which runs in one thread at a time; `with
    watch.hook("draft"): ...`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hook = ""
        self._thread = 0
        """The thread in which the policy is at work; 0 if it is not."""
        self._silent_s = 0.0
        """The time for which the policy was seen at work since it last got on."""
        self._is_ended = False

    def hook(self, name: str) -> "Watch":
        """Name the hook that is entered next, whose end an error would say is missing."""
        self._hook = name
        return self

    def __enter__(self) -> None:
        self._silent_s = 0.0
        self._is_ended = False
        self._thread = threading.get_ident()
        _watcher.watch(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        way: TracebackType | None,
    ) -> None:
        with self._lock:
            thread, self._thread = self._thread, 0
        if self._is_ended:
            # The policy may have returned in the moment in which it was to be ended: then nothing
            # may be raised later.
            _raise_in(thread, None)
            raise PolicyError(
                f"{self._hook} took {SILENT_S:.0f} s without drafting a token{_line_of(way)}: does one of its loops "
                "never end?"
            ) from None

    @contextmanager
    def rest(self) -> Iterator[None]:
        """Stop watching while the drafter works, which may take as long as it needs."""
        with self._lock:
            self._thread = 0
        try:
            yield
        finally:
            self._thread = threading.get_ident()

    def note_progress(self) -> None:
        """Count the time of silence from now on."""
        self._silent_s = 0.0

    def look(self, step_s: float) -> None:
        """Add the time since the last look if the policy is at work, and end it if it has been
        silent for too long.
        """
        with self._lock:
            self._silent_s += step_s if self._thread else 0.0
            if self._thread and not self._is_ended and self._silent_s > SILENT_S:
                self._is_ended = True
                _raise_in(self._thread, NeverReturnsError)


class _Watcher:
    """The thread that looks at the policies at work; it starts with the first one."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}

    def watch(self, watch: Watch) -> None:
        """Look at a policy from now on, in place of the one that was last at work in the same
        thread.
        """
        self._watches[threading.get_ident()] = watch
        if not self._is_alive():
            self._thread = threading.Thread(target=self._run, name="policies", daemon=True)
            self._thread.start()

    def _is_alive(self) -> bool:
        # The thread of a process that was forked is not that of its parent.
        thread: threading.Thread | None = getattr(self, "_thread", None)
        return thread is not None and thread.is_alive()

    def _run(self) -> None:
        pause = threading.Event()
        before_s = monotonic_s()
        while not pause.wait(POLLING_S):
            now_s = monotonic_s()
            step_s = counted_s(before_s, now_s)
            before_s = now_s
            for watch in list(self._watches.values()):
                watch.look(step_s)


def counted_s(before_s: float, now_s: float) -> float:
    """Return what counts of the time between two looks: while Ctrl-Z or a debugger stops a process,
    no policy works.
    """
    return min(now_s - before_s, LONGEST_STEP * POLLING_S)


_watcher = _Watcher()


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Raise an error in another thread at its next step, or take back one that was not raised
    yet.
    """
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(error) if error else None
    )


def _line_of(way: TracebackType | None) -> str:
    """Return where the hook was when it was ended, if that is known; the first frame is that of its
    caller.
    """
    frames = extract_tb(way)
    return f" ({frames[1].filename}, line {frames[1].lineno})" if len(frames) > 1 else ""


class WatchedDrafter:
    """A drafter as a policy sees it: the watch rests while it works, and calls that add no token
    are counted.
    """

    def __init__(self, drafter: Drafter, watch: Watch, most: int | None = FRUITLESS_CALLS) -> None:
        self._drafter = drafter
        self._watch = watch
        self._most = most
        self._fruitless = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._drafter, name)

    def extend(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Let the drafter append one token to each chain."""
        self._require_progress()
        with self._watch.rest():
            grown = self._drafter.extend(drafts)
        self._count(is_fruitful=bool(grown))
        return grown

    def expand(self, frontier: Sequence[tuple[Draft, Sequence[int]]]) -> DraftForward:
        """Let the drafter forward tree nodes, to which the policy adds others."""
        self._require_progress()
        # A node is expanded only once, so that one of them is progress.
        self._count(is_fruitful=any(nodes for _, nodes in frontier))
        with self._watch.rest():
            return self._drafter.expand(frontier)

    def foresee(self, draft: Draft, longest: int) -> Sequence[int] | None:
        """Let the drafter look ahead."""
        with self._watch.rest():
            return self._drafter.foresee(draft, longest)

    def fastest_rounds(
        self, draft: Draft, longest: int, *, server_decodes: bool
    ) -> Mapping[int, PlannedRound] | None:
        """Let the drafter plan the whole answer."""
        with self._watch.rest():
            return self._drafter.fastest_rounds(draft, longest, server_decodes=server_decodes)

    def _count(self, *, is_fruitful: bool) -> None:
        self._fruitless = 0 if is_fruitful else self._fruitless + 1
        if is_fruitful:
            self._watch.note_progress()

    def _require_progress(self) -> None:
        """Raise PolicyError at every call after those that led to nothing, whatever the policy does
        with the error.
        """
        if self._most is not None and self._fruitless >= self._most:
            raise PolicyError(
                f"draft asked the drafter {self._fruitless} times in a row for tokens that it had no room for: end the "
                "loop when extend returns no draft"
            )
