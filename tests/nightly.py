"""Which cases of a test run before every change, and which only every night."""

from collections.abc import Collection, Iterable

import pytest
from _pytest.mark.structures import ParameterSet


def nightly_except(kept: Collection[object], cases: Iterable[object]) -> list[ParameterSet]:
    """Return all cases as parameters of a test; those that are not `kept` run in `make test-all` alone.

    A case is a value or a tuple of values. What is kept exercises every line and every rule that the others exercise.
    """
    cases = list(cases)
    unknown = [case for case in kept if case not in cases]
    assert not unknown, f"no cases: {unknown}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in kept else pytest.mark.nightly,
        )
        for case in cases
    ]
