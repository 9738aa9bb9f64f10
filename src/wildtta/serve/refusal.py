"""A request that is not answered, and why: a status, a sentence that says what to do, and when to come again."""

from __future__ import annotations


class Refusal(Exception):
    """Ends a request with an HTTP status and a sentence."""

    def __init__(self, status: int, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after
        """Seconds after which the same request, with the same id, is worth another try."""

    def __reduce__(self) -> tuple[object, ...]:
        return _refusal, (self.status, self.text, self.retry_after)


def _refusal(status: int, text: str, retry_after: float | None) -> Refusal:
    return Refusal(status, text, retry_after=retry_after)
