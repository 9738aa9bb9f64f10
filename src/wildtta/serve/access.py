"""Who may ask: names of tenants, and tokens where the service was given some."""

from __future__ import annotations

import hmac
import json
import re
import stat
import warnings
from collections.abc import Mapping
from pathlib import Path

from wildtta.serve.refusal import Refusal

EVERYBODY = "*"
"""In a file of tokens: the one that opens every tenant, the page and the metrics."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORTEST_TOKEN = 16


def tenant_name(given: str) -> str:
    """The name, or a refusal: a tenant's name is also a file's name and a label of the metrics."""
    if not _NAME.fullmatch(given):
        shown = given[:64].encode("ascii", "backslashreplace").decode()
        raise Refusal(
            400,
            f"the tenant is {shown!r}; expected 1 to 64 letters, digits, dots, underscores or hyphens, "
            "beginning with a letter or digit",
        )
    return given


class Tokens:
    """Tokens by tenant. Without any, everybody may do everything."""

    def __init__(self, tokens: Mapping[str, str] | None = None) -> None:
        self._tokens = None if tokens is None else {name: token.encode() for name, token in tokens.items()}

    def check(self, tenant: str | None, authorization: str | None) -> None:
        """Refuse a caller that may not act for a tenant (None: for the whole service)."""
        if self._tokens is None:
            return
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not given:
            raise Refusal(401, "this service asks for a token: send the header 'Authorization: Bearer TOKEN'")
        allowed = [EVERYBODY] if tenant is None else [EVERYBODY, tenant]
        # Every comparison is made, so that the time of an answer tells nothing about the tokens.
        matches = [hmac.compare_digest(self._tokens.get(name, b""), given.strip().encode()) for name in allowed]
        if not any(match and name in self._tokens for name, match in zip(allowed, matches, strict=True)):
            whose = "the whole service" if tenant is None else f"the tenant {tenant!r}"
            raise Refusal(403, f"this token does not open {whose}")


def read_tokens(path: Path) -> dict[str, str]:
    """Tokens from a JSON file: ``{"camera-1": "token …", "*": "token of the administrator …"}``."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"cannot read the tokens in {path} ({error}); expected a JSON object of tenants and tokens"
        ) from error
    if not isinstance(found, dict) or not found or not all(isinstance(token, str) for token in found.values()):
        raise ValueError(f'{path}: expected a JSON object such as {{"camera-1": "token", "*": "token"}}')
    for name, token in found.items():
        if name != EVERYBODY and not _NAME.fullmatch(name):
            raise ValueError(f"{path}: {name!r} is no name of a tenant (letters, digits, dots, underscores, hyphens)")
        if len(token) < _SHORTEST_TOKEN or not token.isascii() or token.split() != [token]:
            raise ValueError(
                f"{path}: the token of {name!r} should have at least {_SHORTEST_TOKEN} ASCII characters and no spaces; "
                "make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
            )
    if path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        warnings.warn(f"{path} can be read by other users; close it with: chmod 600 {path}", stacklevel=2)
    return found
