"""vLLM's speculative-decoding counters, as its `/metrics` endpoint gives them to Prometheus."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench_kit.core.errors import SkitError
from specbench_kit.decoding.records import RoundRecord
from specbench_kit.studies.interchange.base import Format, formats

if TYPE_CHECKING:
    from specbench_kit.runs.directory import RunDirectory

PREFIX = "vllm:spec_decode_num_"
DESCRIPTIONS = {
    "drafts": "Drafts that were sent for verification.",
    "draft_tokens": "Draft tokens that were sent for verification.",
    "accepted_tokens": "Draft tokens that were accepted.",
    "accepted_tokens_per_pos": "Draft tokens that were accepted, by their place in the draft from 0.",
}


@formats.register("vllm")
class VLLM(Format):
    """vLLM's counters `vllm:spec_decode_num_*_total`, summed over all requests that finished.

    A draft is a round that sent at least one token; of a tree, positions are depths.
    """

    summary = "speculative-decoding counters of vLLM, Prometheus text"
    tool = "vLLM"

    def write(self, run: "RunDirectory") -> str:
        rounds = [one for record in run.records() if record.finish_reason != "error" for one in record.rounds]
        submitted: list[int | None] = [one.submitted for one in rounds]
        if None in submitted:
            raise SkitError("the run does not say how many tokens were submitted, which vLLM's counters count")
        labels = {"engine": "0", "model_name": str(run.run["models"]["target"]["name"])}
        return "".join(_counter(name, labels, values) for name, values in _counts(rounds).items())


def _counts(rounds: Sequence[RoundRecord]) -> dict[str, int | list[int]]:
    drafts = [one for one in rounds if one.submitted]
    longest = max((one.submitted if not one.steps else one.accepted for one in drafts), default=0)
    return {
        "drafts": len(drafts),
        "draft_tokens": sum(one.submitted for one in drafts),
        "accepted_tokens": sum(one.accepted for one in drafts),
        "accepted_tokens_per_pos": [sum(one.accepted > place for one in drafts) for place in range(longest)],
    }


def _counter(name: str, labels: dict[str, str], values: int | list[int]) -> str:
    """One counter with its help and type; a list has a sample per position."""
    full = f"{PREFIX}{name}_total"
    samples = (
        [(labels, values)]
        if isinstance(values, int)
        else [({**labels, "position": str(place)}, value) for place, value in enumerate(values)]
    )
    lines = [f"# HELP {full} {DESCRIPTIONS[name]}", f"# TYPE {full} counter"]
    lines += [f"{full}{{{_labels(names)}}} {float(value)}" for names, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: dict[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
