"""Run one simulation: `python -m benchmarks.serving_scene DEVICES SECONDS SYSTEM SERVER LOOP`.

LOOP is `native` or `python`. Print a line of JSON with its seconds of processor time and its number of events. It is
the second simulation of its process: searches run hundreds in each, and the first one waits for memory to be cleared.
"""

import json
import sys
from dataclasses import replace
from time import process_time

from specbench_kit.decoding.latency import InteractionModel
from specbench_kit.deployments.loading import find
from specbench_kit.serving.round_sources import iid
from specbench_kit.serving.scenario import Scenario
from specbench_kit.serving.simulation import simulate
from specbench_kit.serving.slo import parse_slo
from specbench_kit.serving.systems.base import systems

DEPLOYMENT = "wisp"
FAST = InteractionModel(a_s=1e-6, b_compute_s=0, b_read_s=1e-9, c_s=5e-3)
"""The latency of a server that keeps up with 10,000 devices."""


def scene(devices: int, duration_s: float, system: str, server: str) -> Scenario:
    """Return the scenario: prompts of 200 tokens, answers of 100, all SLO classes; `server` is own or fast."""
    deployment = find(DEPLOYMENT).build()
    if server == "fast":
        deployment = replace(deployment, verifier=replace(deployment.verifier, latency=FAST))
    return Scenario(
        deployment,
        systems.get(system),
        iid(0.8, 4),
        devices,
        slo=parse_slo("class-1:0.25,class-2:0.25,class-3:0.25,class-4:0.25"),
        prompt_tokens=200,
        output_tokens=100,
        max_batch=256,
        duration_s=duration_s,
        warmup_s=duration_s / 10,
    )


def main() -> None:
    devices, duration_s, system, server, loop = sys.argv[1:]
    scenario = scene(int(devices), float(duration_s), system, server)
    simulate(scenario, native=loop == "native")
    started_s = process_time()
    result = simulate(scenario, native=loop == "native")
    seconds = process_time() - started_s
    print(
        json.dumps(
            {"seconds": seconds, "events": result.events, "rounds": len(result.rounds["client"])}
        )
    )


if __name__ == "__main__":
    main()
