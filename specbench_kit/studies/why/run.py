"""`skit why`: from one or two servers, or from results, to a page that says why speculation is slow or fast."""

import asyncio
from contextlib import AsyncExitStack

import torch
from msgspec import to_builtins

from specbench_kit.core.errors import require
from specbench_kit.core.progress import ProgressCallback
from specbench_kit.core.typed_json import stated
from specbench_kit.datasets.base import LoadedDataset
from specbench_kit.live.engines.base import dialects
from specbench_kit.live.engines.client import Patience, StreamClient
from specbench_kit.live.engines.http import api_key
from specbench_kit.reports.study import finish
from specbench_kit.runs import provenance
from specbench_kit.runs.document import RunFields
from specbench_kit.runs.folder import require_writable, unused_folder
from specbench_kit.runs.machine.limits import read_machine
from specbench_kit.runs.machine.probe import probe_here
from specbench_kit.runs.machine.watch import Watch
from specbench_kit.studies.ab.run import busy_at_start, describe_server
from specbench_kit.studies.why.asking import Interview
from specbench_kit.studies.why.diagnosis import diagnose
from specbench_kit.studies.why.kind import WHY, WhyStudy
from specbench_kit.studies.why.settings import WhySettings
from specbench_kit.studies.why.stored import evidence_of


def explain_servers(
    settings: WhySettings, dataset: LoadedDataset, progress: ProgressCallback
) -> WhyStudy:
    """Ask the servers, and write a run directory with the page."""
    for address in settings.addresses:
        require(
            dialects.get(address.dialect).may_ignore_eos or not settings.ignore_eos,
            f"--ignore-eos: {address.name} is of the kind {address.dialect}, which cannot be told to go on after the "
            "end; leave it out",
        )
    require_writable(settings.out)
    return asyncio.run(_explain(settings, dataset, progress))


async def _explain(
    settings: WhySettings, dataset: LoadedDataset, progress: ProgressCallback
) -> WhyStudy:
    async with AsyncExitStack() as stack:
        clients = []
        for address in settings.addresses:
            patience = Patience(settings.timeout_s, retries=0)
            client = StreamClient(address, api_key(address.name), patience, settings.server_ca)
            stack.push_async_callback(client.close)
            clients.append(client)
        servers = [to_builtins(await describe_server(client)) for client in clients]
        watch = Watch(probe_here(), torch.device("cpu"))
        interview = Interview(settings, clients, dataset.prompts, progress)
        await interview.run()
        machine = [watch.end({})]
    run: RunFields = {
        "command": "why",
        "time_kind": "measured",
        "dataset": stated(dataset.describe()),
        "servers": servers,
        "config": settings.described(),
        "machine": machine,
    }
    folder = unused_folder(
        settings.out, "why", dataset.name, {"servers": servers, "config": settings.described()}
    )
    evidence = interview.evidence(busy_at_start(read_machine(machine)))
    described: RunFields = {**run, **provenance.collect(settings.argv)}
    return finish(WHY, folder, described, diagnose(evidence))


def explain_folders(settings: WhySettings) -> WhyStudy:
    """Read the results in the folders, and write a run directory with the page."""
    require_writable(settings.out)
    evidence = evidence_of(settings.folders)
    names = [folder.resolve().name for folder in settings.folders]
    described = {
        "command": WHY.command,
        "time_kind": "measured",
        "sources": names,
        "config": settings.described(),
        **provenance.collect(settings.argv),
    }
    folder = unused_folder(settings.out, "why", "results", {"sources": names})
    return finish(WHY, folder, described, diagnose(evidence))
