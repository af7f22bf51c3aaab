"""The chosen replica as a deployment of its own, with which `skit capacity` and `skit simulate` check the plan."""

import shlex
import shutil
from copy import deepcopy
from pathlib import Path

import tomli_w

from specbench_kit.profilers import cards
from specbench_kit.profilers.loading import save
from specbench_kit.runs.folder import write_text
from specbench_kit.studies.planning.candidates import SYSTEM, Market, pausing
from specbench_kit.studies.planning.search import Fleet

DEPLOYMENT = "deployment.toml"
VERIFIER = "verifier.toml"
DRAFTER = "drafter.toml"


def write_deployment(folder: Path, market: Market, plan: Fleet) -> str:
    """Write the deployment of a replica and its profiles; return the command that simulates a full replica there."""
    candidate = plan.candidate
    server = candidate.server
    content = deepcopy(dict(market.definition.content))
    content |= {"name": "plan", "description": f"The replica of a plan: {candidate.label}."}
    for part in ("colocated", "sweep"):
        content.pop(part, None)
    save(folder / VERIFIER, market.profile(server))
    content["verifier"] = {
        "device": market.deployment(server, candidate.placement).verifier.device,
        "profile": VERIFIER,
        "price_per_hour": server.price_per_hour,
    }
    if candidate.placement == "server":
        save(folder / DRAFTER, market.draft_profile(server))
        content["drafter"] = {"device": server.device.title, "profile": DRAFTER, "placement": "server"}
    elif cards.names_a_file(str(content["drafter"].get("profile", ""))):
        shutil.copyfile(market.definition.path.parent / content["drafter"]["profile"], folder / DRAFTER)
        content["drafter"] = {**content["drafter"], "profile": DRAFTER}
    write_text(folder / DEPLOYMENT, tomli_w.dumps(content))
    return shlex.join(["skit", "simulate", *check_arguments(Path(DEPLOYMENT), market, plan)])


def check_arguments(deployment: Path, market: Market, plan: Fleet) -> list[str]:
    """Return the options of `skit simulate` for a full replica of a plan."""
    options = market.options
    candidate = plan.candidate
    arguments = [
        *("--deployment", str(deployment), "--system", SYSTEM[candidate.placement], "--method", candidate.method),
        *("--scheduler", candidate.scheduler, "--max-batch", str(candidate.max_batch)),
        *("--acceptance", options.acceptance, "--slo", options.slo, "--devices", str(plan.devices_per_replica)),
        *("--kv-tokens", f"{market.kv_tokens(candidate.server, candidate.placement):.0f}"),
        *("--seed", str(options.seed), "--seeds", str(options.seeds)),
        *("--duration", f"{options.duration_s:g}", "--warm-up", f"{options.warmup_s:g}"),
    ]
    if options.think_s:
        arrivals = pausing(options.think_s, market.response_s)
        arguments += [
            "--arrivals",
            f"closed:think_s={arrivals.think_s:g},ramp_s={arrivals.ramp_s:g},exponential=true",
        ]
    for name, text in (("--prompt-tokens", options.prompt_tokens), ("--output-tokens", options.output_tokens)):
        arguments += [name, text] if text is not None else []
    return arguments
