"""gensim's Wikipedia corpus: pages from a bz2 dump, markup removed, words made ids."""

import bz2
import re
from typing import Any

import numpy as np

from benchmarks.pipelines.inputs import stage, wiki_dump

SOURCE = "https://github.com/piskvorky/gensim/blob/develop/gensim/corpora/wikicorpus.py"
NEEDS = "numpy"
STAGES = {
    "decompress": r"decompress",
    "extract_pages": r"extract_pages",
    "filter_wiki": r"filter_wiki",
    "doc2bow": r"doc2bow",
}


with bz2.open(wiki_dump(), "rb") as file:
    BLOCKS = list(iter(lambda: file.read(2**16), b""))
PAGE = BLOCKS[0].partition(b"<text>")[2].partition(b"</text>")[0].decode()
COUNTS = np.zeros(2000, "int64")
MARKUP = re.compile(r"\{\{[^{}]*\}\}|'{2,}|\[\[|\]\]")


@stage(lambda path: iter(BLOCKS))
def decompress(path: str) -> Any:
    with bz2.open(path, "rb") as file:
        while block := file.read(2**16):
            yield block


@stage(lambda blocks: (PAGE for block in blocks for _ in range(len(block) // 2500)))
def extract_pages(blocks: Any) -> Any:
    left = b""
    for block in blocks:
        *pages, left = (left + block).split(b"</page>")
        for page in pages:
            if b"<ns>0</ns>" in page:
                yield page.partition(b"<text>")[2].partition(b"</text>")[0].decode()


@stage(lambda text: PAGE)
def filter_wiki(text: str) -> str:
    return MARKUP.sub("", text)


@stage(lambda text: COUNTS)
def doc2bow(text: str) -> Any:
    ids = [hash(word) % 2000 for word in text.split()]
    return np.bincount(ids, minlength=2000)


def make() -> Any:
    counts = []
    for text in extract_pages(decompress(wiki_dump())):
        counts.append(doc2bow(filter_wiki(text)))
        if len(counts) == 64:
            yield np.stack(counts)
            counts = []
