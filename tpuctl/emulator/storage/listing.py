"""Lists of objects: prefixes, folders that are none, pages."""

import base64
import binascii
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage.records import whole
from tpuctl.emulator.storage.refusals import refuse
from tpuctl.emulator.storage.shelf import Bucket

_MOST_ITEMS = 1000
_NOT_HERE = ("matchGlob", "softDeleted", "filter", "includeTrailingDelimiter")


def list_objects(bucket: Bucket, query: Mapping[str, str]) -> Document:
    """One page of the objects of a bucket, and of the prefixes that a delimiter makes of them."""
    for key in _NOT_HERE:
        if query.get(key, "false") != "false":
            raise refuse("unimplemented", what=key)
    most = min(whole(query, "maxResults") or _MOST_ITEMS, _MOST_ITEMS)
    items: list[Document] = []
    prefixes: list[str] = []
    document: Document = {"kind": "storage#objects"}
    last = ""
    for entry, is_prefix in _entries(bucket, query):
        if len(items) + len(prefixes) == most:
            document["nextPageToken"] = base64.urlsafe_b64encode(last.encode()).decode()
            break
        last = entry
        if is_prefix:
            prefixes.append(entry)
        else:
            items.append(bucket.objects[entry].resource())
    return document | _not_empty(items=items, prefixes=prefixes)


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Names and prefixes in order, each once; whether it is a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset", "")
    after = _after(query.get("pageToken", ""))
    index = bisect_left(bucket.names, max(prefix, query.get("startOffset", ""), after))
    while index < len(bucket.names):
        name = bucket.names[index]
        if not name.startswith(prefix) or (end and name >= end):
            return
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: cut + len(delimiter)] if cut >= 0 else ""
        if folder and folder > after:
            yield folder, True
        if not folder and name > after:
            yield name, False
        # Past everything else in that folder at once: it may hold very many.
        index = bisect_left(bucket.names, _past(folder), index + 1) if folder else index + 1


def _past(folder: str) -> str:
    """The first text that is larger than everything that begins with this one."""
    return folder[:-1] + chr(ord(folder[-1]) + 1)


def _after(token: str) -> str:
    try:
        return base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        raise refuse("number", value=token, field="pageToken") from None


def _not_empty(**lists: list[Document] | list[str]) -> Document:
    return {key: values for key, values in lists.items() if values}
