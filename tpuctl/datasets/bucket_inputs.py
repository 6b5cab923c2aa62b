"""Which objects of a bucket are pictures to presize: by the same rules as in a folder."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tpuctl.datasets import magic
from tpuctl.datasets.inputs import Input, Inputs, sort_of
from tpuctl.errors import InvalidInputError, NotFoundError
from tpuctl.storage.port import Entry, Storage

_PAGE = 1000
_CONNECTIONS = 16


def scan_bucket(storage: Storage) -> Inputs:
    """Find every picture below an address: one request for a thousand names.

    Objects whose name does not promise a picture are looked at, 64 bytes of each. Raises
    NotFoundError where nothing is.
    """
    ignored: Counter[str] = Counter()
    found = list(_visible(storage, ignored))
    if not found and not ignored:
        raise NotFoundError(
            f"There is nothing in {storage.address}.",
            hint=f"See what there is: gcloud storage ls {'/'.join(storage.address.split('/')[:3])}",
        )
    unnamed = [entry for entry in found if not magic.claims_to_be_an_image(entry.name)]
    others = {
        entry.name for entry, sniffed in zip(unnamed, _sniff(storage, unnamed), strict=True)
        if not sniffed
    }  # fmt: skip
    ignored.update(sort_of(name) for name in others)
    pictures = [
        Input(entry.name, entry.size_bytes, int(entry.version))
        for entry in found
        if entry.name not in others
    ]
    pictures.sort(key=lambda picture: os.fsencode(picture.key))
    pages = 1 + (len(found) + ignored["hidden"]) // _PAGE
    return Inputs(
        storage.address,
        tuple(pictures),
        dict(sorted(ignored.items())),
        lists=pages,
        looks=len(unnamed),
    )


def _visible(storage: Storage, ignored: Counter[str]) -> Iterator[Entry]:
    for entry in storage.list():
        if any(part.startswith(".") for part in entry.name.split("/")):
            ignored["hidden"] += 1
        else:
            yield entry


def _sniff(storage: Storage, entries: Sequence[Entry]) -> list[bool]:
    """Look at the first bytes of objects; one that is gone by now is no picture."""

    def sniff(entry: Entry) -> bool:
        if not entry.size_bytes:
            return False
        try:
            head = storage.read(entry.name, length=magic.HEAD_BYTES)
        except (NotFoundError, InvalidInputError):
            return False
        return magic.sniff(head) is not None

    with ThreadPoolExecutor(_CONNECTIONS) as threads:
        return list(threads.map(sniff, entries))
