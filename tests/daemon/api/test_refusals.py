"""Every refusal of a resource says what its limit is: programs read ``detail.limit``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
STATUSES = (422, 429)
MAKERS = ("ApiError", "OwnerRefused")
OF_NO_RESOURCE = ("idempotency_key_reused",)


def refusals() -> Iterator[tuple[str, ast.Call, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Each place that makes a refusal with one of the statuses, and the function it is in."""
    for folder in ("daemon", "delivery"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if not any(str(status) in text for status in STATUSES):
                continue
            for function in ast.walk(ast.parse(text)):
                if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                    for call in ast.walk(function):
                        if isinstance(call, ast.Call) and _refuses(call):
                            yield f"{path.relative_to(ROOT)}:{call.lineno}", call, function


def _refuses(call: ast.Call) -> bool:
    made = call.func
    name = made.id if isinstance(made, ast.Name) else getattr(made, "attr", "")
    status = call.args[0] if call.args else None
    is_status = isinstance(status, ast.Constant) and status.value in STATUSES
    code = call.args[1] if len(call.args) > 1 else None
    is_exempt = isinstance(code, ast.Constant) and code.value in OF_NO_RESOURCE
    return is_status and name in (*MAKERS, "__init__") and not is_exempt


def _detail(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Dict | None:
    """The values that it carries, also if they were made in a variable first."""
    detail = call.args[3] if len(call.args) > 3 else None
    if isinstance(detail, ast.Name):
        made = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == detail.id for t in node.targets)
        ]
        detail = made[-1] if made else None
    return detail if isinstance(detail, ast.Dict) else None


def test_every_429_and_422_carries_its_limit() -> None:
    found = list(refusals())
    for place, call, function in found:
        detail = _detail(call, function)
        assert detail is not None, f"{place}: a refusal without detail"
        keys = [key.value for key in detail.keys if isinstance(key, ast.Constant)]
        assert "limit" in keys, f"{place}: detail has {keys}"
    codes = {call.args[1].value for _, call, _ in found if isinstance(call.args[1], ast.Constant)}
    assert codes == {
        "throttled", "too_many_plans", "topic_full", "partitions_full", "too_many_consumers",
        "too_many_filters", "too_many_resent", "push_limited", "over_limit",
    }  # fmt: skip
