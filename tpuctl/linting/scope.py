"""What a name in a program stands for: imports, aliases and scopes, found with `ast` alone.

LibCST resolves names too, and takes some forty times as long (benchmarks/lint_speed.py). It is used
for the edits of --fix only.
"""

import ast
import builtins
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_INNER_SCOPES = frozenset((*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS))
_SKIPPED = frozenset((ast.Load, ast.Store, ast.Del))
# The kinds of nodes that rules look at one by one.
_KEPT = frozenset((
    ast.Assign, ast.Constant, ast.JoinedStr, ast.With, ast.For, ast.FunctionDef, ast.Assert,
    ast.Import, ast.ImportFrom, ast.Name,
))  # fmt: skip
_BINDING = frozenset((
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For, ast.AsyncFor, ast.arg,
    ast.comprehension, ast.withitem, ast.ExceptHandler, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.ClassDef, ast.MatchAs, ast.MatchStar,
))  # fmt: skip
# The names under which libraries are looked up, longest first.
_CANONICAL = (
    ("tensorflow.contrib.tpu.python.tpu.keras_support.", "tf.contrib.tpu."),
    ("tensorflow.compat.v2.", "tf."),
    ("tensorflow.keras", "tf.keras"),
    ("tensorflow.", "tf."),
)
_DEEPEST_ALIAS = 8
# Only long chains of elif, calls or sums are deeper, and to look up from each of their links would
# take a time that grows with the square.
_DEEPEST = 100


@dataclass
class Binding:
    """One place that binds a name: to an imported path, to a value, or to something else."""

    node: ast.AST
    path: str = ""
    value: ast.expr | None = None


class Bindings(list[Binding]):
    """The bindings of one name in one scope, in source order."""

    paths: set[str] | None = None

    def before(self, line: int) -> Binding | None:
        """Return the last binding above a line."""
        at = bisect_left(self, line, key=lambda binding: _position(binding.node)[0])
        return self[at - 1] if at else None


@dataclass
class Scope:
    """The names that a module, class, function or comprehension binds."""

    node: ast.AST
    parent: "Scope | None"
    bindings: dict[str, Bindings] = field(default_factory=lambda: defaultdict(Bindings))


class Index:
    """A parsed program with the parent of each node, and every call and name in source order."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.calls: list[ast.Call] = []
        self.references: list[ast.Name | ast.Attribute] = []
        self.imports: list[tuple[ast.alias, str]] = []
        self.nodes: dict[type[ast.AST], list[Any]] = defaultdict(list)
        self._scopes: dict[ast.AST, Scope] = {}
        self._paths: dict[ast.AST, str] = {}
        self._walk(Scope(tree, None))
        kinds: list[list[Any]] = [self.calls, self.references, *self.nodes.values()]
        for nodes in kinds:
            nodes.sort(key=_position)
        self.imports.sort(key=lambda found: _position(found[0]))

    def _walk(self, top: Scope) -> None:
        stack: list[tuple[ast.AST, Scope]] = [(self.tree, top)]
        scopes = [top]
        while stack:
            node, scope = stack.pop()
            self._collect(node, scope)
            if type(node) in _INNER_SCOPES:
                scope = Scope(node, scope)
                scopes.append(scope)
            for child in ast.iter_child_nodes(node):
                if type(child) not in _SKIPPED:
                    self.parents[child] = node
                    stack.append((child, scope))
        for scope in scopes:
            for bindings in scope.bindings.values():
                bindings.sort(key=lambda binding: _position(binding.node))

    def _collect(self, node: ast.AST, scope: Scope) -> None:
        kind = type(node)
        self._scopes[node] = scope
        if kind in _KEPT:
            self.nodes[kind].append(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._bind_imports(node, scope)
        elif kind in _BINDING:
            for name, binding in _bound(node):
                scope.bindings[name].append(binding)
        elif isinstance(node, ast.Call):
            self.calls.append(node)
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            # A name that is only the beginning of a longer dotted one is part of that.
            begins = isinstance(self.parents[node], ast.Attribute)
            self.references += [] if begins else [node]

    def _bind_imports(self, node: Any, scope: Scope) -> None:
        is_from = isinstance(node, ast.ImportFrom)
        base = "." * node.level + (node.module or "") if is_from else ""
        for alias in node.names:
            path = f"{base}.{alias.name}" if is_from else alias.name
            self.imports.append((alias, canonical(path)))
            if not is_from and not alias.asname:
                path = path.partition(".")[0]
            name = alias.asname or path.rpartition(".")[2]
            scope.bindings[name].append(Binding(alias, path=path))

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, innermost first."""
        return islice(self._ancestors(node), _DEEPEST)

    def _ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
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
                inside is outer.iter or _is_after(inside, outer.orelse)
            )
            if isinstance(outer, LOOPS) and not once:
                found.append(outer)
            inside = outer
        return found

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """Return the statement that a node is part of."""
        around = (each for each in (node, *self.ancestors(node)) if isinstance(each, ast.stmt))
        return next(around, None)

    def bindings(self, name: ast.Name) -> tuple[Scope, Bindings] | None:
        """Find the scope that binds a name and its bindings there; None for a builtin."""
        scope: Scope | None = self._scopes[name]
        first = scope
        while scope is not None:
            # The names of a class are not visible in its methods.
            if name.id in scope.bindings and (
                scope is first or not isinstance(scope.node, ast.ClassDef)
            ):
                return scope, scope.bindings[name.id]
            scope = scope.parent
        return None

    def alias(self, module: str) -> str | None:
        """Return the name that the program itself, not a function of it, gives a module."""
        found = (a.asname for a, path in self.imports if path == module and a.asname)
        return next((name for name in found if name in self._scopes[self.tree].bindings), None)

    def is_bound(self, name: str) -> bool:
        """Whether any scope binds a name."""
        return any(name in scope.bindings for scope in self._scopes.values())

    def values(self, name: ast.Name) -> list[ast.expr]:
        """Return every value that is assigned to a name; empty if one is not known."""
        found = self.bindings(name)
        values = [binding.value for binding in found[1]] if found else []
        known = [value for value in values if value is not None]
        return known if len(known) == len(values) else []

    def last_binding(self, name: ast.Name) -> Binding | None:
        """Return what was last bound to a name: before its use, if that is in the same scope."""
        found = self.bindings(name)
        if found is None:
            return None
        scope, bindings = found
        if scope is not self._scopes[name]:
            return bindings[-1]
        at = self.statement(name)
        return bindings.before(at.lineno if at else name.lineno)

    def last_value(self, name: ast.Name) -> ast.expr | None:
        """Return the value that was last assigned to a name before its use in the same scope."""
        binding = self.last_binding(name)
        return binding.value if binding else None

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
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        base = self._resolve_name(node, depth)
        return ".".join([base, *reversed(parts)]) if base else ""

    def _resolve_name(self, name: ast.Name, depth: int) -> str:
        found = self.bindings(name)
        if found is None:
            return f"builtins.{name.id}" if hasattr(builtins, name.id) else ""
        scope, bindings = found
        if bindings.paths is None:
            bindings.paths = set()  # ends circles
            bindings.paths = {self._bound_path(b, depth) for b in bindings if not _is_none(b)}
        if len(bindings.paths) == 1:
            return next(iter(bindings.paths))
        return self._latest(name, scope, bindings)

    def _bound_path(self, binding: Binding, depth: int) -> str:
        if binding.path or binding.value is None:
            return binding.path
        path = self._resolve(binding.value, depth + 1)
        return "" if path.startswith("builtins.") else path

    def _latest(self, name: ast.Name, scope: Scope, bindings: Bindings) -> str:
        """Resolve a name that is imported twice, one import after the other."""
        last = bindings.before(name.lineno)
        if last is None or "" in (bindings.paths or {""}) or scope is not self._scopes[name]:
            return ""
        plain = last.path and self.parents.get(self.parents[last.node]) is self.tree
        return last.path if plain else ""


def root(node: ast.AST) -> ast.Name | None:
    """Return the name that a dotted expression begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def beginning(path: str, known: Container[str]) -> str | None:
    """Return the longest beginning of a dotted path that is known."""
    while path and path not in known:
        path = path.rpartition(".")[0]
    return path or None


def canonical(path: str) -> str:
    """Write a path under the name by which rules know the library."""
    if path == "tensorflow":
        return "tf"
    for long, short in _CANONICAL:
        if path.startswith(long):
            return short + path[len(long) :]
    return path


def _bound(node: Any) -> Iterator[tuple[str, Binding]]:
    """Yield the names that a node binds in its scope."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _targets(target, node.value)
    elif isinstance(node, ast.withitem):
        if node.optional_vars:
            yield from _targets(node.optional_vars, node.context_expr)
    elif isinstance(node, ast.arg):
        yield node.arg, Binding(node)
    elif hasattr(node, "name"):  # a function, a class, an exception, a pattern
        if node.name:
            yield node.name, Binding(node)
    elif not isinstance(node, ast.AnnAssign) or node.value:
        is_known = isinstance(node, (ast.AnnAssign, ast.NamedExpr))
        yield from _targets(node.target, node.value if is_known else None)


def _targets(target: ast.expr, value: ast.expr | None) -> Iterator[tuple[str, Binding]]:
    """Yield the names in the target of an assignment with what each is given."""
    if isinstance(target, ast.Name):
        yield target.id, Binding(target, value=value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        pairs: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(pairs):
            pairs = list(value.elts)
        for part, given in zip(target.elts, pairs, strict=True):
            yield from _targets(part, given)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value, None)


def _is_after(node: ast.AST, block: list[ast.stmt]) -> bool:
    """Whether a node of a statement with several blocks is in one, or after it."""
    return bool(block) and _position(node) >= _position(block[0])


def _is_none(binding: Binding) -> bool:
    """Whether a name is set to None, as where an optional import failed."""
    return isinstance(binding.value, ast.Constant) and binding.value.value is None


def _position(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def argument(call: ast.Call, position: int | None, name: str) -> ast.expr | None:
    """Return an argument of a call by position or keyword; None if it is not given."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    if position is not None and position < len(call.args):
        if any(isinstance(given, ast.Starred) for given in call.args[: position + 1]):
            return None
        return call.args[position]
    return None


def has_keyword(call: ast.Call, *names: str) -> bool:
    """Whether a call has one of the keywords, or ** with any."""
    return any(keyword.arg is None or keyword.arg in names for keyword in call.keywords)


def has_stars(call: ast.Call) -> bool:
    """Whether a call has * or ** arguments, so that what it is given is not known."""
    return any(isinstance(given, ast.Starred) for given in call.args) or any(
        keyword.arg is None for keyword in call.keywords
    )
