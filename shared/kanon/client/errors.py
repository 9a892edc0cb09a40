"""The errors of a call. Every message says what happened and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from kanon.errors import Error


class ApiError(Error, RuntimeError):
    """A call to the service failed."""


class NoAnswerError(ApiError):
    """Nobody answered: the connection failed or the time ran out. Repeating the call is safe."""


class UnexpectedAnswerError(ApiError):
    """The answer does not have the form of this API: the address is probably not that of the service."""


class KeysDifferError(ApiError):
    """Relay and service show two keys, so the service could recognise the client by its own. Nothing was sent."""

    def __init__(self) -> None:
        super().__init__(
            "the key of the service differs between the relay and the service itself, so it could single out this"
            " client: nothing was sent. Keys change on Monday at 00:00 UTC; at any other time tell the relay's operator"
        )


class KeyChangedError(ApiError):
    """The service's key changed while a join waited. Nothing was joined.

    The client asks for the new one before its next join waits: the service would see its address beside this join.
    """

    def __init__(self) -> None:
        super().__init__("the key of the service changed while a join waited, so nothing was joined: join again")


class UnknownTypeError(ApiError):
    """The service has no type of this name.

    Attributes:
        name: the unknown name.
    """

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, names)) or 'none'}"
        super().__init__(f"the service has no type {name!r}: {hint}")
        self.name = name


class RefusedError(ApiError):
    """The service, or the gateway in front of it, refused a call or one join of a batch.

    Attributes:
        code: the HTTP status, for example 400.
        status: its name, for example ``INVALID_ARGUMENT``; ``None`` if the gateway itself refused.
        message: the text from the service.
        retry_after: seconds to wait before the call is repeated; ``None`` if the service does not say.
    """

    def __init__(self, call: str, code: int, status: str | None, message: str, retry_after: int | None) -> None:
        wait = "" if retry_after is None else f"; repeat the call after {retry_after} s"
        super().__init__(f"{call}: {code}{(status and ' ' + status) or ''}: {message}{wait}")
        self.code = code
        self.status = status
        self.message = message
        self.retry_after = retry_after


class PartlyRefusedError(ApiError):
    """Some joins of a batch were refused, the others were accepted.

    Attributes:
        refused: the error of every refused join, by its position in the batch.
    """

    def __init__(self, refused: Mapping[int, RefusedError], sent: int) -> None:
        position, first = next(iter(refused.items()))
        super().__init__(f"{len(refused)} of {sent} joins were refused, first number {position}: {first}")
        self.refused = dict(refused)
