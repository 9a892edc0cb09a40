"""Use case: forget that a client joined sets. No count moves, so no answer changes, and no noise meets other joins.

In the states, and in joins that are not evaluated yet, the token of the client becomes a random one that no other
member of the set has. It stays until the client's join would have left the window. Nothing links it to anybody.
Joins of evaluated steps are deleted, and so are all earlier manifests: recovery never starts before a client was
forgotten.
"""

import secrets
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.gate.mechanism.columns import Ints
from kanon.gate.mechanism.tape import following
from kanon.gate.names import ClientKind, client_token, set_key
from kanon.gate.parts import Part
from kanon.gate.storage.disk.log import DiskLog, entry_of
from kanon.gate.storage.protocols import Manifest
from kanon.serving.directory import Directory, finish_forgetting

KINDS: tuple[ClientKind, ...] = ("client", "short")


class _Place(NamedTuple):
    """A token in a set: the key of the set, the token, its length in bits, and the number of the type."""

    key: bytes
    token: int
    bits: int
    number: int

    def entry(self, token: int) -> bytes:
        return entry_of(self.key, token, self.number)


@dataclass
class _Open:
    """A part, and its tokens as they become."""

    part: Part
    tokens: Ints

    def members(self, key: bytes) -> Ints:
        """The tokens of a set, as a view."""
        rows = np.flatnonzero(self.part.keys == np.bytes_(key))  # as arrays: a scalar lacks the zero bytes at its end
        if not len(rows):
            return self.tokens[:0]
        row = int(rows[0])
        start = int(self.part.sizes[:row].sum())
        return self.tokens[start : start + int(self.part.sizes[row])]


def forget(directory: Directory, client: str, sets: Iterable[bytes]) -> int:
    """Forget a client in these sets, of every type. Returns the number of tokens that were found.

    Args:
        directory: the deployment, which no other process has open.
        client: the client as it joined.
        sets: the ids of the sets.

    Raises:
        UndecodableMembersError: a part is missing or damaged.
        LeaseLostError: another process has continued this deployment.
    """
    control, parts, run = directory.control, directory.parts, directory.segments.run
    manifest = control.manifest() or Manifest(directory.evaluated_through)
    firsts = [bytes.fromhex(piece.first) for piece in manifest.pieces]
    opened: dict[int, _Open] = {}
    replaced: dict[bytes, bytes] = {}
    for place in _places(directory, client, sets):
        at = bisect_right(firsts, place.key) - 1
        if at >= 0 and at not in opened:
            part = parts.read(manifest.pieces[at])
            opened[at] = _Open(part, part.tokens.copy())
        members = opened[at].members(place.key) if at >= 0 else _NOBODY
        joined = _joined(directory.log, manifest.step, place.key)
        if place.token in members or place.token in joined:
            new = _another(place.bits, {*members.tolist(), *joined.tolist()})
            members[members == place.token] = new
            replaced[place.entry(place.token)] = place.entry(new)
    pieces = list(manifest.pieces)
    for at, each in opened.items():
        pieces[at] = parts.put(replace(each.part, tokens=each.tokens), manifest.step, run, pieces[at].first)
    parts.sync()
    control.restate(run, Manifest(manifest.step, tuple(pieces)), replaced)
    finish_forgetting(control, directory.log)
    parts.sweep({piece.name for piece in pieces}, run)
    directory.log.forget_before(manifest.step + 1)
    return len(replaced)


_NOBODY = np.zeros(0, np.int64)


def _places(directory: Directory, client: str, sets: Iterable[bytes]) -> Iterator[_Place]:
    """Where the client's tokens would be."""
    names = directory.names
    seen: set[tuple[bytes, int]] = set()
    for set_id in sets:
        for name, type_ in names.types.items():
            key, bits = set_key(names.pepper, name, set_id), type_.parameters.client_bits
            for kind in KINDS:
                token = client_token(names.client_key, key, kind, client.encode(), bits)
                if (key, token) not in seen:
                    seen.add((key, token))
                    yield _Place(key, token, bits, names.numbers[name])


def _joined(log: DiskLog, mark: int, key: bytes) -> NDArray[np.uint32]:
    """The tokens that joined a set after the mark."""
    found = [log.joins(step, key, following(key))["token"] for step in log.steps() if step > mark]
    return np.concatenate(found) if found else np.zeros(0, np.uint32)


def _another(bits: int, taken: "set[int]") -> int:
    """A random token that nobody has in the set."""
    while (token := secrets.randbits(bits)) in taken:
        pass
    return token
