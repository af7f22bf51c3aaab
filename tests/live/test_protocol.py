"""The wire protocol: the generated code is that of the .proto file, and no field ever changes its number."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specbench_kit.live.protocol import verification_pb2
from specbench_kit.live.wire import text_hash, tokenizer_hash

PROTO = Path(verification_pb2.__file__).with_name("verification.proto")
TYPES = {
    "TYPE_UINT32": "uint32",
    "TYPE_UINT64": "uint64",
    "TYPE_INT64": "int64",
    "TYPE_FLOAT": "float",
}
TYPES |= {
    "TYPE_DOUBLE": "double",
    "TYPE_BOOL": "bool",
    "TYPE_STRING": "string",
    "TYPE_BYTES": "bytes",
}


def written() -> dict[str, list[tuple[str, str, int]]]:
    """Return type, name and number of the fields of every message of the .proto file."""
    messages = {}
    for name, body in re.findall(
        r"^message (\w+) \{\n(.*?)^\}", PROTO.read_text(), re.MULTILINE | re.DOTALL
    ):
        fields = re.findall(r"^ +((?:repeated |optional )?\w+) (\w+) = (\d+);", body, re.MULTILINE)
        messages[name] = [(kind, field, int(number)) for kind, field, number in fields]
    return messages


def generated() -> dict[str, list[tuple[str, str, int]]]:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto()
    verification_pb2.DESCRIPTOR.CopyToProto(file)
    messages = {}
    for message in file.message_type:
        messages[message.name] = []
        for field in message.field:
            kind = (
                TYPES.get(FieldDescriptorProto.Type.Name(field.type))
                or field.type_name.rpartition(".")[2]
            )
            label = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
            label = "optional " if field.proto3_optional else label
            messages[message.name].append((label + kind, field.name, field.number))
    return messages


def test_the_generated_code_is_that_of_the_proto_file() -> None:
    assert written() == generated()
    assert len(generated()) == 22


def test_a_frame_of_the_first_release_is_read() -> None:
    """A draft as version 0.1.0 sent it: session 1, round 2, base 3, tokens 4 and 7 to 10 by number."""
    old = bytes.fromhex("1a10") + bytes.fromhex("0a0273311002180522021e1f2a020001")
    up = verification_pb2.Up.FromString(old)
    draft = up.draft
    assert up.WhichOneof("kind") == "draft"
    assert (draft.session, draft.round, draft.base) == ("s1", 2, 5)
    assert (list(draft.tokens), list(draft.parents)) == ([30, 31], [0, 1])


def test_both_ends_know_a_text_and_a_tokenizer_by_the_same_hash_in_every_version() -> None:
    """BLAKE2b of eight bytes over 32-bit tokens, the low byte first; SHA-256 over all tokens but those added."""
    assert text_hash([1, 256, 2**32 - 1]) == 17317982692111014053
    assert text_hash([]) == 16476032584258269876
    words = {"b": 1, "c": 3, "a": 0, "<|added|>": 2}
    tokenizer: Any = SimpleNamespace(
        get_vocab=lambda: words, get_added_vocab=lambda: {"<|added|>": 2}
    )
    assert tokenizer_hash(tokenizer) == "402842f27b52c6ce3eaa397141eebafa"
