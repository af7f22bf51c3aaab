"""What a method is told of the place where it will run."""

from specbench_kit.deployments.base import Deployment
from specbench_kit.errors import SkitError
from specbench_kit.methods.base import Environment, Latencies
from specbench_kit.predictors.artefact import PairHashes


def environment(pair: PairHashes, deployment: Deployment | None) -> Environment:
    """Of a deployment, or of this machine, whose latencies have to be profiled for the pair first."""

    def latencies() -> Latencies:
        if deployment is None:
            raise SkitError("no latency profile of this pair on this machine: run skit profile-drafter")
        return Latencies(deployment.drafter.latency, deployment.verifier.latency)

    return Environment(pair, latencies)
