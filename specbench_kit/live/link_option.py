"""How a shaped link is named."""

from math import inf

from specbench_kit.core.errors import SkitError
from specbench_kit.core.specs import from_options
from specbench_kit.deployments.base import Link


def parse_link(text: str) -> Link:
    """`rtt_s=0.02,jitter_s=0.002,up_bytes_per_s=1.25e6`: as in a deployment's link."""
    link = from_options("--link", Link, text)
    rates = link.up_bytes_per_s > 0 and link.down_bytes_per_s > 0
    if not (0 <= link.rtt_s < inf and 0 <= link.jitter_s < inf and rates):
        raise SkitError("--link: times are 0 or more seconds, bandwidths above 0 bytes per second")
    return link
