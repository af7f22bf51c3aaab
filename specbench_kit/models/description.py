"""What a run records of a model."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from specbench_kit.core.typed_json import Count


class ModelDescription(Struct):
    """A model of the run."""

    ALWAYS: ClassVar = ("parameters",)
    """A served model may not say how large it is, which its run then states."""

    name: Annotated[
        str | None, Meta(description="name or folder of the model; null if that is not known")
    ] = None
    hash: Annotated[
        str | None,
        Meta(
            description="SHA-256 over configuration, tokenizer and weights; null if that is not known"
        ),
    ] = None
    gguf_sha256: Annotated[
        str | None,
        Meta(
            description="SHA-256 of the GGUF file that the model was converted from; null if it was not"
        ),
    ] = None
    parameters: Annotated[
        Count | None, Meta(description="number of parameters; null if that is not known")
    ] = None
    weights: Annotated[
        str | None,
        Meta(
            description="'random' where a profile was measured without the model's own weights; null otherwise"
        ),
    ] = None
    shared_vocabulary: Annotated[
        float | None,
        Meta(
            description="share of the target's tokens that a draft model can draft; "
            "null where both have the same vocabulary"
        ),
    ] = None
    masked_tokens: Annotated[
        int | None,
        Meta(
            description="added tokens of a draft model that are never drafted; null if there are none"
        ),
    ] = None
    ignored_settings: Annotated[
        dict[str, str] | None,
        Meta(
            description="sampling settings of the model that are not applied; null if there are none"
        ),
    ] = None
