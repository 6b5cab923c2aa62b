"""What a name in a program stands for: imports, aliases and scopes, found with `ast` alone.

LibCST resolves names too, and takes some forty times as long (benchmarks/lint_speed.py). It is used
for the edits of --fix only.
"""

import ast
import builtins
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_INNER_SCOPES = frozenset((*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS))
_COLLECTED = frozenset((ast.Call, ast.Name, ast.Attribute))
_SKIPPED = frozenset((ast.Load, ast.Store, ast.Del))
# The kinds of nodes that rules look at one by one.
_KEPT = frozenset((ast.Assign, ast.Constant, ast.JoinedStr, ast.With, ast.For, ast.FunctionDef))
# The names under which libraries are looked up, longest first.
_CANONICAL = (
    ("tensorflow.contrib.tpu.python.tpu.keras_support.", "tf.contrib.tpu."),
    ("tensorflow.compat.v2.", "tf."),
    ("tensorflow.keras", "tf.keras"),
    ("tensorflow.", "tf."),
)
_DEEPEST_ALIAS = 8


@dataclass
class Binding:
    """One place that binds a name: to an imported path, to a value, or to something else."""

    node: ast.AST
    path: str = ""
    value: ast.expr | None = None


@dataclass
class Scope:
    """The names that a module, class, function or comprehension binds."""

    node: ast.AST
    parent: "Scope | None"
    bindings: dict[str, list[Binding]] = field(default_factory=lambda: defaultdict(list))


class Index:
    """A parsed program with the parent of each node, and every call and name in source order."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.scopes: dict[ast.AST, Scope] = {tree: Scope(tree, None)}
        self.calls: list[ast.Call] = []
        self.references: list[ast.Name | ast.Attribute] = []
        self.imports: list[tuple[ast.alias, str]] = []
        self.nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
        self._paths: dict[ast.AST, str] = {}
        _Walk(self).visit(tree, self.scopes[tree])
        self._sort()

    def _sort(self) -> None:
        self.calls.sort(key=_position)
        self.references.sort(key=_position)
        self.imports.sort(key=lambda found: _position(found[0]))
        for kept in self.nodes.values():
            kept.sort(key=_position)
        for scope in self.scopes.values():
            for bindings in scope.bindings.values():
                bindings.sort(key=lambda binding: _position(binding.node))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        while parent := self.parents.get(node):
            yield parent
            node = parent

    def function(self, node: ast.AST) -> Function | None:
        """Return the function or lambda around a node."""
        return next((a for a in self.ancestors(node) if isinstance(a, FUNCTIONS)), None)

    def loops(self, node: ast.AST) -> list[ast.AST]:
        """Return the loops that run a node again and again, within its function."""
        found: list[ast.AST] = []
        inside = node
        for outer in self.ancestors(node):
            if isinstance(outer, FUNCTIONS):
                break
            # What is iterated over, and the else branch, run once.
            once = isinstance(outer, (ast.For, ast.AsyncFor)) and (
                inside is outer.iter or inside in outer.orelse
            )
            if isinstance(outer, LOOPS) and not once:
                found.append(outer)
            inside = outer
        return found

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is part of."""
        while not isinstance(node, ast.stmt):
            if (parent := self.parents.get(node)) is None:
                return None
            node = parent
        return node

    def scope(self, node: ast.AST) -> Scope:
        """Return the scope in which a node is evaluated."""
        for outer in self.ancestors(node):
            if outer in self.scopes:
                return self.scopes[outer]
        return self.scopes[self.tree]

    def bindings(self, name: ast.Name) -> tuple[Scope, list[Binding]] | None:
        """Find the scope that binds a name and its bindings there; None for a builtin."""
        scope: Scope | None = self.scope(name)
        first = scope
        while scope is not None:
            # The names of a class are not visible in its methods.
            if name.id in scope.bindings and (
                scope is first or not isinstance(scope.node, ast.ClassDef)
            ):
                return scope, scope.bindings[name.id]
            scope = scope.parent
        return None

    def values(self, name: ast.Name) -> list[ast.expr]:
        """Return every value that is assigned to a name; empty if one is not known."""
        found = self.bindings(name)
        values = [binding.value for binding in found[1]] if found else []
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []

    def last_value(self, name: ast.Name) -> ast.expr | None:
        """Return the value that was last assigned to a name before its use in the same scope."""
        found = self.bindings(name)
        if found is None:
            return None
        scope, bindings = found
        if scope is self.scope(name):
            at = self.statement(name)
            line = at.lineno if at else name.lineno
            before = bisect_left(bindings, line, key=lambda binding: _position(binding.node)[0])
            return bindings[before - 1].value if before else None
        return bindings[-1].value if bindings else None

    def path(self, node: ast.AST | None) -> str:
        """Return the dotted path that an expression stands for, such as tf.data.Dataset, or ""."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return ""
        if node not in self._paths:
            self._paths[node] = ""  # ends circles such as `tf = tf`
            self._paths[node] = canonical(self._resolve(node, 0))
        return self._paths[node]

    def called(self, node: ast.AST | None) -> str:
        """Return the path of the function that an expression calls, or ""."""
        return self.path(node.func) if isinstance(node, ast.Call) else ""

    def _resolve(self, node: ast.expr, depth: int) -> str:
        if depth > _DEEPEST_ALIAS:
            return ""
        if isinstance(node, ast.Attribute):
            base = self._resolve(node.value, depth)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        found = self.bindings(node)
        if found is None:
            return f"builtins.{node.id}" if hasattr(builtins, node.id) else ""
        paths = {self._bound(binding, depth) for binding in found[1] if not _is_none(binding)}
        return paths.pop() if len(paths) == 1 else self._latest(node, *found)

    def _bound(self, binding: Binding, depth: int) -> str:
        if binding.path:
            return binding.path
        path = self._resolve(binding.value, depth + 1) if binding.value is not None else ""
        return "" if path.startswith("builtins.") else path

    def _latest(self, name: ast.Name, scope: Scope, bindings: list[Binding]) -> str:
        """Resolve a name that is imported twice, one import after the other."""
        before = [b for b in bindings if getattr(b.node, "lineno", 0) < name.lineno]
        if not before or scope is not self.scope(name) or not all(b.path for b in bindings):
            return ""
        plain = all(self.parents.get(self.parents[b.node]) is self.tree for b in bindings)
        return before[-1].path if plain else ""


def canonical(path: str) -> str:
    """Write a path under the name by which rules know the library."""
    if path == "tensorflow":
        return "tf"
    for long, short in _CANONICAL:
        if path.startswith(long):
            return short + path[len(long) :]
    return path


def _is_none(binding: Binding) -> bool:
    """Whether a name is set to None, as where an optional import failed."""
    return isinstance(binding.value, ast.Constant) and binding.value.value is None


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


class _Walk:
    """One pass over the tree."""

    def __init__(self, made: Index) -> None:
        self.made = made

    def visit(self, root: ast.AST, top: Scope) -> None:
        parents, kept, binds = self.made.parents, self.made.nodes, _BINDS
        stack = [(root, top)]
        while stack:
            node, scope = stack.pop()
            kind = type(node)
            if kind in _KEPT:
                kept[kind].append(node)
            if kind in binds:
                binds[kind](self, node, scope)
            if kind in _INNER_SCOPES:
                scope = Scope(node, scope)
                self.made.scopes[node] = scope
                self._bind_arguments(node, scope)
            for name in node._fields:
                value = getattr(node, name, None)
                for child in value if type(value) is list else (value,):
                    if isinstance(child, ast.AST) and type(child) not in _SKIPPED:
                        parents[child] = node
                        stack.append((child, scope))
            if kind in _COLLECTED:
                self._collect(node)

    def _collect(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self.made.calls.append(node)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            # A name that is only the beginning of a longer dotted one is part of that.
            begins = isinstance(self.made.parents[node], ast.Attribute)
            if isinstance(node.ctx, ast.Load) and not begins:
                self.made.references.append(node)

    def _bind_assign(self, node: ast.Assign, scope: Scope) -> None:
        for target in node.targets:
            self._bind_target(target, node.value, scope)

    def _bind_one(self, node: ast.AnnAssign | ast.NamedExpr, scope: Scope) -> None:
        if node.value is not None:
            self._bind_target(node.target, node.value, scope)

    def _bind_unknown(self, node: ast.AugAssign | ast.For, scope: Scope) -> None:
        self._bind_target(node.target, None, scope)

    def _bind_with(self, node: ast.withitem, scope: Scope) -> None:
        if node.optional_vars is not None:
            self._bind_target(node.optional_vars, node.context_expr, scope)

    def _bind_name(self, node: ast.ExceptHandler | ast.ClassDef, scope: Scope) -> None:
        if node.name:
            scope.bindings[node.name].append(Binding(node))

    def _bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and node.level:
            base = "." * node.level + base
        for alias in node.names:
            path = f"{base}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            self.made.imports.append((alias, canonical(path)))
            if isinstance(node, ast.Import) and not alias.asname:
                path = path.partition(".")[0]
            name = alias.asname or path.rpartition(".")[2]
            scope.bindings[name].append(Binding(alias, path=path))

    def _bind_target(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            scope.bindings[target.id].append(Binding(target, value=value))
            return
        if isinstance(target, (ast.Tuple, ast.List)):
            pairs: list[ast.expr | None] = [None] * len(target.elts)
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(pairs):
                pairs = list(value.elts)
            for part, given in zip(target.elts, pairs, strict=True):
                self._bind_target(part, given, scope)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, None, scope)

    def _bind_arguments(self, node: ast.AST, scope: Scope) -> None:
        if not isinstance(node, FUNCTIONS):
            return
        arguments = node.args
        plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for argument in (*plain, arguments.vararg, arguments.kwarg):
            if argument is not None:
                scope.bindings[argument.arg].append(Binding(argument))


_BINDS: dict[type[ast.AST], Callable[[_Walk, Any, Scope], None]] = {
    ast.Import: _Walk._bind_import,
    ast.ImportFrom: _Walk._bind_import,
    ast.Assign: _Walk._bind_assign,
    ast.AnnAssign: _Walk._bind_one,
    ast.NamedExpr: _Walk._bind_one,
    ast.AugAssign: _Walk._bind_unknown,
    ast.For: _Walk._bind_unknown,
    ast.AsyncFor: _Walk._bind_unknown,
    ast.comprehension: _Walk._bind_unknown,
    ast.withitem: _Walk._bind_with,
    ast.ExceptHandler: _Walk._bind_name,
    ast.FunctionDef: _Walk._bind_name,
    ast.AsyncFunctionDef: _Walk._bind_name,
    ast.ClassDef: _Walk._bind_name,
}
