"""What a run records of its prompts."""

from typing import Annotated

from msgspec import Meta, Struct

from specbench_kit.core.typed_json import Count


class RecordedPart(Struct):
    """The part of a trace that was recorded before the time was over."""

    requests: Annotated[int, Meta(description="requests that were recorded")]
    planned: Annotated[int, Meta(description="requests that were to be recorded")]


class DatasetDescription(Struct):
    """The prompts of the run."""

    name: Annotated[
        str | None, Meta(description="name of the dataset; null if that is not known")
    ] = None
    source: Annotated[
        str | None,
        Meta(
            description="where it was read from: hub, local, file, sample, bundled, imported; "
            "null if that is not known"
        ),
    ] = None
    location: Annotated[
        str | None, Meta(description="repository or file that holds it; null if that is not stated")
    ] = None
    digest: Annotated[
        str | None,
        Meta(description="SHA-256 over the prompts of the run; null if that is not known"),
    ] = None
    count: Annotated[
        Count | None, Meta(description="prompts that the run used; null if that is not known")
    ] = None
    total: Annotated[
        Count | None, Meta(description="prompts of the whole dataset; null if that is not known")
    ] = None
    chat: Annotated[
        Count | None,
        Meta(description="prompts that are chat messages, not raw text; null if that is not known"),
    ] = None
    part: Annotated[
        str | None,
        Meta(
            description="'train' or 'reserved' if only prompts to train on were drawn; null otherwise"
        ),
    ] = None
    left_out: Annotated[
        list[str] | None, Meta(description="ids of prompts that were left out; null if none were")
    ] = None
    recorded: Annotated[
        RecordedPart | None,
        Meta(description="what a trace holds, if it was not recorded to its end; null if it was"),
    ] = None
