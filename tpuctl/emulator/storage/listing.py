"""Lists of objects in pages: by prefix, by folder, by glob."""

import base64
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping

from tpuctl.emulator.errors import storage_error
from tpuctl.emulator.methods import Document
from tpuctl.emulator.storage.objects import Bucket
from tpuctl.emulator.storage.resources import read_whole

_MOST_ITEMS = 1000
_NOT_SUPPORTED = ("softDeleted", "filter", "includeTrailingDelimiter")
_GLOB = re.compile(r"\*\*|[*?{},]|\[!?[^\]]+\]|.", re.DOTALL)


def list_objects(bucket: Bucket, query: Mapping[str, str], base_url: str) -> Document:
    """List one page of the objects of a bucket, and of their prefixes up to a delimiter."""
    for key in _NOT_SUPPORTED:
        if query.get(key, "false") != "false":
            raise storage_error("unimplemented", what=key)
    most = min(read_whole(query, "maxResults") or _MOST_ITEMS, _MOST_ITEMS)
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
            items.append(bucket.objects[entry].resource(base_url))
    lists = {"items": items, "prefixes": prefixes}
    return document | {key: found for key, found in lists.items() if found}


def _entries(bucket: Bucket, query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Return names and prefixes in order, each with whether it is a prefix."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    end = query.get("endOffset", "")
    token = query.get("pageToken", "")
    glob = _read_glob(query["matchGlob"]) if query.get("matchGlob") else None
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except ValueError:
        raise storage_error("number", value=token, field="pageToken") from None
    index = bisect_left(bucket.names, max(prefix, query.get("startOffset", ""), after))
    while index < len(bucket.names):
        name = bucket.names[index]
        if not name.startswith(prefix) or (end and name >= end):
            return
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        folder = name[: cut + len(delimiter)] if cut >= 0 else ""
        is_wanted = glob is None or glob.fullmatch(name)
        if is_wanted and (folder or name) > after:
            yield folder or name, bool(folder)
        # Skip the rest of that folder at once: it may contain a great many objects.
        if folder and is_wanted:
            first_after = folder[:-1] + chr(ord(folder[-1]) + 1)
            index = bisect_left(bucket.names, first_after, index + 1)
        else:
            index += 1


def _read_glob(text: str) -> re.Pattern[str]:
    """Compile a glob: `*` and `?` stop at a slash, `**` does not, `{a,b}` is either."""
    meanings = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")", ",": "|"}
    depth, pattern = 0, ""
    for part in _GLOB.findall(text):
        depth += (part == "{") - (part == "}")
        if part[0] == "[" and len(part) > 1:
            negated = part[1] == "!"
            listed = part[1 + negated : -1].replace("\\", r"\\")
            pattern += f"[{'^' if negated else ''}{listed}]"
        elif part == "," and not depth:
            pattern += part
        else:
            pattern += meanings.get(part, re.escape(part))
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error:
        raise storage_error("glob", value=text) from None
