"""The number formats that a run records of its models, and what its report makes of them."""

import json
from pathlib import Path

import pytest
from report_builders import run_summary, summary_of
from tiny_models import tiny_llama

from specbench_kit.models.catalogue import ModelSource
from specbench_kit.models.pair import LoadedModel, load_pair
from specbench_kit.models.weights.blocks import RECORD
from specbench_kit.reports.document import Paragraph
from specbench_kit.reports.run.sections import lossless_section
from specbench_kit.reports.sections.wording import formats_sentence
from specbench_kit.runs.document import NumberFormat, RunConfig, RunDocument
from specbench_kit.studies.bench.opening import number_formats

OUTPUTS = {"compared": 2, "identical": 2, "ties": 0, "errors": 0, "lossless": True}
LOSSLESS = run_summary(summary_of([], lossless=OUTPUTS))


@pytest.mark.parametrize(("dtype", "computed"), [("auto", "float32"), ("bfloat16", "bfloat16")])
def test_both_models_name_the_format_they_compute_in_and_that_of_their_files(
    dtype: str, computed: str
) -> None:
    formats = number_formats(load_pair(device="cpu", dtype=dtype).loaded)
    assert formats == {role: NumberFormat(computed, "bfloat16") for role in ("target", "draft")}


def test_a_synthetic_model_was_published_in_no_format() -> None:
    pair = load_pair("synthetic", "synthetic:ranks=0.8+0.1")
    assert number_formats(pair.loaded) == {
        role: NumberFormat("float32") for role in ("target", "draft")
    }


def test_a_gguf_file_names_the_type_of_most_of_its_matrices(tmp_path: Path) -> None:
    """Its folder is a conversion, whose config.json states another format."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "bfloat16"}))
    (tmp_path / RECORD).write_text(
        json.dumps({"sha256": "ab", "tensor_types": {"F32": 9, "Q4_K": 5, "Q6_K": 2}})
    )
    model = LoadedModel(tiny_llama(), ModelSource(str(tmp_path), "m", local_only=True))
    assert number_formats({"target": model}) == {"target": NumberFormat("float32", "GGUF Q4_K")}


def test_a_report_names_the_formats_of_both_models() -> None:
    formats = {"target": NumberFormat("float32", "bfloat16"), "draft": NumberFormat("float32")}
    assert formats_sentence(formats) == "target: float32 (published in bfloat16), draft: float32"
    assert formats_sentence({"target": NumberFormat("float16", "float16")}) == "target: float16"


def sentences(computed: str, published: str | None, temperature: float = 0.0) -> str:
    run = RunDocument(
        schema_version=1,
        number_formats={"target": NumberFormat(computed, published)},
        config=RunConfig(temperature=temperature),
    )
    return " ".join(
        block.text for block in lossless_section(run, LOSSLESS) if isinstance(block, Paragraph)
    )


def test_a_report_says_how_to_compare_with_transformers_where_the_formats_differ() -> None:
    differing = sentences("float32", "bfloat16")
    assert "computed in float32 and was published in bfloat16" in differing
    assert (
        "load it there with `dtype=torch.float32`, or run here with `--dtype bfloat16`" in differing
    )
    for advice in (
        sentences("float32", "float32"),
        sentences("float32", None),
        sentences("float32", "GGUF Q8_0"),
        sentences("float32", "bfloat16", 1.0),
    ):
        assert "published" not in advice
