"""The start of a function: the first request that needs its secrets and checks runs them."""

from collections.abc import Callable
from typing import Generic, TypeVar

from kanon import clock
from kanon.errors import ConfigurationError, FingerprintMismatchError

T = TypeVar("T")

SECONDS_REFUSED = 60.0


class Once(Generic[T]):
    """A value that the first call makes and later calls reuse.

    A configuration error is also reused, for a minute. Otherwise each request to a misconfigured function would read
    the secrets and write to Control again. After any other error, the next call tries again.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._made: list[T] = []
        self._refusal: ConfigurationError | FingerprintMismatchError | None = None
        self._refused_until = 0.0

    def __call__(self) -> T:
        """The value.

        Raises:
            ConfigurationError, FingerprintMismatchError: as ``make`` raised it, up to a minute ago.
        """
        if self._made:
            return self._made[0]
        if self._refusal is not None and clock.now() < self._refused_until:
            raise self._refusal.with_traceback(None)
        try:
            self._made.append(self._make())
        except (ConfigurationError, FingerprintMismatchError) as refusal:
            self._refusal, self._refused_until = refusal, clock.now() + SECONDS_REFUSED
            raise
        return self._made[0]
