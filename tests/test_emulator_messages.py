"""Documents become the messages that json_format makes of them."""

from typing import Any

import pytest

pytest.importorskip("google.cloud.tpu_v2", reason="google-cloud-tpu is not installed")

from google.cloud import tpu_v2
from google.protobuf import json_format
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import Message

from tpuctl.emulator._grpc import MessageTypes, message_types, to_message


def fill(message: Message) -> Message:
    """Put something into every field; of those that exclude each other the last one stays."""
    if isinstance(message, AnyMessage):
        message.Pack(tpu_v2.OperationMetadata.pb()(verb="create"))
        return message
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            fill_plain(message, field, value)
        elif field.message_type.GetOptions().map_entry:
            value["some-key"] = "some value"
        elif hasattr(value, "add"):
            for _ in range(2):
                fill(value.add())
        else:
            value.SetInParent()
            fill(value)
    return message


def fill_plain(message: Message, field: Any, value: Any) -> None:
    """Put a number, texts or the last of an enum's names into a field."""
    if field.enum_type is not None:
        new: Any = field.enum_type.values[-1].number
    else:
        new = {bool: True, int: 7}.get(type(value), "text")
    if hasattr(value, "append"):
        value.extend([new, new])
    else:
        setattr(message, field.name, new)


@pytest.mark.parametrize("types", message_types(), ids=lambda types: str(types.path))
def test_a_full_reply_is_the_message_it_was_written_from(types: MessageTypes) -> None:
    kind = types.reply
    whole = fill(kind())
    document = json_format.MessageToDict(whole)
    assert to_message(kind, document) == whole
    assert to_message(kind, {}) == kind()


def test_a_long_number_and_a_moment_keep_every_digit() -> None:
    document = {"id": str(2**63 - 1), "createTime": "2026-11-20T09:00:00.123456789Z"}
    node = to_message(tpu_v2.Node.pb(), document)
    assert node == json_format.ParseDict(document, tpu_v2.Node.pb()())
    assert (node.id, node.create_time.nanos) == (2**63 - 1, 123456789)


def test_an_unknown_field_is_an_error() -> None:
    with pytest.raises(KeyError, match="colour"):
        to_message(tpu_v2.Node.pb(), {"colour": "blue"})
