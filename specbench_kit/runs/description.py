"""The fields of `run.json` that reports, comparisons and reruns rely on, with their types."""

from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.errors import SkitError
from specbench_kit.core.typed_json import Count, JsonObject, Number, convert


def doc(text: str) -> Meta:
    """Return the description that a field has in the JSON Schema."""
    return Meta(description=text)


class ModelDescription(Struct):
    """A model of the run."""

    name: Annotated[str | None, doc("name or folder of the model")] = None
    hash: Annotated[str | None, doc("SHA-256 over configuration, tokenizer and weights")] = None
    gguf_sha256: Annotated[str | None, doc("SHA-256 of the GGUF file that the model was converted from")] = None
    parameters: Annotated[Count | None, doc("number of parameters")] = None


class NumberFormat(Struct):
    """The number formats of a model's weights."""

    computed: Annotated[str | None, doc("format in which the model computed")] = None
    published: Annotated[str | None, doc("format that its own configuration states; null if it states none")] = None


class DatasetDescription(Struct):
    """The prompts of the run."""

    name: Annotated[str | None, doc("name of the dataset")] = None
    source: Annotated[str | None, doc("where it was read from: hub, local, file, sample, bundled, imported")] = None
    location: Annotated[str | None, doc("repository or file that holds it")] = None
    digest: Annotated[str | None, doc("SHA-256 over the prompts of the run")] = None
    count: Annotated[Count | None, doc("prompts that the run used")] = None
    total: Annotated[Count | None, doc("prompts of the whole dataset")] = None
    left_out: Annotated[list[str] | None, doc("ids of prompts that were left out")] = None


class RunConfig(Struct):
    """The settings that were asked for."""

    device: Annotated[str | None, doc("torch device")] = None
    dtype: Annotated[str | None, doc("number format of the weights")] = None
    executors: Annotated[dict[str, str | None] | None, doc("executor of each model, by role")] = None
    products: Annotated[str | None, doc("how products are rounded, if not by the dtype alone")] = None
    max_new_tokens: Annotated[int | None, doc("most output tokens per request")] = None
    batch_size: Annotated[int | None, doc("requests that may be decoded at once")] = None
    effective_batch_size: Annotated[int | None, doc("requests that were decoded at once")] = None
    repeats: Annotated[int | None, doc("times that each request is decoded")] = None
    seed: Annotated[int | None, doc("seed of all random numbers")] = None
    temperature: Annotated[Number | None, doc("sampling temperature; 0 is greedy")] = None
    top_p: Annotated[Number | None, doc("top-p sampling; 1 disables it")] = None
    top_k: Annotated[int | None, doc("top-k sampling; 0 disables it")] = None


class HardwareDescription(Struct):
    """The machine that decoded."""

    cpu: Annotated[str | None, doc("processor")] = None
    memory_gb: Annotated[Number | None, doc("memory in GB (1e9 bytes)")] = None


class DeploymentReference(Struct):
    """The deployment that time is modelled on; null where it was measured."""

    name: Annotated[str | None, doc("name of the deployment")] = None


class EngineReference(Struct):
    """The inference engine that verified, with the kit's policy as its drafter; null where the kit's loop decoded."""

    name: Annotated[str | None, doc("name of the engine")] = None
    version: Annotated[str | None, doc("version of the engine")] = None


class EngineOverhead(Struct):
    """The work of a policy inside another engine, summed over all calls."""

    calls: Annotated[Count, doc("calls of the drafter, one per step")] = 0
    policy_s: Annotated[Number, doc("seconds of the policy's decisions")] = 0.0
    draft_s: Annotated[Number, doc("seconds of drafting")] = 0.0
    total_s: Annotated[Number, doc("seconds inside of the drafter, bookkeeping included")] = 0.0
    engine_s: Annotated[Number, doc("seconds of the engine's own steps")] = 0.0


class PredictorUse(Struct):
    """The predictor that the method loaded, and how it used it."""

    threshold: Annotated[Number | None, doc("score below which drafting stops")] = None
    max_draft: Annotated[int | None, doc("longest draft in tokens")] = None
    deployment: Annotated[str | None, doc("deployment that the threshold was tuned for")] = None
    rule: Annotated[str | None, doc("how the threshold was chosen")] = None


class PreparedInputs(Struct):
    """The predictor, thresholds and profiles that the method was prepared with."""

    predictor: PredictorUse | None = None


class RunDocument(Struct):
    """The content of `run.json`: what was run, on what, where and how. Every field but the version may be missing."""

    schema_version: Annotated[int, doc("version of the format")]
    method: Annotated[str | None, doc("spec of the method, such as fixed-k:k=4")] = None
    options: Annotated[JsonObject | None, doc("every option of the method with its value")] = None
    uses: PreparedInputs | None = None
    dataset: DatasetDescription | None = None
    models: Annotated[dict[str, ModelDescription | None] | None, doc("target and draft model, by role")] = None
    number_formats: Annotated[
        dict[str, NumberFormat] | None, doc("number formats of the models that ran here, by role")
    ] = None
    config: RunConfig | None = None
    time_kind: Annotated[str | None, doc("measured or modelled")] = None
    deployment: DeploymentReference | None = None
    engine: EngineReference | None = None
    overhead: EngineOverhead | None = None
    requests: Annotated[Count | None, doc("requests that were planned")] = None
    prompts: Annotated[JsonObject | None, doc("hash of the first prompt's tokens, by request")] = None
    left_out: Annotated[JsonObject | None, doc("prompts that were left out, by reason")] = None
    seen_prompts: Annotated[int | None, doc("prompts that a predictor had been trained on")] = None
    trace: Annotated[JsonObject | None, doc("the trace that was replayed")] = None
    imported: Annotated[JsonObject | None, doc("the file of another tool that the run was made from")] = None
    resumptions: Annotated[list[JsonObject] | None, doc("each time that the run was resumed")] = None
    started_at: Annotated[str | None, doc("start in UTC, ISO 8601")] = None
    argv: Annotated[list[str] | None, doc("command line")] = None
    git_commit: Annotated[str | None, doc("commit of specbench-kit")] = None
    versions: Annotated[JsonObject | None, doc("versions of the packages")] = None
    hardware: HardwareDescription | None = None


def check_description(path: Path, run: JsonObject) -> None:
    """Raise SkitError if the `run.json` at `path` has a field of a wrong type."""
    try:
        convert(RunDocument, run)
    except ValueError as error:
        raise SkitError(f"{path}: {error}: it is not a run of skit bench") from error
