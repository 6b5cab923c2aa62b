"""Turning documents into messages, at the pace of a list of thousands.

`json_format.ParseDict` takes half a millisecond for a node, ten times what all the rest of a list
costs. Here a kind of message is understood once, and its documents are only translated.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from tpuctl.emulator.methods import Document

M = TypeVar("M", bound=Message)

_Read = Callable[[Any], Any]

_WELL_KNOWN = "google.protobuf."
_LONG = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})


def to_message(kind: type[M], document: Document) -> M:
    """Make a message of a document that spells its fields as the API's JSON does.

    What `json_format.ParseDict` makes of it, for documents that are known to be right. Raises
    KeyError for a field that there is not.
    """
    return kind(**_arguments(_fields(kind.DESCRIPTOR), document))


def _arguments(fields: Mapping[str, tuple[str, _Read]], document: Document) -> dict[str, Any]:
    """What the constructor takes, for the messages inside as well."""
    arguments = {}
    for key, value in document.items():
        name, read = fields[key]
        many = isinstance(value, list)
        arguments[name] = [read(each) for each in value] if many else read(value)
    return arguments


@cache
def _fields(descriptor: Descriptor) -> dict[str, tuple[str, _Read]]:
    """For each field by its name in JSON: its name in Python, and how a value of it is read."""
    return {field.json_name: (field.name, _reader(field)) for field in descriptor.fields}


def _reader(field: FieldDescriptor) -> _Read:
    inner = field.message_type
    if inner is None:
        # JSON has no numbers of 64 bits: they are texts there.
        return int if field.cpp_type in _LONG else _as_it_is
    if inner.GetOptions().map_entry:
        return _as_it_is
    if inner.full_name.startswith(_WELL_KNOWN):
        kind = GetMessageClass(inner)
        return lambda value: json_format.ParseDict(value, kind())
    # The fields are looked up only when a value comes: a message may contain its own kind.
    return lambda value: _arguments(_fields(inner), value)


def _as_it_is(value: Any) -> Any:
    return value
