"""Lists in pages, whose tokens stay good while things come and go."""

import base64
import binascii
from collections.abc import Sequence

from tpuctl.emulator.methods import Call, Document
from tpuctl.emulator.refusals import bad_request

DEFAULT_ITEMS = 500
MOST_ITEMS = 1000
# A gRPC client takes 4 MiB at most; startup scripts alone can make a node hundreds of KiB.
MOST_BYTES = 2 << 20


def page(field: str, items: Sequence[tuple[str, Document]], call: Call) -> Document:
    """Cut the page that a call asks for out of all items, which come sorted by their key."""
    size = int(call.body.get("pageSize", 0))
    if size < 0:
        raise bad_request(f"page_size must not be negative, and is {size}.")
    after = _key_of(str(call.body.get("pageToken", "")))
    rest = [item for item in items if item[0] > after] if after else list(items)
    shown = rest[: _fitting(rest, min(size or DEFAULT_ITEMS, MOST_ITEMS))]
    document: Document = {field: [item for _, item in shown]}
    if len(shown) < len(rest):
        document["nextPageToken"] = _token_of(shown[-1][0])
    return document


def _fitting(items: Sequence[tuple[str, Document]], most: int) -> int:
    """How many of the items go on one page: one at least."""
    size_bytes = 0
    for count, (_, item) in enumerate(items[:most]):
        metadata = item.get("metadata", {})
        size_bytes += 2048 + sum(len(str(value)) for value in metadata.values())
        if size_bytes > MOST_BYTES and count:
            return count
    return min(len(items), most)


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode()


def _key_of(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise bad_request(f'The page token "{token}" is not valid.') from error
