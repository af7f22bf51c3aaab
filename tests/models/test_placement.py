"""Where weights go, and checkpoints that need another package."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import TinyPair, copy_model

from specbench_kit.core.errors import SkitError
from specbench_kit.models.pair import load_pair
from specbench_kit.models.placement import Placement, limits


def test_weights_are_spread_by_transformers(tiny: TinyPair) -> None:
    spread = load_pair(
        str(tiny.target), None, device="cpu", placement=Placement("auto", "cpu=1GiB")
    )
    assert {parameter.device.type for parameter in spread.target.model.parameters()} == {"cpu"}
    with pytest.raises(
        SkitError,
        match=r"does not fit the memory it is given: raise --max-memory|cannot load model",
    ):
        load_pair(str(tiny.target), None, device="cpu", placement=Placement("auto", "cpu=1KB"))


def test_what_cannot_be_a_placement_is_refused() -> None:
    assert limits("0=20GiB, cpu=1.5TB") == {0: "20GiB", "cpu": "1.5TB"}
    for spread, memory, message in (
        ("everywhere", "", "--device-map must be auto"),
        ("", "0=1GiB", "give both"),
        ("auto", "20GiB", "not '20GiB'"),
    ):
        with pytest.raises(SkitError, match=message):
            Placement(spread, memory)


@pytest.mark.skipif(find_spec("hqq") is not None, reason="the package is installed here")
def test_a_quantised_checkpoint_names_its_package(tiny: TinyPair, tmp_path: Path) -> None:
    quantised = copy_model(
        tiny.target, tmp_path / "small", quantization_config={"quant_method": "hqq"}
    )
    assert json.loads((quantised / "config.json").read_text())["quantization_config"]
    with pytest.raises(
        SkitError, match="model 'small' is quantised with hqq: pip install hqq, or name a smaller"
    ):
        load_pair(str(quantised), None)
