"""The environment of chat templates: `transformers`' own, whose operations are counted by a rendering's RenderLimits.

A template's tree is changed before it is compiled: loops and macros begin with a step; what is written, made or
compared goes through a filter of this file (its name, such as ``=made``, is none that a template can spell). Filters,
tests, calls and operators are wrapped. All of them take the context, so that none is worked out while a template is
compiled, and find in it the RenderLimits of the rendering: any number of threads render one template.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import _PassArg, pass_context
from jinja2.visitor import NodeTransformer

from ramet.text import growth
from ramet.text.limits import LimitReached, RenderLimits

LIMITS = "limits of this rendering"  # no name in a template
MAX_SOURCE = 1 << 17  # letters; the longest of published templates have some 30 000
_QUICK_TESTS = frozenset({
    "boolean", "callable", "defined", "escaped", "false", "filter", "float", "integer", "iterable", "mapping", "none",
    "number", "sameas", "sequence", "string", "test", "true", "undefined",
})  # fmt: skip
_SCOPES = frozenset({"_loop_vars", "_block_vars"})  # what compiled templates add to each call


class Environment(ImmutableSandboxedEnvironment):
    """Its templates are rendered with RenderLimits under the name LIMITS among their variables."""

    intercepted_binops = frozenset({"+", "*", "**", "%", "//"})

    def __init__(self, like: Any) -> None:
        super().__init__(
            trim_blocks=like.trim_blocks,
            lstrip_blocks=like.lstrip_blocks,
            extensions=[type(extension) for extension in like.extensions.values()],
        )
        self.globals.update(like.globals)
        self.globals["namespace"] = _without_repr(like.globals["namespace"])
        self.filters = {name: _counted(f, growth.FILTERS.get(name)) for name, f in like.filters.items()}
        self.filters |= {"=made": _made, "=written": _written, "=read": _read}
        self.tests = {name: f if name in _QUICK_TESTS else _counted(f, None) for name, f in like.tests.items()}
        self.tests["=step"] = _step

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        if len(source) > MAX_SOURCE:
            raise LimitReached(f"has {len(source)} letters, more than {MAX_SOURCE}, the limit")
        tree: nodes.Template = _Counting().visit(super()._parse(source, name, filename))
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        limits: RenderLimits = context.parent[LIMITS]
        if operator == "+":
            return limits.made(left + right)
        growth.binary(limits, operator, left, right)
        return limits.made(self.binop_table[operator](left, right))

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        limits = _limits(context)
        limits.step()
        given = {name: value for name, value in kwargs.items() if name not in _SCOPES}
        for value in (*args, *given.values()):
            limits.read(value)
        args = growth.call(limits, function, args, given)
        return limits.made(super().call(context, function, *args, **kwargs))


@cache
def environment() -> Environment:
    """The one environment of all templates. The first call may import transformers, in a second."""
    from transformers.utils.chat_template_utils import _compile_jinja_template

    return Environment(_compile_jinja_template("").environment)


def _limits(context: Context) -> RenderLimits:
    limits: RenderLimits = context.parent[LIMITS]
    return limits


def _without_repr(namespace: type) -> type:
    """A namespace class with a short text: they hold each other, so a full text may be far longer than its parts."""
    return type("Namespace", (namespace,), {"__repr__": object.__repr__})


def _counted(function: Callable[..., Any], rule: growth.Rule | None) -> Callable[..., Any]:
    """A filter or test that counts as a step, and counts its arguments and its result."""
    passed = _PassArg.from_obj(function)

    @pass_context
    def counted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        limits = _limits(context)
        limits.step()
        for given in (value, *args):
            limits.read(given)
        if rule is not None:
            value = rule(limits, value, *args, **kwargs)
        if passed is None:
            return limits.made(function(value, *args, **kwargs), value)
        first = {_PassArg.context: context, _PassArg.eval_context: context.eval_ctx}.get(passed, context.environment)
        return limits.made(function(first, value, *args, **kwargs), value)

    return counted


@pass_context
def _step(context: Context, value: bool) -> bool:
    _limits(context).step()
    return value


@pass_context
def _made(context: Context, value: Any) -> Any:
    return _limits(context).made(value)


@pass_context
def _read(context: Context, value: Any) -> Any:
    _limits(context).read(value)
    return value


@pass_context
def _written(context: Context, value: Any) -> str:
    limits: RenderLimits = context.parent[LIMITS]
    if isinstance(value, str):
        limits.write(len(value))
        return value
    limits.write(limits.weight(value))
    return str(value)


class _Counting(NodeTransformer):
    """Changes a tree in place."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802, names of Jinja's nodes
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_a_step(node), node.test, lineno=node.lineno)
        return _begin_with_step(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return _begin_with_step(self.generic_visit(node))

    visit_CallBlock = visit_Macro  # noqa: N815

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_through("=written", inner) for inner in node.nodes]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_through("=written", inner) for inner in node.nodes]
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _through("=made", self.generic_visit(node))

    visit_Dict = visit_List  # noqa: N815

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx == "store" else _through("=made", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _through("=made", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        if not all(_is_literal(operand.expr) for operand in node.ops):
            node.expr = self._read(node.expr)
            for operand in node.ops:
                operand.expr = self._read(operand.expr)
        else:
            node.expr = self.visit(node.expr)
        return node

    def _read(self, node: nodes.Expr) -> nodes.Expr:
        return node if _is_literal(node) else _through("=read", self.visit(node))


def _begin_with_step(node: Any) -> nodes.Node:
    node.body.insert(0, nodes.ExprStmt(_a_step(node), lineno=node.lineno))
    return node  # type: ignore[no-any-return]


def _a_step(node: nodes.Node) -> nodes.Expr:
    return nodes.Test(nodes.Const(True), "=step", [], [], None, None, lineno=node.lineno)


def _through(name: str, node: nodes.Node) -> nodes.Expr:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _is_literal(node: nodes.Node) -> bool:
    """Whether a node is a constant or a list of constants, with which a comparison takes little time."""
    return isinstance(node, nodes.Const) or (
        isinstance(node, (nodes.List, nodes.Tuple)) and all(isinstance(item, nodes.Const) for item in node.items)
    )
