"""The priority of the verification thread."""

import os
import sys
from threading import get_native_id

NICE = 5
"""Added to the nice value of the verification thread, so that a message on a shared core need not wait for it."""


def lower_priority() -> None:
    """Lower the priority of the calling thread, where threads have one of their own."""
    if sys.platform == "linux":
        thread = get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICE)
