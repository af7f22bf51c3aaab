"""Whether the Hugging Face hub, or another server, can be reached; asked before a library retries for long."""

from functools import cache
from threading import Event, Thread

PROBE_S = 3.0
"""How long an answer is waited for; the hub library's own retries take over 20 seconds."""


def hub_reachable() -> bool:
    """Whether the hub is_reachable, and the environment does not forbid asking it."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and is_reachable(constants.ENDPOINT)


@cache
def is_reachable(url: str) -> bool:
    """Whether `url` is_reachable in time, through the proxies of the environment.

    In a thread of its own, because a name look-up heeds no time-out.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answered = Event()

    def ask() -> None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=PROBE_S):
                answered.set()
        except HTTPError as error:
            if error.code < 500:
                answered.set()
        except (OSError, ValueError, HTTPException):
            pass

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_S)
    return answered.is_set()
