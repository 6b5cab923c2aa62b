"""Elements of any pipeline as records: nested tuples and dicts of arrays, split and rebuilt.

A record holds, for every leaf, its bytes and its shape; the manifest holds the structure once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tpuctl.datasets.formats.records import Feature
from tpuctl.errors import InvalidInputError

Structure = dict[str, Any]

_BYTES, _TEXT = "bytes", "str"


def structure_of(element: Any, name: str = "") -> Structure:
    """Describe an element; raises InvalidInputError for what is neither nested nor an array."""
    if isinstance(element, Mapping):
        items = {
            str(key): structure_of(item, f"{name}/{_escaped(str(key))}")
            for key, item in element.items()
        }
        return {"kind": "dict", "items": items}
    if isinstance(element, (tuple, list)):
        parts = [structure_of(item, f"{name}/{index}") for index, item in enumerate(element)]
        return {"kind": "tuple", "items": parts}
    return {"kind": "leaf", "name": name or "/", "dtype": _leaf_of(element, name or "/")[0]}


def flatten(element: Any, structure: Structure) -> dict[str, Feature]:
    """Turn an element into features; raises InvalidInputError if its structure differs."""
    if structure_of(element) != structure:
        raise InvalidInputError("its structure or types differ from those of the first")
    features: dict[str, Feature] = {}
    for name, leaf in leaves_of(element, structure):
        dtype, data = _leaf_of(leaf, name)
        features[name] = data if isinstance(data, bytes) else data.tobytes()
        if dtype not in (_BYTES, _TEXT):
            features[f"{name}#shape"] = np.asarray(data.shape, "<i8").tobytes()
    return features


def rebuild(features: Mapping[str, Feature], structure: Structure) -> Any:
    """Turn features into an element of NumPy arrays; raises ValueError and KeyError for damage."""
    if structure["kind"] == "dict":
        return {key: rebuild(features, item) for key, item in structure["items"].items()}
    if structure["kind"] == "tuple":
        return tuple(rebuild(features, item) for item in structure["items"])
    name, dtype = structure["name"], structure["dtype"]
    data, shape = features.get(name, b""), features.get(f"{name}#shape", b"")
    if not isinstance(data, bytes) or not isinstance(shape, bytes):
        raise ValueError(f"{name} is a number, not an array")
    if dtype == _BYTES:
        return data
    if dtype == _TEXT:
        return data.decode("utf-8", "surrogateescape")
    return np.frombuffer(data, _dtype(dtype)).reshape(np.frombuffer(shape, "<i8"))


def _escaped(key: str) -> str:
    """Keep a key apart from what separates names here, as a JSON pointer does (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1").replace("#", "~2")


def leaves_of(element: Any, structure: Structure) -> Iterator[tuple[str, Any]]:
    """Yield each leaf of an element with its name."""
    if structure["kind"] == "dict":
        for key, item in element.items():
            yield from leaves_of(item, structure["items"][str(key)])
    elif structure["kind"] == "tuple":
        for item, part in zip(element, structure["items"], strict=True):
            yield from leaves_of(item, part)
    else:
        yield structure["name"], element


def _leaf_of(leaf: Any, name: str) -> tuple[str, Any]:
    """Return the type's name and the data of a leaf: an array, a tensor, a number or a string."""
    if hasattr(leaf, "numpy"):
        leaf = leaf.numpy()
    if isinstance(leaf, bytes):
        return _BYTES, leaf
    if isinstance(leaf, str):
        return _TEXT, leaf.encode("utf-8", "surrogateescape")
    array = np.asarray(leaf)
    if array.dtype.hasobject or array.dtype.kind in "US":
        raise InvalidInputError(
            f"the leaf {name} is a {type(leaf).__name__} of {array.dtype}, which cannot be stored"
        )
    return array.dtype.name, np.ascontiguousarray(array).reshape(array.shape)


def _dtype(name: str) -> "np.dtype[Any]":
    if not hasattr(np, name):
        import ml_dtypes  # what jax and TensorFlow have beyond NumPy: bfloat16, float8

        name = getattr(ml_dtypes, name, name)
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.hasobject:
        raise ValueError(f"{name} is not a numeric type")
    return dtype
