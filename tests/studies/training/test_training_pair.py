"""Which models a trace belongs to."""

from pathlib import Path

import pytest
from command_line import TinyPair
from trace_builders import made_requests, write_trace

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.library import PairHashes
from specbench_kit.runs.provenance import hash_model
from specbench_kit.traces.replay import identify_pair, require_same_pair


def test_a_pair_is_known_by_the_content_of_its_folders(tiny: TinyPair) -> None:
    pair = identify_pair(str(tiny.target), str(tiny.draft))
    assert pair == PairHashes(hash_model(tiny.target), hash_model(tiny.draft))


def test_a_synthetic_pair_is_known_by_its_options() -> None:
    draft = "synthetic:ranks=0.7"
    assert identify_pair("synthetic", draft) == PairHashes("synthetic", draft)


def test_a_missing_model_is_one_line(tiny: TinyPair, tmp_path: Path) -> None:
    with pytest.raises(SkitError, match="no target model"):
        identify_pair(str(tmp_path / "nowhere"), str(tiny.draft))
    with pytest.raises(SkitError, match=r"holds no model: config.json is missing"):
        identify_pair(str(tiny.target), str(tmp_path))


def test_a_trace_of_other_models_is_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", made_requests(1))
    require_same_pair(trace, PairHashes("a" * 64, "b" * 64))
    with pytest.raises(
        SkitError, match=r"recorded with other models \(big and small\): name them with --target"
    ):
        require_same_pair(trace, PairHashes("a" * 64, "c" * 64))


def test_a_trace_that_names_no_models_is_refused(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", made_requests(1), models=None)
    with pytest.raises(SkitError, match="other models"):
        require_same_pair(trace, PairHashes("a" * 64, "b" * 64))
