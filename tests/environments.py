"""A place for methods to run in: a deployment with simple latencies."""

from tiny_predictors import PAIR

from specbench_kit.decoding.latency import ContextModel
from specbench_kit.deployments.base import Deployment, Endpoint
from specbench_kit.deployments.placing import environment
from specbench_kit.runs.deployment import Link

DEPLOYMENT = Deployment(
    "test",
    drafter=Endpoint("edge", ContextModel(alpha_s=1e-7, gamma_s=1e-5, delta_s=1e-3)),
    verifier=Endpoint("server", ContextModel(alpha_s=1e-6, gamma_s=1e-4, delta_s=1e-2)),
    link=Link(rtt_s=0.01),
)
ENVIRONMENT = environment(PAIR, DEPLOYMENT)
