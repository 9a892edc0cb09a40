"""The tree of errors, and those that a well-formed request can meet: their messages name no set and no client."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

MOST_NAME = 64
"""Characters of an unknown name that is compared with the known ones: the time of a comparison grows with them."""


class Error(Exception):
    """Base of every error of this package. Its message says what to change."""


class KanonError(Error):
    """Base of the errors of the service that its logs may hold: the message names no value."""


class ConfigurationError(KanonError):
    """The environment or the type document is invalid; the function refuses to start."""


class FingerprintMismatchError(KanonError):
    """An immutable value has changed, such as a type's parameters, a key or the number of slots."""


class ThrottledError(KanonError):
    """A table left requests unprocessed after all retries. Do not assume that any of them succeeded."""


class OutOfTimeError(KanonError):
    """A worker must stop, and the next one continues."""


class StaleError(KanonError):
    """No step has become visible for longer than the answers may be used."""


class UndecodableMembersError(KanonError):
    """States cannot be read. Their slot stops, because going on would lose members."""


class UndecodableJoinsError(KanonError):
    """A packed item of the log cannot be decoded. Its slot stops, because going on would lose joins."""


class TooFarBehindError(KanonError):
    """The log rows of the next step may have expired; an operator must move the mark."""


class LeaseLostError(KanonError):
    """Another worker moved this slot's mark; this worker must stop."""


class UnreadableMessageError(KanonError):
    """A queue message is invalid.

    Args:
        problems: the invalid fields and why, never their values.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def reason(problem: Mapping[str, Any]) -> str:
    """The text of one problem in ``pydantic.ValidationError.errors()``, without pydantic's prefix."""
    return str(problem["msg"]).removeprefix("Value error, ")


def meant(name: str, names: Iterable[str]) -> str:
    """The known name that is nearest to an unknown one, as a part of a message; empty if none is near."""
    import difflib  # only for an error

    near = difflib.get_close_matches(name, names, 1) if len(name) <= MOST_NAME else []
    return f" (did you mean {near[0]}?)" if near else ""


class UnforeseenError(Error):
    """An error that nobody foresaw: its type and place. Its text is withheld, because it may hold anything."""


@contextmanager
def texts_withheld() -> Iterator[None]:
    """Raise an unforeseen error again without its text. Lambda logs the text of an error that leaves a handler.

    Raises:
        KanonError: as it is.
        UnforeseenError: any other error.
    """
    try:
        yield
    except KanonError:
        raise
    except Exception as error:  # noqa: BLE001, raised again
        found = kind_and_place(error)
        raise UnforeseenError(f"{found['kind']} in {found['place'].replace(':', ' line ')}") from None


def kind_and_place(error: BaseException) -> dict[str, Any]:
    """The type of an error, and the function and the line that raised it; no value."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "unknown" if trace is None else f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
    return {"kind": type(error).__name__, "place": place}
