"""Holds the sizes of STYLE.md; raising a limit, or excepting a name with its reason, is a commit of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .sources import Module, modules

MODULE_LINES = 600
FUNCTION_LINES = 70
PUBLIC_METHODS = 15
PARAMETERS = 5

CODE = ("src", "tools", "bench", "examples", "tests")

MANY_METHODS: dict[str, str] = {
    "Node": "one host has one owner: whoever starts a machine also pauses, copies, adopts and ends it",
    "LocalNode": "implements Node",
    "SimNode": "implements Node, and is what tests make fail",
}
"""Classes with more public methods, each with the reason."""

MANY_PARAMETERS = {
    "src/runtimed/core/ports.py list": "a listing's five keyword options are the query of its route, one to one",
}
"""Functions with more parameters, each with the reason; their implementations elsewhere take the same ones."""

DECLARING = {"get", "post", "put", "patch", "delete", "command", "callback"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def classes(module: Module) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef))


def functions(module: Module) -> Iterator[Function]:
    return (node for node in ast.walk(module.tree) if isinstance(node, Function))


def is_property(method: Function) -> bool:
    return any(
        isinstance(mark, ast.Name) and mark.id in ("property", "cached_property") for mark in method.decorator_list
    )


def parameters(module: Module, function: Function) -> int:
    """How many a caller must keep in mind; the SDK's keyword-only options are its published surface, each optional."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    if arguments and arguments[0].arg in ("self", "cls"):
        arguments = arguments[1:]
    if module.place.startswith("src/withruntime/"):
        return len(arguments)
    return len(arguments) + len(function.args.kwonlyargs)


def is_excepted(function: Function) -> bool:
    """By name and by its keyword-only options: an implementation of an excepted seam has the same signature."""
    return (
        any(key.endswith(f" {function.name}") for key in MANY_PARAMETERS)
        and len(function.args.kwonlyargs) >= PARAMETERS
    )


def is_declaration(function: Function) -> bool:
    """A route's and a command's parameters say what a request or a command line may hold; nobody calls them by hand."""
    marks = [mark.func for mark in function.decorator_list if isinstance(mark, ast.Call)]
    return any(isinstance(mark, ast.Attribute) and mark.attr in DECLARING for mark in marks)


def registered(module: Module) -> set[str]:
    """Names of functions that the module hands to typer: `app.command()(cp)`."""
    calls = [node for node in ast.walk(module.tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Call)]
    return {
        argument.id
        for call in calls
        if isinstance(call.func, ast.Call)
        and isinstance(call.func.func, ast.Attribute)
        and call.func.func.attr in DECLARING
        for argument in call.args
        if isinstance(argument, ast.Name)
    }


def test_a_module_fits_in_the_head() -> None:
    long = {
        m.place: m.text.count("\n") for m in modules(*CODE) if m.text.count("\n") > MODULE_LINES and not m.generated
    }

    assert not long


def test_a_function_fits_on_a_screen() -> None:
    long = [
        f"{module.place}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for module in modules(*CODE)
        for node in functions(module)
        if node.end_lineno is not None and node.end_lineno - node.lineno + 1 > FUNCTION_LINES and not module.migration
    ]

    assert not long, "\n".join(long)


def test_a_class_does_one_thing() -> None:
    wide = []
    for module in modules("src"):
        for node in classes(module):
            methods = [
                m for m in node.body if isinstance(m, Function) and not m.name.startswith("_") and not is_property(m)
            ]
            if len(methods) > PUBLIC_METHODS and node.name not in MANY_METHODS:
                wide.append(f"{module.place}:{node.lineno} {node.name}: {len(methods)} public methods")

    assert not wide, "\n".join(wide)


def test_a_call_has_few_parameters() -> None:
    many = [
        f"{module.place}:{node.lineno} {node.name}: {parameters(module, node)} parameters"
        for module in modules("src", "tools", "examples")
        for node in functions(module)
        if parameters(module, node) > PARAMETERS
        and not is_excepted(node)
        and not is_declaration(node)
        and node.name not in registered(module)
    ]

    assert not many, "\n".join(many)


def test_each_exception_of_size_is_still_needed() -> None:
    names = {node.name for module in modules("src") for node in classes(module)}
    wide = {
        f"{module.place} {node.name}"
        for module in modules("src")
        for node in functions(module)
        if parameters(module, node) > PARAMETERS
    }

    assert MANY_METHODS.keys() <= names
    assert MANY_PARAMETERS.keys() <= wide
