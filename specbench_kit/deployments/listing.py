"""The entries of `skit list deployments`."""

from specbench_kit.deployments.description import describe
from specbench_kit.deployments.loading import LOCAL, bundled

MEASURED: dict[str, object] = {
    "name": LOCAL,
    "summary": "measured on this machine; the default",
    "time_kind": "measured",
}


def entries() -> list[dict[str, object]]:
    """Return one object per deployment, this machine first."""
    listed: list[dict[str, object]] = [MEASURED]
    for definition in bundled().values():
        described = describe(definition.build())
        sweep = {"sweep": dict(values)} if (values := definition.content.get("sweep")) else {}
        summary = f"modelled: {described['description']}"
        listed.append({**described, "summary": summary, "time_kind": "modelled", **sweep})
    return listed
