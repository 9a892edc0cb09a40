"""Use case: forget that a client joined sets. No count moves, so no answer changes, and no noise meets other joins.

In the states, and in joins that are not evaluated yet, the token of the client becomes a random one that no other
member of the set has. It stays until the client's join would have left the window. Nothing links it to anybody.
Joins of evaluated steps are deleted, and so are all earlier manifests: recovery never starts before a client was
forgotten.
"""

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kanon.gate.forgetting import Replacements, Token, members, tokens_of, with_tokens
from kanon.gate.mechanism.tape import following
from kanon.gate.parts import Part
from kanon.gate.storage.disk.log import DiskLog, entry_of
from kanon.gate.storage.protocols import Manifest
from kanon.serving.directory import Directory, finish_forgetting


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
    control, parts, run, names = directory.control, directory.parts, directory.segments.run, directory.names
    manifest = control.manifest() or Manifest(directory.evaluated_through)
    firsts = [bytes.fromhex(piece.first) for piece in manifest.pieces]
    tokens = list(tokens_of(names.types, names.pepper, names.client_key, client, sets))
    found, numbers = Replacements(token for _, token in tokens), dict[Token, int]()
    opened: dict[int, Part] = {}
    for name, token in tokens:
        at = bisect_right(firsts, token.key) - 1
        if at >= 0 and at not in opened:
            opened[at] = parts.read(manifest.pieces[at])
        joined = {*_joined(directory.log, manifest.step, token.key).tolist()}
        if at >= 0:
            joined.update(members(opened[at], token.key).tolist())
        if token.token in joined:
            found.add(token, names.types[name].parameters.client_bits, joined)
            numbers[token] = names.numbers[name]
    pieces = list(manifest.pieces)
    for at, part in opened.items():
        pieces[at] = parts.put(with_tokens(part, found.new)[0], manifest.step, run, pieces[at].first)
    parts.sync()
    replaced = {
        entry_of(token.key, token.token, number): entry_of(token.key, found.new[token], number)
        for token, number in numbers.items()
    }
    control.restate(run, Manifest(manifest.step, tuple(pieces)), replaced)
    finish_forgetting(control, directory.log)
    parts.sweep({piece.name for piece in pieces}, run)
    directory.log.forget_before(manifest.step + 1)
    return len(replaced)


def _joined(log: DiskLog, mark: int, key: bytes) -> NDArray[np.uint32]:
    """The tokens that joined a set after the mark."""
    found = [log.joins(step, key, following(key))["token"] for step in log.steps() if step > mark]
    return np.concatenate(found) if found else np.zeros(0, np.uint32)
