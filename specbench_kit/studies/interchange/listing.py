"""`skit list formats`."""

from specbench_kit.cli.listing import ListEntry, lists


@lists("formats")
def _list_formats() -> list[ListEntry]:
    from specbench_kit.studies.interchange.base import formats

    return [
        {"name": name, "summary": form.summary, "tool": form.tool}
        for name, form in formats.all().items()
    ]
