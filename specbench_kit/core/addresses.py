"""Addresses of machines on a network."""

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
