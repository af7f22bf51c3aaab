"""What `skit list deployments` says of each deployment."""

from typing import Any

from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import LOCAL, Definition, bundled

MEASURED = {
    "name": LOCAL,
    "summary": "measured: this machine as it is; what is used unless --deployment names another",
    "time_kind": "measured",
}


def entries() -> list[dict[str, Any]]:
    """One object per deployment, this machine first."""
    return [MEASURED, *map(_entry, bundled().values())]


def _entry(definition: Definition) -> dict[str, Any]:
    found = describe(definition.build())
    sweep = {"sweep": dict(swept)} if (swept := definition.content.get("sweep")) else {}
    return {**found, "summary": f"modelled: {found['description']}", "time_kind": "modelled", **sweep}
