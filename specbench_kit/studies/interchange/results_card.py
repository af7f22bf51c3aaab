"""A result card as model hubs read them: `results.yaml`, the `model-index` of a model card."""

import json
from typing import TYPE_CHECKING, Any

from specbench_kit.studies.interchange.base import Format, formats
from specbench_kit.studies.interchange.numbers import numbers_of

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

SHOWN = ("speedup", "speedup_low", "speedup_high", "acceptance_length", "acceptance_rate", "throughput", "tpot_mean_s")


@formats.register("results-yaml")
class ResultsCard(Format):
    """Every text is quoted as JSON quotes it, which YAML reads alike."""

    summary = "results.yaml, a card of results as model hubs show them (model-index)"
    tool = "model hubs"

    def write(self, run: "RunDirectory") -> str:
        found, dataset = numbers_of(run), _text((run.run.get("dataset") or {}).get("name"))
        models = [str(model.get("name") or "unnamed") for model in (run.run.get("models") or {}).values() if model]
        method, time = run.run["method"], run.run.get("time_kind")
        lines = ["model-index:", f"- name: {_text(' + '.join(models))}", "  results:", "  - task:"]
        lines += ["      type: text-generation", f"      name: {_text(f'speculative decoding, {method}, {time} time')}"]
        lines += ["    dataset:", f"      type: {dataset}", f"      name: {dataset}"]
        lines.append("    metrics:")
        for name in SHOWN:
            if name in found:
                lines += [f"    - type: {name}", f"      value: {found[name]:.6g}"]
        lines += ["    source:", "      name: specbench-kit"]
        return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    return json.dumps(str(value), ensure_ascii=True)
