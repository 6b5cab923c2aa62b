"""Port the TPU set-up of TensorFlow 1 and 2 to Keras 3 on JAX: all of it, or nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

from tpuctl.linting.checks.gone import lookup, only_in_tf_keras
from tpuctl.linting.checks.gone_hosted import RESOLVERS, STRATEGIES
from tpuctl.linting.models import Edit, Hit
from tpuctl.linting.program import Program
from tpuctl.linting.scope import argument, canonical, root

BACKEND = 'os.environ["KERAS_BACKEND"] = "jax"  # before the first import of keras'
_DEVICES = "keras.distribution.list_devices()"
_HAS_TPU = f'any("tpu" in name for name in {_DEVICES})'
_REASONS = {"T101", "T105", "T113", "T115"}
_PORTED = _REASONS | {"T102", "T103", "T109", "T304", "T305"}
_TO_TPU = "tf.contrib.tpu.keras_to_tpu_model"
_CONNECTS = (
    "tf.config.experimental_connect_to_cluster", "tf.config.experimental_connect_to_host",
    "tf.contrib.distribute.initialize_tpu_system", "tf.tpu.experimental.initialize_tpu_system",
    "tf.tpu.experimental.shutdown_tpu_system", "tf.logging.set_verbosity",
    "tf.compat.v1.logging.set_verbosity", "tf.compat.v1.enable_eager_execution",
    "tf.enable_eager_execution", "tf.enable_v2_behavior", "tf.compat.v1.enable_v2_behavior",
)  # fmt: skip
_OPTIMIZERS = {
    "AdamOptimizer": "Adam",
    "GradientDescentOptimizer": "SGD",
    "RMSPropOptimizer": "RMSprop",
    "AdagradOptimizer": "Adagrad",
}
_RENAMED = {
    "tf.set_random_seed": "keras.utils.set_random_seed",
    "tf.random.set_seed": "keras.utils.set_random_seed",
    "tf.compat.v1.set_random_seed": "keras.utils.set_random_seed",
    "tf.__version__": "keras.__version__",
    "tf.VERSION": "keras.__version__",
    "tf.logging.info": "print",
    "tf.Session": "",
    **{f"tf.train.{old}": f"keras.optimizers.{new}" for old, new in _OPTIMIZERS.items()},
    **{f"tf.compat.v1.train.{old}": f"keras.optimizers.{new}" for old, new in _OPTIMIZERS.items()},
}


def port(program: Program, hits: list[Hit]) -> list[Hit]:
    """Give the hits about the set-up of a TPU the edits that port it, if all of it can be."""
    reasons = [hit for hit in hits if hit.code in _REASONS and hit.severity in (None, "error")]
    has_setup = any(program.calls_of(*RESOLVERS, *STRATEGIES, _TO_TPU))
    if not reasons or ("COLAB_TPU_ADDR" not in program.document.text and not has_setup):
        return hits
    work = _Port(program)
    group = work.edits()
    if not group:
        return hits
    return [
        replace(hit, group=group)
        if hit.code in _PORTED and isinstance(hit.node, ast.AST) and work.covers(hit.node)
        else hit
        for hit in hits
    ]


class _Port:
    """The edits of one program."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._made: dict[ast.AST, Edit] = {}

    def edits(self) -> tuple[Edit, ...]:
        """Return the edits; none if something depends on the old set-up in an unknown way."""
        self._setup()
        self._uses()
        self._names()
        if any(not self.covers(use) for use in self._open_uses()):
            return ()
        self._imports()
        if not self._made:
            return ()
        first = next(iter(self._made.values()))
        lines = ["import os", BACKEND, "import keras"]
        if self._program.target.situation.devices > 1:
            lines += self._program.target.keras_distribution.splitlines()
        self._made[first.node] = replace(first, needs=tuple(lines))
        return tuple(self._made.values())

    def covers(self, node: ast.AST) -> bool:
        """Whether a node is replaced or removed, alone or with what is around it."""
        around = (node, *self._program.ancestors(node))
        return any(each in self._made and self._made[each].kind != "unwrap" for each in around)

    def _add(self, node: ast.AST, kind: str, new: str = "") -> None:
        if not self.covers(node):
            self._made[node] = Edit(node, kind, new)  # type: ignore[arg-type]

    @cached_property
    def _tainted(self) -> dict[str, str]:
        """Names that hold an address, a resolver or a strategy, and which one."""
        found: dict[str, str] = {}
        for _ in range(2):
            for assign in self._program.nodes[ast.Assign]:
                kind = self._kind(assign.value, found)
                for target in assign.targets if kind else ():
                    if isinstance(target, ast.Name):
                        found[target.id] = kind
        return found

    def _kind(self, value: ast.expr, found: dict[str, str]) -> str:
        path = self._program.called(value)
        if path in STRATEGIES:
            return "strategy"
        if path in RESOLVERS:
            return "resolver"
        if path == _TO_TPU:
            return ""
        inside = list(ast.walk(value))
        if any(isinstance(n, ast.Constant) and n.value == "COLAB_TPU_ADDR" for n in inside):
            return "" if isinstance(value, (ast.Compare, ast.IfExp, ast.BoolOp)) else "address"
        names = [n.id for n in inside if isinstance(n, ast.Name)]
        is_text = isinstance(value, (ast.BinOp, ast.JoinedStr, ast.Name))
        if is_text and any(found.get(name) == "address" for name in names):
            return "address"
        masters = [n for n in inside if getattr(n, "attr", "") in ("get_master", "master")]
        owners = (root(node) for node in masters)
        asks = any(owner and found.get(owner.id) == "resolver" for owner in owners)
        return "address" if asks else ""

    def _setup(self) -> None:
        """Remove what makes addresses, resolvers and strategies, and what connects to them."""
        program = self._program
        for assign in program.nodes[ast.Assign]:
            names = [t.id for t in assign.targets if isinstance(t, ast.Name)]
            whole = len(names) == len(assign.targets) and all(n in self._tainted for n in names)
            other = all(self._tainted.get(n) == "strategy" for n in names) and program.called(
                assign.value
            ).startswith("tf.distribute.")
            if whole and (other or self._kind(assign.value, self._tainted)):
                self._add(assign, "remove")
        for call in program.calls_of(*_CONNECTS):
            statement = program.parents.get(call)
            if isinstance(statement, ast.Expr):
                self._add(statement, "remove")
        self._models()
        self._sessions()

    def _models(self) -> None:
        """Keep the model of keras_to_tpu_model, and drop assertions that there is a TPU."""
        program = self._program
        for assertion in program.nodes[ast.Assert]:
            if "COLAB_TPU_ADDR" in ast.dump(assertion.test):
                self._add(assertion, "statement", f"print({_DEVICES})")
        for call in program.calls_of(_TO_TPU):
            if model := argument(call, 0, "model"):
                parent = program.parents.get(call)
                targets = parent.targets if isinstance(parent, ast.Assign) else []
                if [ast.unparse(target) for target in targets] == [ast.unparse(model)]:
                    self._add(program.parents[call], "remove")
                else:
                    self._add(call, "replace", ast.unparse(model))

    def _sessions(self) -> None:
        """Replace a session that only lists the devices."""
        program = self._program
        for node in program.nodes[ast.With]:
            item = node.items[0]
            if program.called(item.context_expr) not in ("tf.Session", "tf.compat.v1.Session"):
                continue
            name = item.optional_vars.id if isinstance(item.optional_vars, ast.Name) else ""
            uses = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
            calls = [program.parents.get(program.parents[use]) for use in uses[1:] or uses]
            lists = [c for c in calls if isinstance(c, ast.Call) and _method(c) == "list_devices"]
            if lists and len(lists) == len(uses) - 1:
                for call in lists:
                    self._add(call, "replace", _DEVICES)
                self._made[node] = Edit(node, "unwrap")
                self._made[item.context_expr] = Edit(item.context_expr, "replace", "None")

    def _uses(self) -> None:
        """Rewrite the uses of strategies and of the address that have a meaning on JAX."""
        program = self._program
        for node in program.nodes[ast.With]:
            call, name = node.items[0].context_expr, node.items[0].optional_vars
            is_scope = len(node.items) == 1 and not name and _method(call) == "scope"
            if is_scope and self._is(call, "strategy"):
                self._made[node] = Edit(node, "unwrap")
                self._made[call] = Edit(call, "replace", "None")
        for reference in program.references:
            name = reference.attr if isinstance(reference, ast.Attribute) else ""
            if name == "num_replicas_in_sync" and self._is(reference, "strategy"):
                self._add(reference, "replace", f"len({_DEVICES})")
        for constant in program.nodes[ast.Constant]:
            if constant.value == "COLAB_TPU_ADDR":
                self._test(constant)
        for use in self._open_uses():
            statement = program.statement(use)
            call = statement.value if isinstance(statement, ast.Expr) else None
            shows = isinstance(call, ast.Call) and program.called(call) in (
                "builtins.print",
                "pprint.pprint",
                "tf.logging.info",
            )
            if statement is not None and shows and self._tainted.get(use.id) != "strategy":
                self._add(statement, "statement", f"print({_DEVICES})")

    def _test(self, constant: ast.Constant) -> None:
        """Replace the question whether the variable is set by whether there is a TPU."""
        parent = self._program.parents.get(constant)
        if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], (ast.In, ast.NotIn)):
            negated = "not " if isinstance(parent.ops[0], ast.NotIn) else ""
            self._add(parent, "replace", f"{negated}{_HAS_TPU}")
        elif isinstance(parent, ast.Call) and self._program.called(parent) in (
            "os.environ.get",
            "os.getenv",
        ):
            self._add(parent, "replace", _HAS_TPU)

    def _is(self, node: ast.expr, kind: str) -> bool:
        """Whether an expression begins with a name of a kind."""
        owner = root(node.func if isinstance(node, ast.Call) else node)
        return owner is not None and self._tainted.get(owner.id) == kind

    def _open_uses(self) -> Iterator[ast.Name]:
        """Yield the uses of the old set-up that no edit covers yet."""
        for name in self._program.nodes[ast.Name]:
            is_use = isinstance(name.ctx, ast.Load) and name.id in self._tainted
            if is_use and not self.covers(name):
                yield name

    def _names(self) -> None:
        """Write keras for tf.keras, and Keras' names for those of TensorFlow."""
        for node, path in self._program.paths:
            if self.covers(node) or not isinstance(node, ast.Attribute):
                continue
            if path.startswith("tf.keras."):
                new = _keras_name(path)
                if new and self._program.path(root(node)) == "tf":
                    self._add(node, "replace", new)
            elif _RENAMED.get(path):
                self._add(node, "replace", _RENAMED[path])

    def _imports(self) -> None:
        """Import from keras, and drop the imports that nothing uses any more."""
        names = self._program.nodes[ast.Name]
        uses = (name for name in names if isinstance(name.ctx, ast.Load))
        used = {name.id for name in uses if not self.covers(name)}
        for node in self._program.nodes[ast.ImportFrom]:
            if not node.level:
                self._import_from(node, used)
        for node in self._program.nodes[ast.Import]:
            self._import(node, used)

    def _import_from(self, node: ast.ImportFrom, used: set[str]) -> None:
        module = canonical(f"{node.module}.")[:-1]
        names = [f"{module}.{alias.name}" for alias in node.names]
        if module == "tf" and [alias.name for alias in node.names] == ["keras"]:
            alias = node.names[0].asname
            self._add(node, *(("statement", f"import keras as {alias}") if alias else ("remove",)))
        elif module.startswith("tf.keras") and all(map(_keras_name, names)):
            listed = ", ".join(_as_written(alias) for alias in node.names)
            self._add(node, "statement", f"from {module[3:]} import {listed}")
        elif module.startswith(("tf.contrib", "tf.python")) and not used & set(
            map(_bound_name, node.names)
        ):
            self._add(node, "remove")

    def _import(self, node: ast.Import, used: set[str]) -> None:
        left, changed = [], False
        for alias in node.names:
            path = canonical(f"{alias.name}.")[:-1]
            written = _as_written(alias)
            if path.startswith("tf.keras") and alias.asname and _keras_name(path):
                written = f"{path[3:]} as {alias.asname}"
            elif path in ("tf", "tf.compat.v1") and _bound_name(alias) not in used:
                written = ""
            changed |= written != _as_written(alias)
            left += [written] if written else []
        if changed and left:
            self._add(node, "statement", f"import {', '.join(left)}")
        elif changed:
            self._add(node, "remove")


def _bound_name(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _method(node: ast.AST) -> str:
    func = node.func if isinstance(node, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else ""


def _keras_name(path: str) -> str | None:
    """Return the name in keras of one in tf.keras; None if keras does not have it."""
    name = path.removeprefix("tf.")
    found = lookup(name)
    if found:
        old, gone = found
        return gone.new + name[len(old) :] if gone.new and gone.same_arguments else None
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(2, len(parts) + 1))
    return None if any(prefix in only_in_tf_keras() for prefix in prefixes) else name


def _as_written(alias: ast.alias) -> str:
    return f"{alias.name} as {alias.asname}" if alias.asname else alias.name
