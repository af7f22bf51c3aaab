"""Autoregressive decoding that crosses the link for every token, as a client that only verifies
would do it.
"""

from dataclasses import dataclass

from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Environment, Method, methods


@methods.register("round-trips")
@dataclass(frozen=True)
class RoundTrips(Autoregressive):
    """Decode one token per round trip: each token is asked for over the link, without a draft.

    No server decodes like this, since a server streams its tokens. It shows what the link alone
    costs a method that drafts nothing, and is no baseline of a speedup.
    """

    source = "what clients that only verify do without a draft"
    group = "bounds"
    needs = "a deployment or a server"
    uses_drafter = True
    placement = "edge"

    def prepare(self, environment: Environment) -> Method:
        environment.require_link("round-trips")
        return self
