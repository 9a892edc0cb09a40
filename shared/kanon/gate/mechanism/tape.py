"""The noise tape: the noise of a set and search is a keyed function, not a random stream.

On the paper's grid the tape is ``SHAKE-256(prefix, set key, instance)`` as 64-bit words. Word 0 gives the threshold
noise mu, word ``1 + i`` the query noise nu of the ``i``-th step of the instance. With restart after the crossing a
search may be much longer than a window, so its tape has pages: ``SHAKE-256(prefix, set key, first step of the search,
page)``. Word 0 of page 0 gives mu; word ``1 + i`` of page ``n`` gives nu of the step ``n * window + i`` of the search.

A retry, a worker after a crash and a second worker draw the same noise. The prefix names deployment, type, parameters
and log generation, because two different questions or two different logs must never share noise.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from struct import Struct

from kanon.gate.mechanism.parameters import Parameters
from kanon.noise.words import WORD_BYTES, NoiseKey, length_prefixed

SET_KEY_BYTES = 32
_PLACE = Struct(f">q{SET_KEY_BYTES}sqq")
"""``length_prefixed(set key, instance)`` in one call, for speed: a million sets need it two million times."""
_PAGE = Struct(f">q{SET_KEY_BYTES}sqqqq")
"""``length_prefixed(set key, first step, page)`` in one call."""


def check_set_key(set_key: bytes) -> None:
    """Check the length of a set key. A key of one byte would name a slot's horizon.

    Raises:
        ValueError: the length is not 32 bytes.
    """
    if len(set_key) != SET_KEY_BYTES:
        raise ValueError(f"a set key is {SET_KEY_BYTES} bytes, not {len(set_key)}")


def following(set_key: bytes) -> bytes | None:
    """The next set key; None after the last one."""
    number = int.from_bytes(set_key, "big") + 1
    return number.to_bytes(SET_KEY_BYTES, "big") if number < 1 << 8 * SET_KEY_BYTES else None


@dataclass(frozen=True)
class LogGeneration:
    """A log that replaced another one. All noise of its steps is new.

    Attributes:
        log: the id of the StepLog table.
        from_step: the first step evaluated on it. It distinguishes two generations with the same log.
    """

    log: str
    from_step: int


@dataclass(frozen=True)
class Tapes:
    """The tapes of one type in one deployment under one key, on the first log (None) or on a later generation."""

    key: NoiseKey
    deployment: str
    type_name: str
    parameters: Parameters
    generation: LogGeneration | None = field(default=None, kw_only=True)

    @cached_property
    def _prefix(self) -> "hashlib._Hash":
        name = (
            self.key.secret,
            self.key.id.encode(),
            self.deployment.encode(),
            self.type_name.encode(),
            self.parameters.fingerprint,
        )
        first, later = (b"1", b"2") if self.parameters.restart is None else (b"3", b"4")
        if self.generation is None:
            return hashlib.shake_256(length_prefixed(b"kanon/tape/" + first, *name))
        log, from_step = self.generation.log.encode(), self.generation.from_step.to_bytes(8, "big", signed=True)
        return hashlib.shake_256(length_prefixed(b"kanon/tape/" + later, *name, log, from_step))

    def words(self, set_key: bytes, place: int, count: int, page: int = 0) -> bytes:
        """The first ``count`` words of a page of a search's tape, ``8 * count`` bytes. A grid has only page 0."""
        check_set_key(set_key)
        shake = self._prefix.copy()
        if self.parameters.restart is None:
            shake.update(_PLACE.pack(SET_KEY_BYTES, set_key, 8, place))
        else:
            shake.update(_PAGE.pack(SET_KEY_BYTES, set_key, 8, place, 8, page))
        return shake.digest(WORD_BYTES * count)  # type: ignore[call-arg]

    def query_words(self, set_key: bytes, place: int, begin: int, end: int) -> bytes:
        """The words of the query noise at the steps ``begin`` to ``end - 1`` of a search, counted from 0."""
        size = self.parameters.window
        if end <= size:
            return self.words(set_key, place, 1 + end)[WORD_BYTES * (1 + begin) :]
        parts = []
        for page in range(begin // size, -(-end // size)):
            first, stop = max(begin - page * size, 0), min(end - page * size, size)
            parts.append(self.words(set_key, place, 1 + stop, page)[WORD_BYTES * (1 + first) :])
        return b"".join(parts)


@dataclass(frozen=True)
class Noise:
    """The noise of one set in one search; ``place`` is that of :class:`searches.Search`."""

    tapes: Tapes
    set_key: bytes
    place: int

    @cached_property
    def mu(self) -> int:
        """The threshold noise, the same during the whole search."""
        return self.tapes.parameters.threshold_law.draw(_word(self.tapes.words(self.set_key, self.place, 1), 0))

    @cached_property
    def _pages(self) -> dict[int, bytes]:
        return {}

    def nu(self, i: int) -> int:
        """The query noise of step ``i`` of the search, counted from 0."""
        page, at = divmod(i, self.tapes.parameters.window)
        if page not in self._pages:
            self._pages[page] = self.tapes.words(self.set_key, self.place, 1 + self.tapes.parameters.window, page)
        return self.tapes.parameters.query_law.draw(_word(self._pages[page], 1 + at))


def _word(tape: bytes, i: int) -> int:
    return int.from_bytes(tape[WORD_BYTES * i : WORD_BYTES * (i + 1)], "big")
