"""What a method is told of the place where it will run."""

from typing import TYPE_CHECKING

from specbench_kit.deployments.base import Deployment
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Environment, Latencies
from specbench_kit.predictors.library import PairHashes

if TYPE_CHECKING:
    import torch

    from specbench_kit.decoding.latency import LatencyModel
    from specbench_kit.profilers.base import Role


def environment(pair: PairHashes, deployment: Deployment | None, device: "str | torch.device" = "auto") -> Environment:
    """Of a deployment, or of this machine's device, for which the pair has to be profiled first."""

    def latencies() -> Latencies:
        if deployment is not None:
            return Latencies(deployment.drafter.latency, deployment.verifier.latency)
        return Latencies(_measured(pair.draft, "drafter", device), _measured(pair.target, "verifier", device))

    return Environment(pair, latencies, modelled=deployment is not None)


def _measured(model_hash: str, role: "Role", device: "str | torch.device") -> "LatencyModel":
    from specbench_kit.profilers.loading import find_measured

    profile = find_measured(model_hash, role, device, form="context")
    if profile is None:
        raise SkitError(
            f"no latency profile of this pair's {role} was measured on this machine: "
            "run skit profile-drafter with the same --target and --draft, or choose a --deployment"
        )
    return profile.latency()
