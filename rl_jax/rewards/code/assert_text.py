"""The text of tests, taken apart: what it needs, and what of it is one test.

Part of what runs inside the sandbox: standard library only.
"""

import ast
import builtins
import symtable
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Unit(NamedTuple):
    """Code that runs as one; `tests` if it is a test, else it prepares some."""

    code: types.CodeType
    tests: bool


# Runs the methods of a unittest.TestCase as one test; a skipped one is not passed.
_RUN_CASE = """
import unittest as _unittest
_result = _unittest.TestResult()
_unittest.defaultTestLoader.loadTestsFromTestCase({name}).run(_result)
assert _result.testsRun and _result.wasSuccessful() and not _result.skipped
"""


def units(texts: Sequence[str], entry: str) -> list[Unit]:
    """The tests, in order, with what comes between them.

    Of several texts each is one test, if it checks anything. A single text is taken
    statement by statement: each at the margin that checks something is a test, so is
    each function called test_... and each unittest.TestCase, and `check(candidate)` is
    called if it does not do so itself.

    Raises:
        SyntaxError, ValueError, RecursionError: a text is no Python.
    """
    if len(texts) > 1:
        return [
            Unit(compile(text, f"test {number}", "exec"), _checks(ast.parse(text)))
            for number, text in enumerate(texts, 1)
        ]
    body = ast.parse(texts[0]).body
    found: list[Unit] = []
    for statement in body:
        defines = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        module = ast.Module([statement], [])
        code = compile(module, "test", "exec")
        found.append(Unit(code, not defines and _checks(statement)))
    called = {
        node.func.id
        for statement in body
        if not isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    for statement in body:
        if getattr(statement, "name", None) in called:
            continue
        if text := _call_of(statement, entry):
            found.append(Unit(compile(text, "test", "exec"), True))
    return found


def _call_of(statement: ast.stmt, entry: str) -> str:
    """What runs a definition that is a test and that nobody calls."""
    if isinstance(statement, ast.FunctionDef):
        if statement.name == "check" and entry:
            return "check(_candidate)"
        if statement.name.startswith("test") and not statement.args.args:
            return f"{statement.name}()"
    if isinstance(statement, ast.ClassDef):
        if any(ast.unparse(base).endswith("TestCase") for base in statement.bases):
            return _RUN_CASE.format(name=statement.name)
    return ""


def _checks(tree: ast.AST) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assert, ast.Raise)):
            return True
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name.startswith(("assert", "check", "test")):
                return True
    return False


def free_names(texts: Iterable[str], own: Mapping[str, Any]) -> set[str]:
    """Names that texts use and neither bind at the margin nor find among builtins."""
    used: set[str] = set()
    bound: set[str] = set()

    def look(table: symtable.SymbolTable, top: bool) -> None:
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and (top or symbol.is_global()):
                used.add(name)
            binds = symbol.is_assigned() or symbol.is_imported()
            if binds and (top or symbol.is_declared_global()):
                bound.add(name)
        for child in table.get_children():
            look(child, False)

    for text in texts:
        try:
            look(symtable.symtable(text, "tests", "exec"), True)
        except SyntaxError:
            continue  # the prompt's head, which need not be whole
    return {name for name in used - bound - own.keys() if not hasattr(builtins, name)}


def called_builtins(texts: Sequence[str]) -> set[str]:
    """Builtins that every text calls: one may be what the program is to define.

    Only to be asked for where the texts name nothing else of a program, as one that
    may put its own `set` in the place of the real one can make anything equal.
    """
    called = [
        {
            node.func.id
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        for text in texts
    ]
    return {name for name in set.intersection(*called) if hasattr(builtins, name)}


def solution_names(texts: Iterable[str]) -> set[str]:
    """What texts take from the module `solution`, which stands for the program."""
    found: set[str] = set()
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.update([node.attr] if node.value.id == "solution" else [])
    return found - {"*"}


def helpers(head: str, entry: str) -> list[types.CodeType]:
    """What a prompt brings along, which the tests take from there: imports, values, and
    functions that have a body.

    Not the function that is asked for, nor any other that the prompt leaves open, nor
    classes, whose objects must live with the program.
    """
    try:
        body = ast.parse(head).body
    except (SyntaxError, ValueError):
        return []
    return [
        compile(ast.Module([statement], []), "prompt", "exec")
        for statement in body
        if isinstance(statement, (ast.Import, ast.ImportFrom, ast.Assign))
        or (
            isinstance(statement, ast.FunctionDef)
            and statement.name != entry
            and not all(map(_is_open, statement.body))
        )
    ]


def _is_open(statement: ast.stmt) -> bool:
    """A docstring, `...`, `pass`, or the raising of NotImplementedError."""
    return (
        isinstance(statement, ast.Pass)
        or (
            isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
        )
        or (isinstance(statement, ast.Raise) and "NotImpl" in ast.unparse(statement))
    )
