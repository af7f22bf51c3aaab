"""Find out quickly if the Hugging Face hub or another server answers, before a library retries for
long.
"""

from functools import cache
from threading import Event, Thread

TIMEOUT_S = 3.0
"""Seconds to wait for an answer; the retries of the hub's own library take more than 20."""


def hub_reachable() -> bool:
    """Return True if the hub answers and the environment does not forbid using it."""
    from huggingface_hub import constants

    return not constants.HF_HUB_OFFLINE and is_reachable(constants.ENDPOINT)


@cache
def is_reachable(url: str) -> bool:
    """Return True if `url` answers within TIMEOUT_S, through the proxies of the environment."""
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    answered = Event()

    def request() -> None:
        try:
            with urlopen(Request(url, method="HEAD"), timeout=TIMEOUT_S):
                answered.set()
        except HTTPError as error:
            if error.code < 500:  # refusing HEAD or asking for a token is an answer too
                answered.set()
        except (OSError, ValueError, HTTPException):
            pass

    # A thread, because the look-up of a host name ignores the time-out of urlopen.
    thread = Thread(target=request, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    return answered.is_set()
