"""Change source code with LibCST, where what no edit names stays as it is; nbformat checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import Any, cast

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from tpuctl.linting.documents import Columns
from tpuctl.linting.models import Edit

_GONE = "tpuctl_removed__"
_GONE_LINES = re.compile(rf"^[ \t]*{_GONE}\b[^\n\r]*(?:\r\n|\r|\n|\Z)", re.MULTILINE)
Span = tuple[int, int, int, int]


def apply(source: str, edits: Sequence[Edit], *, first_line: int = 1) -> str:
    """Apply edits of nodes that `ast` found in this source, which starts at `first_line`.

    Raises ValueError if LibCST cannot read the source or does not find a node.
    """
    columns = Columns(source.replace("\r\n", "\n").replace("\r", "\n"))
    wanted: dict[tuple[Span, str], Edit] = {
        (_span(edit.node, columns, first_line), edit.kind): edit for edit in edits
    }
    try:
        wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
        work = _Work(wanted)
        changed = wrapper.visit(work)
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise ValueError(f"LibCST: {type(error).__name__}") from error
    return _GONE_LINES.sub("", changed.code)


def add_lines(source: str, new: Sequence[str], at: int) -> str:
    """Insert lines before line `at`, unless the same statement is above it already."""
    lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", source)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    before = {line.strip() for line in lines[: at - 1]}
    wanted = [f"{line}{end}" for line in new if line.strip() not in before]
    return "".join([*lines[: at - 1], *wanted, *lines[at - 1 :]])


def _span(node: ast.AST, columns: Columns, first_line: int) -> Span:
    """Return where a node is, in characters."""
    place = cast("Any", node)
    start, end = place.lineno - first_line + 1, place.end_lineno - first_line + 1
    return start, columns(start, place.col_offset), end, columns(end, place.end_col_offset)


def notebook_format(text: str) -> int:
    """Return the format of a notebook, as nbformat reads it."""
    import nbformat

    try:
        notebook: Any = cast("Any", nbformat).reads(text, as_version=nbformat.NO_CONVERT)
        return int(notebook.nbformat)
    # nbformat asserts types, and looks keys up, before it validates.
    except Exception as error:
        reason = getattr(error, "message", "") or repr(error)
        raise ValueError(f"not changed: Jupyter cannot read this notebook: {reason}") from error


class _Work(cst.CSTTransformer):
    """Replace nodes by where they are."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, wanted: dict[tuple[Span, str], Edit]) -> None:
        super().__init__()
        self._wanted = wanted
        self._by_start = {
            (span[0], span[1]): edit for (span, kind), edit in wanted.items() if kind == "unwrap"
        }

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated = super().on_leave(original_node, updated_node)
        if isinstance(original_node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            return _without_gone(updated)
        if isinstance(original_node, cst.IndentedBlock):
            return _with_pass(cast("cst.IndentedBlock", updated))
        if isinstance(original_node, (cst.BaseExpression, cst.BaseSmallStatement, cst.With)):
            found = self.get_metadata(PositionProvider, original_node, None)
            if isinstance(found, CodeRange):
                return self._changed(original_node, updated, found)
        return updated

    def _changed(self, original: Any, updated: Any, place: CodeRange) -> Any:
        span = (place.start.line, place.start.column, place.end.line, place.end.column)
        if isinstance(original, cst.With):
            return _unwrapped(updated) if span[:2] in self._by_start else updated
        if isinstance(original, cst.BaseSmallStatement):
            if (span, "remove") in self._wanted:
                return _gone()
            if edit := self._wanted.get((span, "statement")):
                return _statement(edit.new)
            return updated
        if isinstance(original, cst.Call) and (edit := self._wanted.get((span, "keyword"))):
            updated = _with_keyword(updated, edit.new)
        if edit := self._wanted.get((span, "append")):
            updated = _appended(updated, edit.new)
        if edit := self._wanted.get((span, "replace")):
            new = cst.parse_expression(edit.new)
            return new.with_changes(lpar=updated.lpar, rpar=updated.rpar) if updated.lpar else new
        return updated


def _statement(source: str) -> Any:
    line = cst.ensure_type(cst.parse_statement(source), cst.SimpleStatementLine)
    return line.body[0]


def _unwrapped(node: Any) -> Any:
    """Return the statements of a block without the line above them, with its comments."""
    block = node.body
    if isinstance(block, cst.SimpleStatementSuite):
        line = cst.SimpleStatementLine(block.body, node.leading_lines, block.trailing_whitespace)
        return cst.FlattenSentinel([line])
    first, *rest = cast("list[Any]", block.body)
    above = [*node.leading_lines]
    if comment := block.header.comment:
        above.append(cst.EmptyLine(comment=comment))
    first = first.with_changes(leading_lines=(*above, *first.leading_lines))
    # What follows the last statement needs one to precede.
    below = [cst.SimpleStatementLine([_gone()], block.footer)] if block.footer else []
    return cst.FlattenSentinel([first, *rest, *below])


def _gone() -> cst.Expr:
    return cst.Expr(cst.Name(_GONE))


def _without_gone(line: Any) -> Any:
    """Drop removed statements from a line that has others; `pass` is left after a colon."""
    left = [small for small in line.body if not _is_gone(small)]
    if len(left) == len(line.body):
        return line
    if left and _is_gone(line.body[-1]):
        left[-1] = left[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
    if not left and isinstance(line, cst.SimpleStatementSuite):
        left = [cst.Pass()]
    return line.with_changes(body=left or [_gone()])


def _with_pass(block: cst.IndentedBlock) -> cst.IndentedBlock:
    """Leave `pass` in a block whose last statement was removed."""
    lines = cast("list[Any]", block.body)
    if not all(
        isinstance(line, cst.SimpleStatementLine) and _is_gone(line.body[0]) for line in lines
    ):
        return block
    line = cst.SimpleStatementLine([cst.Pass()])
    return block.with_changes(body=[*block.body[:-1], line])


def _is_gone(small: Any) -> bool:
    is_name = isinstance(small, cst.Expr) and isinstance(small.value, cst.Name)
    return is_name and small.value.value == _GONE


def _with_keyword(call: cst.Call, change: str) -> cst.Call:
    """Add `name=value`, rename `old>new`, or drop `old>`, in the arguments of a call."""
    old, arrow, new = change.partition(">")
    if arrow and "=" not in old:
        if new:
            args = [
                arg.with_changes(keyword=cst.Name(new)) if _is_keyword(arg, old) else arg
                for arg in call.args
            ]
        else:
            args = _without(call.args, old)
        return call.with_changes(args=args)
    name, _, value = change.partition("=")
    made = cst.Arg(
        keyword=cst.Name(name),
        value=cst.parse_expression(value),
        equal=cst.AssignEqual(
            whitespace_before=cst.SimpleWhitespace(""), whitespace_after=cst.SimpleWhitespace("")
        ),
    )
    return call.with_changes(args=_with(call, made) if call.args else [made])


def _with(call: cst.Call, made: cst.Arg) -> list[cst.Arg]:
    """Add an argument: on a line of its own where the first has one, or behind the last."""
    last, first_line = call.args[-1], call.whitespace_before_args
    comma = last.comma if isinstance(last.comma, cst.Comma) else None
    end: Any = comma.whitespace_after if comma else last.whitespace_after_arg
    between: Any = cst.SimpleWhitespace(" ")
    if isinstance(end, cst.ParenthesizedWhitespace) and isinstance(first_line, type(end)):
        # A comment stays behind the argument that it is about.
        between = end.with_changes(indent=first_line.indent, last_line=first_line.last_line)
        line = cst.TrailingWhitespace(newline=end.first_line.newline)
        end = end.with_changes(first_line=line, empty_lines=())
    last = last.with_changes(
        comma=(comma or cst.Comma()).with_changes(whitespace_after=between),
        whitespace_after_arg=cst.SimpleWhitespace(""),
    )
    if comma:
        made = made.with_changes(comma=cst.Comma(whitespace_after=end))
    else:
        made = made.with_changes(whitespace_after_arg=end)
    return [*call.args[:-1], last, made]


def _is_keyword(arg: cst.Arg, name: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == name


def _without(args: Sequence[cst.Arg], name: str) -> list[cst.Arg]:
    """Drop an argument; where it was the last, the one before it ends the call as it did."""
    left = [arg for arg in args if not _is_keyword(arg, name)]
    if not left or left[-1] is args[-1]:
        return left
    last, ending = left[-1].comma, args[-1].comma
    comma: Any = cst.MaybeSentinel.DEFAULT
    if isinstance(last, cst.Comma) and isinstance(ending, cst.Comma):
        space, end = last.whitespace_after, ending.whitespace_after
        if isinstance(space, cst.ParenthesizedWhitespace) and isinstance(end, type(space)):
            end = space.with_changes(indent=end.indent, last_line=end.last_line)
        comma = last.with_changes(whitespace_after=end)
    return [*left[:-1], left[-1].with_changes(comma=comma)]


def _appended(node: Any, call: str) -> Any:
    """Call a method of what a node is: `.prefetch(n)`."""
    made = cst.ensure_type(cst.parse_expression(f"x{call}"), cst.Call)
    function = cst.ensure_type(made.func, cst.Attribute)
    return made.with_changes(func=function.with_changes(value=node))
