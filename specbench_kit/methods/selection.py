"""The methods that `all` and `group:NAME` stand for, beside those that are named."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import MISSING, fields

from specbench_kit.core.errors import SkitError
from specbench_kit.methods.base import GROUPS, LONGEST_DRAFT, Method, methods
from specbench_kit.methods.spec import parse_method

ALL = "all"
GROUP = "group:"


def expand_specs(specs: Sequence[str], unwanted: Collection[str] = ()) -> dict[str, bool]:
    """Return every spec to run, and True for those that were named: others are left out if they
    cannot run here.

    `all` stands for every method with its default options, `group:NAME` for those of a group. The names in
    `unwanted` are not among these, such as that of a baseline that is decoded anyway.
    """
    groups = [group for spec in specs for group in _groups(spec)]
    named = dict.fromkeys((spec for spec in specs if not _groups(spec)), True)
    distinct: dict[Method, str] = {}
    for spec in named:
        first = distinct.setdefault(parse_method(spec), spec)
        if first != spec:
            raise SkitError(
                f"'{first}' and '{spec}' are the same method with the same options: name it once"
            )
    # Without options a method may equal a named spec that only spells its defaults out.
    unnamed = [
        name
        for name, kind in methods.all().items()
        if kind.group in groups and _has_defaults(kind) and name not in unwanted
    ]
    return {
        name: False for name in unnamed if name in named or parse_method(name) not in distinct
    } | named


def _has_defaults(kind: type[Method]) -> bool:
    """Return True if a method can be made without options."""
    return all(
        field.default is not MISSING or field.default_factory is not MISSING
        for field in fields(kind)
    )


def longest_draft(specs: Iterable[str]) -> int:
    """Return the most tokens that any of these methods drafts, as far as a bound of them has to
    reach.
    """
    return max([LONGEST_DRAFT, *(parse_method(spec).longest_draft or 0 for spec in specs)])


def _groups(spec: str) -> Sequence[str]:
    """Return the groups that `all` or `group:NAME` stands for; none for the spec of a method."""
    if spec == ALL:
        return GROUPS
    if not spec.startswith(GROUP):
        return ()
    group = spec.removeprefix(GROUP)
    used = {kind.group for kind in methods.all().values()}
    if group not in used:
        raise SkitError(
            f"no methods of group '{group}'; known: {', '.join(name for name in GROUPS if name in used)}"
        )
    return (group,)
