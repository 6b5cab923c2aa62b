"""The runtime's model: added up by path, and matched with the pipeline as written."""

import weakref
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline_cases import chain, nodes
from tpuctl.errors import TargetError
from tpuctl.profiling.align import align, build_tree, loses_iterators, merge_labelled
from tpuctl.profiling.frameworks.source import Source
from tpuctl.profiling.measure.loop import BatchReader, Limit, is_warming_up, spread
from tpuctl.profiling.models import ChainNode
from tpuctl.profiling.node_stats import ModelNode, NodeStats, Snapshot
from tpuctl.profiling.windows import NodeCost


def node(id: int, name: str, active: int, elements: int, *inputs: int) -> ModelNode:
    return ModelNode(id, name, active, elements, 0, None, 1.0, inputs)


def snapshot(*all_nodes: ModelNode) -> Snapshot:
    return Snapshot({each.id: each for each in all_nodes}, 1)


def totals(stats: NodeStats) -> dict[str, tuple[float, int]]:
    return {"/".join(c.path): (round(c.active_s * 1e9), c.elements) for c in stats.costs()}


def test_only_growth_since_forget_counts() -> None:
    stats = NodeStats()
    stats.add(snapshot(node(1, "Root", 5, 1, 2), node(2, "Map", 100, 10)))
    stats.reset()
    stats.add(snapshot(node(1, "Root", 7, 2, 2), node(2, "Map", 160, 16)))
    assert totals(stats) == {"Root": (2, 1), "Root/Map": (60, 6)}


def test_a_node_born_again_each_epoch_keeps_one_account() -> None:
    stats = NodeStats()
    stats.add(snapshot(node(1, "Root", 0, 0, 2), node(2, "Repeat", 0, 0, 3), node(3, "Map", 50, 5)))
    stats.add(snapshot(node(1, "Root", 0, 0, 2), node(2, "Repeat", 0, 0, 9), node(9, "Map", 30, 3)))
    assert totals(stats)["Root/Repeat/Map"] == (80, 8)
    assert stats.nodes_vanished


def test_a_vanished_list_of_files_is_not_worth_a_note() -> None:
    stats = NodeStats()
    stats.add(snapshot(node(1, "Root", 900, 9, 2), node(2, "TensorSlice", 1, 9)))
    stats.add(snapshot(node(1, "Root", 990, 10, 5), node(5, "TensorSlice", 1, 1)))
    assert not stats.nodes_vanished


def test_iterators_inside_an_interleave_share_an_account() -> None:
    stats = NodeStats()
    stats.add(
        snapshot(
            node(1, "ParallelInterleaveV4", 10, 6, 2, 3, 4),
            node(2, "TensorSlice", 1, 2),
            node(3, "TFRecord", 20, 3),
            node(4, "TFRecord", 30, 3),
        )
    )
    assert totals(stats)["ParallelInterleaveV4/TFRecord*"] == (50, 6)
    assert totals(stats)["ParallelInterleaveV4/TensorSlice"] == (1, 2)


def test_the_sides_of_a_zip_are_kept_apart() -> None:
    stats = NodeStats()
    stats.add(snapshot(node(1, "Zip", 0, 5, 2, 3), node(2, "Map", 10, 5), node(3, "Map", 90, 5)))
    assert totals(stats) == {"Zip": (0, 5), "Zip/Map": (10, 5), "Zip/Map#1": (90, 5)}


def names(written: ChainNode, *paths: str, elements: int = 4) -> list[tuple[str, str]]:
    costs = [NodeCost(tuple(p.split("/")), 0.1, elements, 0, None, 1.0) for p in paths]
    root = build_tree(costs, 1.0)
    assert root is not None
    return [
        ("+".join(n.name for n in stage.written), "+".join(n.op for n in stage.ran))
        for stage in merge_labelled(align(written, root))
    ]


def test_a_map_and_a_batch_that_were_fused_are_one_stage() -> None:
    written = ChainNode("Batch", "batch", inputs=(ChainNode("ParallelMap", "augment"),))
    assert names(written, "Root", "Root/MapAndBatch") == [("batch+augment", "Root+MapAndBatch")]


def test_a_prefetch_that_tf_data_added_is_a_stage_of_its_own() -> None:
    written = ChainNode("Batch", "batch", inputs=(ChainNode("Map", "decode"),))
    assert names(
        written,
        "Root",
        "Root/Prefetch",
        "Root/Prefetch/BatchV2",
        "Root/Prefetch/BatchV2/ParallelMapV2",
    ) == [("", "Root+Prefetch"), ("batch", "BatchV2"), ("decode", "ParallelMapV2")]


def test_a_transformation_that_was_optimised_away_leaves_no_stage() -> None:
    written = ChainNode("Take", "take", inputs=(ChainNode("Map", "decode"),))
    assert names(written, "Root", "Root/Map") == [("decode", "Root+Map")]


def test_stages_with_the_same_given_name_are_one() -> None:
    source = ChainNode("TensorSlice", "tensor_slice", label="read")
    written = ChainNode("Map", "f", label="read", inputs=(source,))
    assert names(written, "Map", "Map/TensorSlice") == [("f+tensor_slice", "Map+TensorSlice")]


def test_both_sides_of_a_zip_are_aligned() -> None:
    left, right = ChainNode("Map", "images"), ChainNode("Map", "labels")
    written = ChainNode("Zip", "zip", inputs=(left, right))
    assert names(written, "Zip", "Zip/Map", "Zip/Map#1") == [
        ("zip", "Zip"), ("images", "Map"), ("labels", "Map"),
    ]  # fmt: skip


def test_one_batch_is_worth_its_examples_all_the_way_down() -> None:
    root = build_tree(nodes({"prefetch": 1.0, "batch": 1.0, "decode": 1.0}, 320.0), 32.0)
    worth = []
    while root:
        worth.append((root.op, root.examples_per_element))
        root = root.inputs[0] if root.inputs else None
    assert worth[:4] == [
        ("Root", 32.0),
        ("Prefetch", 32.0),
        ("BatchV2", 32.0),
        ("ParallelMapV2", 1.0),
    ]


def test_a_filter_makes_its_inputs_worth_less() -> None:
    costs = [
        NodeCost(("Filter",), 0.1, 50, 0, None, None),
        NodeCost(("Filter", "Map"), 0.1, 200, 0, None, 1.0),
    ]
    root = build_tree(costs, 1.0)
    assert root is not None
    assert root.inputs[0].examples_per_element == 0.25


def test_a_pipeline_without_a_model_has_no_tree() -> None:
    assert build_tree([], 1.0) is None
    assert chain(("batch", "decode")).inputs[0].name == "decode"


class Numbers(Source):
    """A source of numbers for the loop: so many per epoch, then an error if there is one."""

    def __init__(self, per_epoch: int, error: Exception | None = None) -> None:
        super().__init__("iterable", ChainNode("Iterable", "numbers"), batched=False)
        self.per_epoch, self.error, self.epochs = per_epoch, error, 0

    def open(self) -> Iterator[Any]:
        self.epochs += 1
        yield from range(self.per_epoch)
        if self.error:
            raise self.error


def test_a_finite_source_starts_again() -> None:
    numbers = Numbers(3)
    reader = BatchReader(numbers, batch_size=2)
    assert [reader.step() for _ in range(4)] == [2, 2, 2, 2]
    assert numbers.epochs == 3


class Alone(Numbers):
    """A source that counts how many of its earlier iterators live when it opens the next."""

    def __init__(self) -> None:
        super().__init__(2)
        self.made: weakref.WeakSet[Iterator[Any]] = weakref.WeakSet()
        self.alive: list[int] = []

    def open(self) -> Iterator[Any]:
        self.alive.append(len(self.made))
        made = super().open()
        self.made.add(made)
        return made


def test_an_epoch_ends_before_the_next_begins() -> None:
    source = Alone()
    reader = BatchReader(source, batch_size=1)
    for _ in range(7):
        reader.step()
    assert source.alive == [0, 0, 0, 0]


def test_an_empty_source_is_an_error_and_not_a_loop() -> None:
    with pytest.raises(TargetError, match="empty"):
        BatchReader(Numbers(0), batch_size=1).step()


def test_a_source_that_fails_later_is_an_error_with_its_words() -> None:
    reader = BatchReader(Numbers(1, ValueError("broken record")), batch_size=1)
    reader.step()
    with pytest.raises(TargetError, match="ValueError: broken record"):
        reader.step()


def test_a_window_has_its_steps_however_long_they_take() -> None:
    assert Limit(5.0, steps=3).reached(3, 0.1)
    assert not Limit(5.0, steps=3).reached(2, 500.0)
    assert Limit(5.0).reached(4, 5.1)
    assert not Limit(5.0).reached(1, 5.1)
    assert Limit(5.0).reached(1, 20.0)


def test_warming_up_is_seen_and_steady_is_not() -> None:
    assert is_warming_up(array("d", [0.2] * 10 + [0.1] * 10 + [0.02] * 10))
    assert not is_warming_up(array("d", [0.1] * 30))
    assert not is_warming_up(array("d", [0.5, 0.1, 0.1]))


def test_durations_are_summed_up() -> None:
    summary = spread(array("d", [float(value) for value in range(1, 101)]))
    assert (summary.count, summary.mean, summary.p50, summary.p99) == (100, 50.5, 51.0, 100.0)
    assert spread(array("d")).count == 0


def test_a_reader_of_a_list_of_files_is_the_flat_map_that_reads_them() -> None:
    files = ChainNode("TensorSlice", "tensor_slice")
    written = ChainNode("Map", "parse", inputs=(ChainNode("TFRecord", "records", inputs=(files,)),))
    assert names(written, "Map", "Map/FlatMap", "Map/FlatMap/TensorSlice") == [
        ("parse", "Map"),
        ("records", "FlatMap"),
        ("tensor_slice", "TensorSlice"),
    ]
    alone = ChainNode("Map", "parse", inputs=(ChainNode("TextLine", "lines"),))
    assert names(alone, "Map", "Map/FlatMap", "Map/FlatMap/TensorSlice")[1] == ("lines", "FlatMap")


def test_iterators_that_ended_unseen_are_noticed_by_their_missing_elements() -> None:
    outer = NodeCost(("Map", "FlatMap"), 0.1, 1000, 0, None, None)
    inner = NodeCost(("Map", "FlatMap", "TextLine*"), 0.1, 990, 0, None, None)
    assert not loses_iterators([outer, inner])
    assert loses_iterators([outer, replace(inner, elements=8)])
