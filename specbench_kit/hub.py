"""Whether the Hugging Face hub can be reached, asked once and quickly."""

import os
import socket
from functools import cache
from urllib.parse import urlsplit

PROBE_TIMEOUT_S = 2.0


@cache
def hub_reachable() -> bool:
    """Try a TCP connection to the hub, or to the proxy that leads there, before any library retries for minutes."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    url = urlsplit(proxy or os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        with socket.create_connection((url.hostname or "", port), timeout=PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
