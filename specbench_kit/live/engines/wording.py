"""What messages repeat of a server's words and addresses: a few of them, in one line, and never a
key.
"""

from json import dumps
from urllib.parse import quote

import httpx

from specbench_kit.core.plain_text import one_line

SHOWN = 200
"""Characters of a server's text that a message repeats."""


def without_secret(text: str, secret: str) -> str:
    """Return the text with every form of a secret that servers and libraries repeat replaced by
    stars.
    """
    for form in {secret, quote(secret, safe=""), dumps(secret)[1:-1]} if secret else ():
        text = text.replace(form, "***")
    return text


def shown_words(text: str, secret: str) -> str:
    """Return the beginning of a server's text in one line, cut after the secret was replaced and
    not inside it.
    """
    return one_line(without_secret(text, secret).strip())[:SHOWN]


def shown_address(url: httpx.URL) -> str:
    """Return an address without what may hold a key: user, password, query and fragment."""
    bare = url.copy_with(username=None, password=None, query=None, fragment=None)
    return f"{bare}{'?...' if url.query else ''}"
