"""Lists in pages, whose tokens stay good while things come and go."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.refusals import bad_request

T = TypeVar("T")

DEFAULT_ITEMS = 500
MOST_ITEMS = 1000
# A gRPC client takes 4 MiB at most, and the metadata of one more node can be half a MiB.
MOST_BYTES = 2 << 20


def page(
    field: str, items: Sequence[tuple[str, T]], call: Call, show: Callable[[T], Document]
) -> Document:
    """Cut the page that a call asks for out of all items, which come sorted by their key."""
    size = int(call.body.get("pageSize", 0))
    if size < 0:
        raise bad_request(f"page_size must not be negative, and is {size}.")
    after = _key_of(str(call.body.get("pageToken", "")))
    rest = [item for item in items if item[0] > after] if after else items
    shown: list[Document] = []
    size_bytes = 0
    for _, item in rest[: min(size or DEFAULT_ITEMS, MOST_ITEMS)]:
        shown.append(show(item))
        size_bytes += _size_bytes(shown[-1])
        if size_bytes > MOST_BYTES:
            break
    document: Document = {field: shown}
    if len(shown) < len(rest):
        document["nextPageToken"] = _token_of(rest[len(shown) - 1][0])
    return document


def _size_bytes(document: Document) -> int:
    """About how large a message is: what users can make large is their metadata."""
    specs = document.get("tpu", {}).get("nodeSpec", [])
    holders = (document, *(spec.get("node", {}) for spec in specs))
    texts = (str(value) for holder in holders for value in holder.get("metadata", {}).values())
    return 2048 + sum(map(len, texts))


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _key_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise bad_request(f'The page token "{token}" is not valid.') from error
