"""Addresses of servers under test: `NAME=KIND://HOST:PORT`. Imports nothing heavy."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from specbench_kit.core.errors import SkitError

USAGE = "give NAME=KIND://HOST:PORT, such as plain=vllm://127.0.0.1:8000 or spec=chat+https://host.example/v1#model"
NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
WEB = ("http", "https")
ANY = "completions"
"""The kind of server at a plain http:// or https:// address."""
CHAT_ROUTE = "/v1/chat/completions"
ROUTES = (
    CHAT_ROUTE,
    "/v1/completions",
    "/chat/completions",
    "/completions",
    "/completion",
    "/generate_stream",
    "/generate",
    "/v1/models",
)
"""The ends of addresses that name a route; every kind of server adds its own."""


@dataclass(frozen=True, slots=True)
class ServerUnderTest:
    """One server under test: the name that it has in reports, its kind, where it is, and the model
    asked for.
    """

    name: str
    dialect: str
    base: str
    model: str = ""

    @property
    def shown(self) -> str:
        """Return the address as it was given, without the name."""
        return f"{self.dialect}+{self.base}" + (f"#{self.model}" if self.model else "")


def parse_server(text: str) -> ServerUnderTest:
    """Return the server that `NAME=KIND://HOST:PORT/PATH#MODEL` names; KIND may end in `+https`.

    Raise SkitError for any other text, and for an address that holds a key: keys belong in
    environment variables.
    """
    name, equals, address = text.partition("=")
    if not equals or not NAME.fullmatch(name):
        raise SkitError(f"'{_without_secrets(text)}' names no server: {USAGE}")
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise SkitError(f"{name}: {error}: {USAGE}") from error
    if "@" in parts.netloc or parts.query:
        raise SkitError(
            f"{name}: leave user, password and query out of the address, since it is stored with the results; an API "
            f"key is read from the environment variable SKIT_API_KEY, or SKIT_API_KEY_ with the server's name"
        )
    kind, plus, web = parts.scheme.partition("+")
    if kind in WEB and not plus:
        kind, web = ANY, kind
    if not parts.hostname or (plus and web not in WEB):
        raise SkitError(f"'{_without_secrets(text)}' names no server: {USAGE}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    # Paths of the routes begin with /v1 where they need it.
    path = parts.path.rstrip("/").removesuffix("/v1")
    place = host + (f":{port}" if port is not None else "")
    route = next((route for route in ROUTES if path.endswith(route)), "")
    if route:
        scheme = "chat" if CHAT_ROUTE.endswith(route) and kind == ANY else kind
        shown = f"{scheme}{f'+{web}' if web == 'https' else ''}://{place}{path.removesuffix(route)}"
        raise SkitError(
            f"{name}: leave out {route}, since the kind of a server adds its route: write {name}={shown}"
        )
    base = f"{web or 'http'}://{place}{path}"
    return ServerUnderTest(name, kind, base, parts.fragment)


def _without_secrets(text: str) -> str:
    return re.sub(r"\?[^#]*", "?...", re.sub(r"//[^/@]*@", "//...@", text))
