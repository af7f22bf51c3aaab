"""What `all` stands for, and what becomes of methods that cannot run."""

import pytest

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import Method, methods
from specbench_kit.methods.selection import expand_specs
from specbench_kit.methods.spec import parse_method
from specbench_kit.metrics.vocabulary import BASELINE
from specbench_kit.studies.bench.choice import describe_choice, usable
from specbench_kit.studies.bench.settings import BenchSettings


def only_chains(spec: str) -> Method:
    if spec.startswith("spec"):
        raise SkitError("no trees here")
    return parse_method(spec)


def test_all_is_every_method_beside_the_baseline() -> None:
    assert set(expand_specs(["all"], [BASELINE])) == set(methods.all()) - {"autoregressive"}
    assert set(expand_specs(["all"])) == set(methods.all())
    assert not any(expand_specs(["all"], [BASELINE]).values())


def test_runs_say_which_methods_nobody_named() -> None:
    specs = expand_specs(["all", "fixed-k:k=3"], [BASELINE])
    assert describe_choice(specs["fixed-k:k=3"]) == {}
    assert describe_choice(specs["banditspec"]) == {"is_named": False}


def test_a_group_is_every_method_of_it() -> None:
    specs = expand_specs(["group:static", "group:bounds", "fixed-k:k=2"], [BASELINE])
    assert specs["fixed-k"] is False
    assert specs["oracle"] is False
    assert specs["fixed-k:k=2"] is True
    assert not {"autoregressive", "wisp"} & set(specs)
    with pytest.raises(
        SkitError, match="no methods of group 'fast'; known: bounds, static, stop-rule, learned,"
    ):
        expand_specs(["group:fast"], [BASELINE])


def test_named_methods_go_along_and_are_not_doubled() -> None:
    specs = expand_specs(["all", "fixed-k:k=3", "oracle"], [BASELINE])
    assert [spec for spec, named in specs.items() if named] == ["oracle", "fixed-k:k=3"]
    assert "fixed-k" in specs
    assert expand_specs(["threshold", "fixed-k"], [BASELINE]) == {
        "threshold": True,
        "fixed-k": True,
    }


def test_one_setting_is_run_once_however_it_is_named() -> None:
    with pytest.raises(
        SkitError, match="'fixed-k' and 'fixed-k:k=4' are the same method with the same options"
    ):
        expand_specs(["fixed-k", "threshold", "fixed-k:k=4"], [BASELINE])
    specs = expand_specs(["all", "fixed-k:k=4"], [BASELINE])
    assert specs["fixed-k:k=4"]
    assert "fixed-k" not in specs


def test_what_cannot_run_is_left_out_of_all_with_its_reason() -> None:
    ready, left_out = usable(BenchSettings(("all",)), only_chains)
    assert {"fixed-k", "threshold", "oracle"} <= set(ready)
    assert left_out == dict.fromkeys(
        ("specdecpp", "specedge", "specinfer", "specpipe"), "no trees here"
    )


def test_a_reason_does_not_name_its_method_again() -> None:
    def nothing_but_fixed(spec: str) -> Method:
        if spec != "fixed-k":
            raise SkitError(f"{spec}: not here")
        return parse_method(spec)

    assert set(usable(BenchSettings(("all",)), nothing_but_fixed)[1].values()) == {"not here"}


def test_what_was_named_and_cannot_run_is_an_error() -> None:
    with pytest.raises(SkitError, match="no trees here"):
        usable(BenchSettings(("all", "specinfer")), only_chains)


def test_nothing_that_can_run_is_an_error_with_every_reason() -> None:
    def nothing(spec: str) -> Method:
        raise SkitError(f"not {spec}")

    with pytest.raises(
        SkitError, match="no method can run here: adaedl: not adaedl; adaptive-quantised: not adapt"
    ):
        usable(BenchSettings(("all",)), nothing)
