"""What a script's syntax tree tells without running it."""

from __future__ import annotations

import ast

__all__ = ["OF_SHELL", "is_conditional", "is_started", "literals", "name_of", "parents_of"]

OF_SHELL = r"[$`*?]"
"""Characters by which a shell replaces a word, maybe by several."""


def parents_of(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    """Return the node above each node."""
    return {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}


def name_of(node: ast.AST) -> str | None:
    """Return the last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def literals(call: ast.Call, skipped: frozenset[str]) -> dict[str, object]:
    """Return a call's keywords, without those to skip.

    Raises:
        ValueError: one of them is not a literal.
    """
    return {
        keyword.arg or "": ast.literal_eval(keyword.value)
        for keyword in call.keywords
        if keyword.arg not in skipped
    }


def is_conditional(node: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a node may not run; ``if __name__ == "__main__"`` counts as run."""
    doubtful = (ast.For, ast.While, ast.Try, ast.Match, ast.Lambda, ast.IfExp, ast.BoolOp, ast.comprehension)
    while node in above:
        node = above[node]
        if isinstance(node, ast.If) and "__name__" not in ast.dump(node.test):
            return True
        if isinstance(node, (*doubtful, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            return True
    return False


def is_started(name: str, tree: ast.AST, above: dict[ast.AST, ast.AST]) -> bool:
    """Return whether a script itself calls its function, once, always and without arguments."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    calls = [node for use in uses if isinstance(node := above[use], ast.Call) and node.func is use]
    if len(calls) != 1 or calls[0].args or {one.arg for one in calls[0].keywords} - {"obj", "prog_name"}:
        return False
    outer: ast.AST = calls[0]
    while outer in above and not isinstance(outer, (ast.FunctionDef, ast.ClassDef)):
        outer = above[outer]
    rebound = any(not isinstance(use.ctx, ast.Load) for use in uses)
    return isinstance(outer, ast.Module) and not rebound and not is_conditional(calls[0], above)
