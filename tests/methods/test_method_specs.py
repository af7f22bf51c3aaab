"""`name:key=value,...`: what is understood, and the one line that says what is not."""

import re
from dataclasses import dataclass

import pytest
from plug_ins import of_the_kit

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.autoregressive import Autoregressive
from specbench_kit.methods.base import Method, Policy, methods
from specbench_kit.methods.fixed_k import FixedK
from specbench_kit.methods.oracle import Oracle
from specbench_kit.methods.spec import parse_method
from specbench_kit.methods.threshold import Threshold


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ("autoregressive", Autoregressive()),
        ("fixed-k", FixedK(4)),
        ("fixed-k:", FixedK(4)),
        ("fixed-k:k=7", FixedK(7)),
        ("oracle:max_draft=3", Oracle(3)),
        ("threshold:threshold=0.25,max_draft=5", Threshold(0.25, 5)),
        (
            "threshold:schedule=heuristic-transient,adaptive=TRUE",
            Threshold(schedule="heuristic-transient", adaptive=True),
        ),
        ("threshold:unit=batch,adaptive=false,threshold=1e-1", Threshold(0.1, unit="batch")),
        ("threshold:threshold=1", Threshold(1.0)),
    ],
)
def test_specs_that_are_understood(spec: str, method: Method) -> None:
    assert parse_method(spec) == method


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "fixedk",
            "unknown method 'fixedk' (did you mean 'fixed-k'?); skit list methods shows all ",
        ),
        ("", "unknown method ''; skit list methods shows all "),
        (
            "Fixed-K:k=3",
            "unknown method 'Fixed-K' (did you mean 'fixed-k'?); skit list methods shows all ",
        ),
        ("fixed-k:n=3", "fixed-k: unknown option 'n'; known: k"),
        ("fixed-k: k=3", "fixed-k: unknown option ' k' (did you mean 'k'?); known: k"),
        ("autoregressive:k=3", "autoregressive: unknown option 'k'; known: none"),
        ("fixed-k:k", "fixed-k: option 'k' needs a value, as in k=..."),
        ("fixed-k:k=", "fixed-k: k must be a whole number, not ''"),
        ("fixed-k:k=four", "fixed-k: k must be a whole number, not 'four'"),
        ("fixed-k:k=4.5", "fixed-k: k must be a whole number, not '4.5'"),
        ("fixed-k:k=4=5", "fixed-k: k must be a whole number, not '4=5'"),
        ("fixed-k:k=4,k=5", "fixed-k: option 'k' is given twice"),
        ("fixed-k:k=0", "fixed-k: k must be at least 1, not 0"),
        ("fixed-k:k=-2", "fixed-k: k must be at least 1, not -2"),
        ("oracle:max_draft=0", "oracle: max_draft must be at least 1, not 0"),
        ("threshold:threshold=high", "threshold: threshold must be a number, not 'high'"),
        ("threshold:threshold=1.5", "threshold: threshold must lie in 0..1, not 1.5"),
        ("threshold:threshold=nan", "threshold: threshold must lie in 0..1, not nan"),
        ("threshold:max_draft=0", "threshold: max_draft must be at least 1, not 0"),
        ("threshold:adaptive=yes", "threshold: adaptive must be true or false, not 'yes'"),
        (
            "threshold:schedule=linear",
            "threshold: schedule must be one of constant, heuristic, heuristic-transient, not 'linear'",
        ),
        ("threshold:unit=batch,adaptive=true", "threshold: adaptive=true needs unit=request"),
    ],
)
def test_specs_that_are_not(spec: str, message: str) -> None:
    with pytest.raises(SkitError, match=f"^{re.escape(message)}[^\n]*$"):
        parse_method(spec)


def test_two_methods_of_one_name_are_an_error() -> None:
    @dataclass(frozen=True)
    class Double(Method):
        def policy(self) -> Policy:
            return Policy()

    with pytest.raises(SkitError, match=r"^two methods are called 'fixed-k': rename one of them$"):
        methods.register("fixed-k")(Double)
    assert methods.get("fixed-k") is FixedK


def test_every_method_says_what_it_is() -> None:
    """`skit list methods` shows one line and a source; every method is known by the name it registered."""
    assert {"autoregressive", "fixed-k", "oracle", "threshold"} <= set(methods.all())
    for name, method in of_the_kit(methods).items():
        assert (method.__doc__ or "").strip(), name
        assert method.source, name
        assert method.proposal in ("sample", "top")
