"""What a simulation was set to, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from specbench_kit.reports.writing import deployment
from specbench_kit.reports.writing.formatting import count, seconds, share, significant
from specbench_kit.reports.writing.markup import code, table
from specbench_kit.reports.writing.wording import dataset_sentence

Fields = Mapping[str, Any]

NOTE = (
    "Only time is modelled, by the latency models above. Which tokens are accepted comes from the acceptance that is "
    "named for each series, which need not be that of the models whose latencies these are."
)


def setting(run: Fields) -> str:
    config = run["config"]
    lengths = [f"{config[f'{name}_tokens'] or 'as recorded'} {name}" for name in ("prompt", "output")]
    faster = f" at {config['arrivals_scale']:g} times the rate" if config["arrivals_scale"] != 1 else ""
    judged = "token speed end to end" if config["objective"] == "speed" else "time per token after the first"
    rows = [
        ("arrivals", f"{config['arrivals']}{faster}"),
        ("SLO", ", ".join(config["slo"])),
        ("held against it", judged),
        ("tokens, unless arrivals say", ", ".join(lengths)),
        ("links", f"as recorded in {code(str(config['link_trace']))}" if config["link_trace"] else ""),
        ("shared uplink", _rate(config["shared_up_bytes_per_s"])),
        ("a message at the server", seconds(config["frame_s"]) if config["frame_s"] else ""),
        ("largest batch", str(config["max_batch"])),
        ("simulated", f"{config['duration_s']:g} s, of which {config['warmup_s']:g} s of warm-up do not count"),
        ("seeds", f"{config['seeds']}, from {config['seed']} on; the same for every series"),
        ("dataset", dataset_sentence(run["dataset"]) if run["dataset"] else ""),
        ("estimator's profile", config["estimator_profile"] or "the server's own"),
    ]
    return "## What was simulated\n\n" + table(["", ""], [row for row in rows if row[1]])


def _rate(bytes_per_s: float | None) -> str:
    return f"{count(bytes_per_s)} bytes/s, first come, first served" if bytes_per_s else ""


def series(run: Fields) -> str:
    header = ["series", "system", "scheduler", "method", "acceptance", "sent / round", "accepted", "tokens / round"]
    rows = [
        (
            code(one["label"]),
            f"{one['system']}: {one['summary']}",
            code(one["scheduler"]),
            code(one["method"]),
            _acceptance(run, one),
            significant(one["typical"]["submitted"]),
            share(one["typical"]["acceptance"]),
            significant(one["typical"]["committed"]),
        )
        for one in run["series"]
    ]
    memory = [f"- {code(one['label'])}: {_memory(one['kv'])}" for one in run["series"]]
    return "\n\n".join(["## Series", table(header, rows), "Room for KV:", "\n".join(memory)])


def _acceptance(run: Fields, one: Fields) -> str:
    if one["acceptance"]:
        return code(one["acceptance"])
    name = (run["dataset"] or {}).get("name", "a dataset")
    return f"the recorded trace of {name}, replayed under the method"


def _memory(kv: Fields) -> str:
    context = f"; context of {count(kv['context'])}" if kv["context"] else ""
    return f"{count(kv['tokens'])} tokens, {kv['origin']}{context}" if kv["tokens"] else f"{kv['origin']}{context}"


def deployments(run: Fields) -> Iterator[str]:
    for name, described in run["deployments"].items():
        yield f"## Deployment {code(name)} (modelled)\n\n{table(['', ''], deployment.description(described))}"
    yield NOTE
