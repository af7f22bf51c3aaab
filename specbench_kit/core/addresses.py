"""Addresses of machines on a network."""

import re
from ipaddress import ip_address


def is_loopback(host: str) -> bool:
    """Return True if a host name or address is this machine's own."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_host_and_port(text: str) -> bool:
    """Return True if a text looks like the address of a server, such as `127.0.0.1:8001`, without
    its kind.
    """
    return bool(re.fullmatch(r"(localhost|[\w.-]+\.[\w-]+|\[[0-9a-fA-F:]+\]):\d{1,5}", text))
