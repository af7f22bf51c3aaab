"""Redirects of a server: followed within its host, and named everywhere else, so that no key leaves
the host.
"""

import httpx

from specbench_kit.live.engines.wording import shown_address

PERMANENT = (httpx.codes.MOVED_PERMANENTLY, httpx.codes.PERMANENT_REDIRECT)
TEMPORARY = (httpx.codes.FOUND, httpx.codes.TEMPORARY_REDIRECT)
MOST = 5
"""Redirects of one request that are followed."""


class RedirectedError(Exception):
    """A server redirects a request to where it must not be sent."""


class Route:
    """The address of a path of a server, which changes with each redirect of a request to it.

    `moved` holds where permanent redirects led earlier requests: only the first one takes their time.
    """

    def __init__(self, path: str, moved: dict[str, httpx.URL]) -> None:
        self._path = path
        self._moved = moved
        self._followed = 0
        self._is_permanent = True
        self.address: str | httpx.URL = moved.get(path, path)

    def is_redirected(self, response: httpx.Response) -> bool:
        """Return True if the same request has to be sent again, to the new `address`.

        Raise RedirectedError, which names the target, if that is on another host or has another
        protocol: keys, request and the check of certificates belong to the server that was named.
        """
        if not response.has_redirect_location:
            return False
        target = response.url.join(response.headers["Location"])
        words = f"answered {response.status_code} and redirects to {shown_address(target)}"
        if target.host != response.url.host:
            raise RedirectedError(
                f"{words} on another host, where no request is sent: name the server that answers"
            )
        if target.scheme != response.url.scheme:
            raise RedirectedError(
                f"{words} with another protocol: give the server's address with {target.scheme}"
            )
        if response.status_code not in (*PERMANENT, *TEMPORARY):
            raise RedirectedError(f"{words}, which holds no answer to a request")
        self._followed += 1
        if self._followed > MOST:
            raise RedirectedError(f"{words} after {MOST} other redirects")
        self.address = target
        self._is_permanent = self._is_permanent and response.status_code in PERMANENT
        if self._is_permanent:
            self._moved[self._path] = target
        return True
