"""Search spaces as text: `mlp.batch_size=32,64,128`."""

from collections.abc import Sequence
from typing import Any

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import families

FORM = "write FAMILY.PARAMETER=VALUE,VALUE, as in mlp.batch_size=32,64,128"


def changed_spaces(texts: Sequence[str]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """By family and hyper-parameter, the values to draw in place of its own; each of the kind that stands there."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        family, _, parameter = name.partition(".")
        if not values or not parameter:
            raise SkitError(f"--space {text}: {FORM}")
        own = families.get(family).space
        if parameter not in own:
            raise SkitError(f"--space {text}: {family} has {', '.join(own)}")
        found.setdefault(family, {})[parameter] = tuple(
            _alike(own[parameter][0], one, text) for one in values.split(",")
        )
    return found


def _alike(before: Any, value: str, text: str) -> Any:
    try:
        if isinstance(before, bool):
            return {"true": True, "false": False}[value]
        return type(before)(value)
    except (KeyError, ValueError):
        raise SkitError(f"--space {text}: '{value}' is no value like {str(before).lower()}") from None
