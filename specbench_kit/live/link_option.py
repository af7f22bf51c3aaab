"""The value of `--link`: the network link that messages to a server are delayed by."""

from math import inf

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.deployments.base import Link


def parse_link(text: str) -> Link:
    """Return the link of a text such as `rtt_s=0.02,jitter_s=0.002,up_bytes_per_s=1.25e6`, as deployments have it."""
    link = from_options("--link", Link, text)
    has_bandwidth = link.up_bytes_per_s > 0 and link.down_bytes_per_s > 0
    if not (0 <= link.rtt_s < inf and 0 <= link.jitter_s < inf and has_bandwidth):
        raise SkitError("--link: times are 0 or more seconds, bandwidths above 0 bytes per second")
    return link
