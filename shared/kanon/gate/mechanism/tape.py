"""The noise tape: the noise of a set and instance is a keyed function, not a random stream.

The tape is ``SHAKE-256(prefix, set key, instance)`` as 64-bit words. Word 0 gives the threshold noise mu, word
``1 + i`` the query noise nu of the ``i``-th step of the instance. A retry, a worker after a crash and a second
worker draw the same noise. The prefix names deployment, type, parameters and log generation, because two different
questions or two different logs must never share noise.
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


def check_set_key(set_key: bytes) -> None:
    """Check the length of a set key. A key of one byte would name a slot's horizon.

    Raises:
        ValueError: the length is not 32 bytes.
    """
    if len(set_key) != SET_KEY_BYTES:
        raise ValueError(f"a set key is {SET_KEY_BYTES} bytes, not {len(set_key)}")


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
        if self.generation is None:
            return hashlib.shake_256(length_prefixed(b"kanon/tape/1", *name))
        log, from_step = self.generation.log.encode(), self.generation.from_step.to_bytes(8, "big", signed=True)
        return hashlib.shake_256(length_prefixed(b"kanon/tape/2", *name, log, from_step))

    def words(self, set_key: bytes, instance: int, count: int) -> bytes:
        """The first ``count`` words of the tape, ``8 * count`` bytes."""
        check_set_key(set_key)
        shake = self._prefix.copy()
        shake.update(_PLACE.pack(SET_KEY_BYTES, set_key, 8, instance))
        return shake.digest(WORD_BYTES * count)  # type: ignore[call-arg]


@dataclass(frozen=True)
class Noise:
    """The noise of one set in one instance."""

    tapes: Tapes
    set_key: bytes
    instance: int

    @cached_property
    def mu(self) -> int:
        """The threshold noise, the same during the whole instance."""
        return self.tapes.parameters.threshold_law.draw(_word(self.tapes.words(self.set_key, self.instance, 1), 0))

    @cached_property
    def _words(self) -> bytes:
        return self.tapes.words(self.set_key, self.instance, 1 + self.tapes.parameters.window)

    def nu(self, i: int) -> int:
        """The query noise of step ``i`` of the instance, ``0 <= i < window``."""
        return self.tapes.parameters.query_law.draw(_word(self._words, 1 + i))


def _word(tape: bytes, i: int) -> int:
    return int.from_bytes(tape[WORD_BYTES * i : WORD_BYTES * (i + 1)], "big")
