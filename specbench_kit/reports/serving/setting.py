"""The sections on how a simulation was set up."""

from specbench_kit.core.slo_names import slo_in_words
from specbench_kit.reports.document import Block, Blocks, BulletList, Column, Heading, Paragraph, Table, code, facts
from specbench_kit.reports.sections import deployment
from specbench_kit.reports.sections.wording import dataset_sentence
from specbench_kit.reports.stored import RunFile
from specbench_kit.reports.writing.formatting import count, seconds

NOTE = (
    "Only time is modelled, by the latency models above. Which tokens are accepted comes from the acceptance of each "
    "series, which may be that of other models than those whose latencies these are."
)


def setting(run: RunFile) -> Blocks:
    """Return the load, the SLOs and the limits of the simulated server."""
    config = run["config"]
    lengths = [f"{config[f'{name}_tokens'] or 'as recorded'} {name}" for name in ("prompt", "output")]
    faster = f" at {config['arrivals_scale']:g} times the rate" if config["arrivals_scale"] != 1 else ""
    uplink = config["shared_up_bytes_per_s"]
    rows = [
        ("arrivals", f"{config['arrivals']}{faster}"),
        ("promised speed (SLO)", "; ".join(map(slo_in_words, config["slo"]))),
        (
            "SLO applies to",
            "token speed end to end" if config["objective"] == "speed" else "time per token after the first",
        ),
        ("tokens, unless the arrivals give them", ", ".join(lengths)),
        ("links", f"as recorded in {code(str(config['link_trace']))}" if config["link_trace"] else ""),
        ("shared uplink", f"{count(uplink)} bytes/s, first come, first served" if uplink else ""),
        ("time of a message at the server", seconds(config["frame_s"]) if config["frame_s"] else ""),
        ("largest batch", str(config["max_batch"])),
        ("simulated", f"{config['duration_s']:g} s, of which {config['warmup_s']:g} s of warm-up do not count"),
        ("seeds", f"{config['seeds']}, from {config['seed']} on; the same for every series"),
        ("dataset", dataset_sentence(run["dataset"]) if run["dataset"] else ""),
        ("profile of the estimator", config["estimator_profile"] or "the server's own"),
    ]
    return [Heading("What was simulated"), facts([row for row in rows if row[1]])]


def series(run: RunFile) -> Blocks:
    """Return system, scheduler, method, acceptance and KV memory of every series."""
    dataset = (run["dataset"] or {}).get("name", "a dataset")
    rows, memory = [], []
    for entry in run["series"]:
        typical, kv = entry["typical"], entry["kv"]
        acceptance = entry["acceptance"] and code(entry["acceptance"])
        rows.append(
            (
                code(entry["label"]),
                f"{entry['system']}: {entry['summary']}",
                code(entry["scheduler"]),
                code(entry["method"]),
                acceptance or f"the recorded trace of {dataset}, replayed with the method",
                *(typical[key] for key in ("submitted", "acceptance", "committed")),
            )
        )
        tokens = f"{count(kv['tokens'])} tokens, " if kv["tokens"] else ""
        context = f"; context of {count(kv['context'])}" if kv["context"] else ""
        memory.append(f"{code(entry['label'])}: {tokens}{kv['origin']}{context}")
    columns = (
        *("label", "system", "scheduler", "method", "acceptance", Column("sent / round", "number")),
        *(Column("accepted", "share"), Column("tokens / round", "number")),
    )
    return [Heading("Systems"), Table(columns, rows), Paragraph("Memory for KV:"), BulletList(memory)]


def deployments(run: RunFile) -> Blocks:
    """Return the latency models of every deployment."""
    blocks: list[Block] = []
    for name, described in run["deployments"].items():
        blocks += [Heading(f"Deployment {code(name)} (modelled)"), facts(deployment.description(described))]
    return [*blocks, Paragraph(NOTE)]
