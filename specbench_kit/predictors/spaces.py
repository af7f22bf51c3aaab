"""Search spaces as text: `mlp.batch_size=32,64,128`."""

from collections.abc import Sequence

from specbench_kit.core.errors import SkitError
from specbench_kit.predictors.base import Space, families

FORM = "write FAMILY.PARAMETER=VALUE,VALUE, as in mlp.batch_size=32,64,128"


def changed_spaces(texts: Sequence[str]) -> dict[str, Space]:
    """Return the changed values by family and hyper-parameter, each of the same type as the family's own.

    Raise SkitError if a text has another form or names an unknown family, hyper-parameter or value.
    """
    spaces: dict[str, dict[str, tuple[object, ...]]] = {}
    for text in texts:
        name, _, values = text.partition("=")
        family, _, parameter = name.partition(".")
        if not values or not parameter:
            raise SkitError(f"--space {text}: {FORM}")
        space = families.get(family).space
        if parameter not in space:
            raise SkitError(f"--space {text}: {family} has {', '.join(space)}")
        default = space[parameter][0]
        parsed = tuple(_parse_like(default, value, text) for value in values.split(","))
        spaces.setdefault(family, {})[parameter] = parsed
    return {**spaces}


def _parse_like(default: object, value: str, text: str) -> object:
    kind: type = type(default)
    try:
        return {"true": True, "false": False}[value] if kind is bool else kind(value)
    except (KeyError, ValueError):
        raise SkitError(f"--space {text}: '{value}' is no value like {str(default).lower()}") from None
