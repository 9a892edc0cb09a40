"""A function's start runs once; a configuration error is kept for a minute."""

from collections.abc import Callable

import pytest

from kanon import clock
from kanon.errors import ConfigurationError, FingerprintMismatchError, ThrottledError
from kanon.starting import Once


class Start:
    """A start that raises ``errors`` one after the other, then succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return 7


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda now: monkeypatch.setattr(clock, "now", lambda: now)


def test_a_value_is_made_once() -> None:
    start = Start()
    once = Once(start)
    assert [once(), once(), start.calls] == [7, 7, 1]


@pytest.mark.parametrize("refusal", [ConfigurationError("wrong"), FingerprintMismatchError("changed")])
def test_a_refused_start_is_not_repeated_for_a_minute(refusal: Exception, at: Callable[[float], None]) -> None:
    start = Start(refusal)
    once = Once(start)
    for now in (0.0, 1.0, 59.9):
        at(now)
        with pytest.raises(type(refusal), match=str(refusal)):
            once()
    assert start.calls == 1
    at(60.0)
    assert once() == 7


@pytest.mark.parametrize("error", [ThrottledError("busy"), ConnectionError("lost")])
def test_any_other_error_is_not_cached(error: Exception, at: Callable[[float], None]) -> None:
    once = Once(Start(error))
    at(0.0)
    with pytest.raises(type(error)):
        once()
    assert once() == 7
