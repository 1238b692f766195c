"""The page at ``/``: one document with its style and script in it, and nothing else loaded.

A browser runs the script and applies the style because their hashes are in the policy, and nothing
else that might get into the page. The page asks the daemon that it came from for its figures
(``/v0/status/watch``), and shows them as text.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path


def _part(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _source(text: str) -> str:
    """The text of an element as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _part("page.css"), _part("page.js")

CONTENT_TYPE = "text/html; charset=utf-8"
BODY = _part("page.html").replace("{{style}}", _STYLE).replace("{{script}}", _SCRIPT).encode()
HEADERS = (
    (
        "Content-Security-Policy",
        (
            f"default-src 'none'; script-src {_source(_SCRIPT)}; style-src {_source(_STYLE)};"
            " img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none';"
            " frame-ancestors 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),  # it is that of the version that answers
)
