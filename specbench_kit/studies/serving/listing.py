"""`skit list presets`."""

from specbench_kit.cli.listing import ListEntry, lists


@lists("presets")
def _list_presets() -> list[ListEntry]:
    from specbench_kit.studies.serving.presets import presets

    return [
        {
            "name": name,
            "summary": f"skit {preset.command}: {preset.summary}",
            "source": preset.source,
        }
        for name, preset in presets.all().items()
    ]
