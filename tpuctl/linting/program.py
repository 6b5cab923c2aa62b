"""A program as the rules see it: calls by name, constant values, the runtime it is for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Literal

from tpuctl.linting.documents import Document
from tpuctl.linting.models import Severity
from tpuctl.linting.pipelines import Pipelines
from tpuctl.linting.scope import FUNCTIONS, LOOPS, Function, Index
from tpuctl.linting.targets import Target

_MOST_VALUES = 8
_LARGEST_NUMBER, _LONGEST_TEXT = 1 << 40, 10_000
_REPLICA_COUNTS = (
    "num_replicas_in_sync", "device_count", "local_device_count", "world_size",
    "global_device_count", "xrt_world_size", "process_count",
)  # fmt: skip
_TPU_PATHS = (
    "tf.distribute.TPUStrategy", "tf.distribute.experimental.TPUStrategy", "tf.contrib.tpu",
    "tf.distribute.cluster_resolver.TPUClusterResolver", "tf.tpu", "torch_xla", "tf.compat.v1.tpu",
    "tf.contrib.cluster_resolver.TPUClusterResolver", "keras.distribution", "libtpu",
    "jax.tools.colab_tpu", "tf.compat.v1.estimator.tpu", "tf.estimator.tpu",
)  # fmt: skip
# Calls whose function argument is compiled, and decorators that compile.
COMPILERS = (
    "jax.jit", "jax.pmap", "jax.experimental.pjit.pjit", "flax.nnx.jit", "jax.shard_map",
    "jax.experimental.shard_map.shard_map", "equinox.filter_jit",
)  # fmt: skip
_MISSING = {"ImportError", "ModuleNotFoundError", "AttributeError", "Exception"}
_STEPS = ("backward", "apply_gradients", "optimizer_step", "train_on_batch", "update")
_WRAPPERS = (*COMPILERS, "functools.partial", "tf.function")
_DEEPEST_DEFINITION = 3


class Program(Index):
    """An index of a document, with the questions that several rules ask."""

    def __init__(self, document: Document, target: Target) -> None:
        super().__init__(document.tree)
        self.document = document
        self.target = target
        self._guards: dict[ast.AST, bool] = {}
        self._read: dict[tuple[str, int], object] = {}

    @cached_property
    def by_path(self) -> dict[str, list[ast.Call]]:
        """The calls of each function, by its path."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            if path := self.path(call.func):
                found[path].append(call)
        return found

    @cached_property
    def by_method(self) -> dict[str, list[ast.Call]]:
        """The calls `x.name()`, by name."""
        found: dict[str, list[ast.Call]] = defaultdict(list)
        for call in self.calls:
            if isinstance(call.func, ast.Attribute):
                found[call.func.attr].append(call)
        return found

    @cached_property
    def paths(self) -> list[tuple[ast.expr, str]]:
        """Every name that stands for something imported, with its path."""
        found = ((node, self.path(node)) for node in self.references)
        return [(node, path) for node, path in found if path and not path.startswith("builtins.")]

    @cached_property
    def modules(self) -> set[str]:
        """The first parts of all imported paths."""
        return {path.partition(".")[0] for _, path in self.imports}

    @cached_property
    def aims_at_tpu(self) -> bool:
        """Whether this is meant for a TPU: it says so, or the runtime is one."""
        if self.target.is_known:
            return True
        used = [path for _, path in self.paths] + [path for _, path in self.imports]
        if any(path.startswith(_TPU_PATHS) for path in used):
            return True
        words = (node.value for node in self.nodes[ast.Constant] if isinstance(node, ast.Constant))
        return any(
            isinstance(word, str) and word in ("tpu", "TPU", "COLAB_TPU_ADDR") for word in words
        )

    @cached_property
    def torch_xla_sureness(self) -> Severity:
        """How sure it is that this runs on PyTorch/XLA, which it may import if it is there."""
        for alias, path in self.imports:
            top = self.parents.get(self.parents[alias]) is self.tree
            if top and path.partition(".")[0] == "torch_xla":
                return "warning"
        return "maybe"

    @cached_property
    def pipelines(self) -> Pipelines:
        """The input pipelines of tf.data."""
        return Pipelines(self)

    @property
    def is_for_gpu(self) -> bool:
        """Whether a notebook's file asks for a GPU, and no TPU was named."""
        metadata = self.document.metadata or {}
        return metadata.get("accelerator") == "GPU" and not self.aims_at_tpu

    def calls_of(self, *paths: str) -> Iterator[ast.Call]:
        """Yield the calls of functions by their paths."""
        for path in paths:
            yield from self.by_path.get(path, ())

    def methods(self, *names: str) -> Iterator[ast.Call]:
        """Yield the calls of methods by their names."""
        for name in names:
            yield from self.by_method.get(name, ())

    def environment_use(self, name: ast.Constant) -> Literal["read", "write", "ask"] | None:
        """Say what is done with the environment variable of a name: read, write or ask."""
        parent = self.parents.get(name)
        if isinstance(parent, ast.Subscript) and self._may_be_environment(parent.value):
            return "read" if isinstance(parent.ctx, ast.Load) else "write"
        if isinstance(parent, ast.Compare) and parent.left is name:
            return "ask" if self._may_be_environment(parent.comparators[0]) else None
        if isinstance(parent, ast.Call) and parent.args[:1] == [name]:
            method = parent.func.attr if isinstance(parent.func, ast.Attribute) else ""
            if self.path(parent.func) == "os.getenv" or method == "get":
                return "ask"
            return "write" if method in ("setdefault", "putenv", "setenv") else None
        return None

    def _may_be_environment(self, node: ast.expr) -> bool:
        """Whether an expression is os.environ, or a name that looks like a copy of it."""
        if self.path(node) == "os.environ":
            return True
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        return "env" in name.lower()

    def constant(self, node: ast.expr | None) -> object:
        """Return the constant that an expression is, through names and arithmetic, or None."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name():
                return self._of_name("constant", node, self.constant)
            case ast.BinOp(left=left, op=op, right=right):
                return _arithmetic(op, self.constant(left), self.constant(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self.constant(operand)
                return -inner if isinstance(inner, (int, float)) else None
        return None

    def _of_name(self, kind: str, name: ast.Name, read: Callable[[ast.expr], object]) -> object:
        """Read the values of a name; None if they differ, or if one depends on the name itself."""
        found = self.bindings(name)
        key = (kind, id(found[1]) if found else 0)
        if key not in self._read:
            self._read[key] = None
            values = self.values(name)[: _MOST_VALUES + 1]
            known = {value for each in values if isinstance(value := read(each), (int, float, str))}
            whole = len(known) == 1 and 0 < len(values) <= _MOST_VALUES
            same = whole and all(read(each) in known for each in values)
            self._read[key] = known.pop() if same else None
        return self._read[key]

    def number(self, node: ast.expr | None) -> int | None:
        """Return a whole number that an expression is, or None."""
        value = self.constant(node)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def text(self, node: ast.expr | None) -> str | None:
        """Return the text that an expression is, or None; of an f-string its constant beginning."""
        if isinstance(node, ast.JoinedStr) and node.values:
            return self.text(node.values[0])
        if isinstance(node, ast.Call) and self.called(node) in ("os.path.join", "pathlib.Path"):
            return self.text(node.args[0]) if node.args else None
        if isinstance(node, ast.Name):
            value = self._of_name("text", node, self.text)
            return value if isinstance(value, str) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Mod)):
            whole = self.constant(node)
            return whole if isinstance(whole, str) else self.text(node.left)
        value = self.constant(node)
        return value if isinstance(value, str) else None

    def per_replica(self, node: ast.expr | None) -> int | None:
        """Return the factor that an expression multiplies with the number of replicas, or None."""
        if isinstance(node, ast.Name):
            value = self._of_name("factor", node, self.per_replica)
            return value if isinstance(value, int) else None
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, other in ((node.left, node.right), (node.right, node.left)):
                if self.counts_replicas(one):
                    return self.number(other)
        return None

    def counts_replicas(self, node: ast.expr) -> bool:
        """Whether an expression is the number of replicas or devices."""
        if isinstance(node, ast.Call):
            node = node.func
        if isinstance(node, ast.Attribute):
            return node.attr in _REPLICA_COUNTS
        return isinstance(node, ast.Name) and bool(
            self._of_name("count", node, self.counts_replicas)
        )

    def trains(self, loop: ast.AST) -> bool:
        """Whether a loop makes training steps."""
        return loop in self._trainings

    @cached_property
    def _trainings(self) -> set[ast.AST]:
        found: set[ast.AST] = set()
        for call in self.calls:
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            name = (call.func.id if isinstance(call.func, ast.Name) else name).lower()
            if name in _STEPS or ("step" in name and ("train" in name or "update" in name)):
                found.update(outer for outer in self.ancestors(call) if isinstance(outer, LOOPS))
        return found

    def is_guarded(self, node: ast.AST) -> bool:
        """Whether the program expects that a name may be missing: try, or a look at the version."""
        inside = node
        for outer in self.ancestors(node):
            if outer not in self._guards:
                self._guards[outer] = _expects_missing(outer)
            if isinstance(outer, ast.Try):
                if self._guards[outer] and inside.lineno < outer.handlers[0].lineno:  # type: ignore[attr-defined]
                    return True
            elif self._guards[outer] and inside is not outer.test:  # type: ignore[attr-defined]
                return True
            inside = outer
        return False

    def is_compiled(self, node: ast.AST) -> bool:
        """Whether a node is inside a function that JAX compiles."""
        return any(outer in self._compiled for outer in self.ancestors(node))

    @cached_property
    def _compiled(self) -> set[ast.AST]:
        given = (call.args[0] for call in self.calls_of(*COMPILERS) if call.args)
        decorated = (
            node
            for node in self.nodes[ast.FunctionDef]
            if any(map(self.compiles, node.decorator_list))
        )
        return {*filter(None, map(self.definition, given)), *decorated}

    @cached_property
    def replicated(self) -> set[ast.AST]:
        """The functions that strategy.run executes on the replicas."""
        runs = self.methods("run", "experimental_run_v2")
        return {*filter(None, (self.definition(call.args[0]) for call in runs if call.args))}

    def compiles(self, decorator: ast.expr) -> bool:
        """Whether a decorator is jit, or partial(jit, ...)."""
        if isinstance(decorator, ast.Call):
            inner = decorator.args[0] if decorator.args else None
            partial = self.called(decorator) == "functools.partial" and inner is not None
            return self.path(inner if partial else decorator.func) in COMPILERS
        return self.path(decorator) in COMPILERS

    def definition(self, node: ast.expr | None) -> Function | None:
        """Return the function or lambda that an expression stands for, also compiled or partial."""
        for _ in range(_DEEPEST_DEFINITION):
            if isinstance(node, ast.Name):
                binding = self.last_binding(node)
                if binding and isinstance(binding.node, FUNCTIONS):
                    return binding.node
                node = binding.value if binding else None
            elif isinstance(node, ast.Call) and self.path(node.func) in _WRAPPERS and node.args:
                node = node.args[0]
        return node if isinstance(node, ast.Lambda) else None


def _expects_missing(node: ast.AST) -> bool:
    """Whether a try or an if is there because a name may be missing."""
    if isinstance(node, ast.Try):
        types = [handler.type for handler in node.handlers]
        names = {n.id for kind in types if kind for n in ast.walk(kind) if isinstance(n, ast.Name)}
        return None in types or bool(names & _MISSING)
    if isinstance(node, (ast.If, ast.IfExp)):
        return bool(re.search(r"ersion|VERSION|hasattr", ast.dump(node.test)))
    return False


def _arithmetic(op: ast.operator, left: object, right: object) -> object:
    if isinstance(op, ast.Add) and isinstance(left, str) and isinstance(right, str):
        return left + right if len(left) + len(right) < _LONGEST_TEXT else None
    if not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        return None
    # Powers and shifts are left out, and large numbers too: they could take any time.
    if max(abs(left), abs(right)) > _LARGEST_NUMBER:
        return None
    if isinstance(op, ast.Mult):
        return left * right
    if isinstance(op, ast.Add):
        return left + right
    if isinstance(op, ast.Sub):
        return left - right
    if isinstance(op, ast.FloorDiv):
        return left // right if right else None
    return None
