"""What a receiver says, without the secrets that it was sent.

The beginning of an answer is shown to operators, logged, and kept as the reason of a dead letter,
which is a record and goes to the store. A receiver may repeat what it got: some show the request
they refuse. So whatever was secret in a request is replaced in its answer, also in the forms that
it has in JSON, HTML and URLs, and where the answer was cut in the middle of it.

A receiver that encodes what it repeats in another way cannot be helped.
"""

from __future__ import annotations

import html
import json
from base64 import b64decode
from collections.abc import Iterator
from urllib.parse import quote

from msgspec.structs import replace

from delivery.push.posts.answers import PushAnswer
from delivery.push.secrets import PushSecrets
from delivery.push.signatures import PREFIX

HIDDEN = "(hidden)"
# What is shorter protects nothing, and stands in texts by chance.
SECRET_CHARACTERS_MIN = 4


class Hiding:
    """What is hidden of one subscription: usually 1 KB, at most 20."""

    def __init__(self, secrets: PushSecrets | None) -> None:
        self._forms = [] if secrets is None else _forms(secrets)
        # As they are in bytes that are taken for characters.
        self._as_bytes = [
            form if form.isascii() else form.encode().decode("latin-1") for form in self._forms
        ]

    def shown(self, answer: PushAnswer) -> PushAnswer:
        """An answer as it may be shown."""
        if not self._forms:
            return answer
        return replace(
            answer,
            message=_hidden(answer.message, self._forms),
            head=_hidden(answer.head.decode("latin-1"), self._as_bytes).encode("latin-1"),
            headers=tuple((name, _hidden(value, self._forms)) for name, value in answer.headers),
        )


def _hidden(text: str, forms: list[str]) -> str:
    for form in forms:
        if form in text:
            text = text.replace(form, HIDDEN)
    for form in forms if text else ():
        begin = text.find(form[:SECRET_CHARACTERS_MIN], max(0, len(text) - len(form)))
        while begin >= 0:
            if form.startswith(text[begin:]):
                return text[:begin] + HIDDEN
            begin = text.find(form[:SECRET_CHARACTERS_MIN], begin + 1)
    return text


def _forms(secrets: PushSecrets) -> list[str]:
    """All that is to be hidden, the longest first, so that none is left in a part of another."""
    found = set()
    for part in _parts(secrets):
        if len(part) >= SECRET_CHARACTERS_MIN:
            found |= {part, json.dumps(part)[1:-1], html.escape(part), quote(part, safe="")}
    return sorted(found, key=len, reverse=True)


def _parts(secrets: PushSecrets) -> Iterator[str]:
    for secret in secrets.signing:
        yield secret
        yield secret.removeprefix(PREFIX)
    for value in secrets.headers.values():
        yield value
        scheme, _, rest = value.partition(" ")
        if not rest:
            continue
        yield rest
        if scheme.lower() == "basic":
            try:
                told = b64decode(rest, validate=True).decode()
            except ValueError:
                continue
            yield told
            yield told.partition(":")[2]
