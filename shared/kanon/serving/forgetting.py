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

from kanon.errors import ConfigurationError
from kanon.gate.forgetting import Replacements, Tag, Token, members, tokens_of, tokens_of_tags, with_tokens
from kanon.gate.mechanism.tape import following
from kanon.gate.parts import Part
from kanon.gate.storage.disk.log import DiskLog, entry_of
from kanon.gate.storage.protocols import Manifest
from kanon.serving.directory import Directory, finish_forgetting, refuse_listed


def forget(directory: Directory, client: str, sets: Iterable[bytes]) -> int:
    """Forget a client in these sets, of every type without credentials. Returns the number of tokens that were found.

    Args:
        directory: the deployment, which no other process has open.
        client: the client as it joined.
        sets: the ids of the sets.

    Raises:
        ConfigurationError: a type is listed, or all need credentials.
        UndecodableMembersError: a part is missing or damaged.
        LeaseLostError: another process has continued this deployment.
    """
    refuse_listed(type_ for type_ in directory.types.values() if not type_.credential)
    if all(type_.credential for type_ in directory.types.values()):
        raise ConfigurationError(
            "all types need credentials, so no client has a name: who has joined can compute what `kanon operate"
            " forget-tags` forgets"
        )
    joining = directory.joining
    return _forget(directory, tokens_of(directory.types, joining.pepper, joining.client_key, client, sets))


def forget_tags(directory: Directory, tags: Iterable[Tag]) -> int:
    """Forget what people showed in sets of types that need credentials. Otherwise the same.

    Raises:
        ConfigurationError: a tag is of another type.
    """
    joining, tags = directory.joining, list(tags)
    needing = {type_.name for type_ in directory.types.values() if type_.credential}
    if other := {each.type_name for each in tags} - needing:
        known = ", ".join(sorted(needing)) or "none"
        raise ConfigurationError(f"{min(other)!r} is no type that needs credentials: there is {known}")
    return _forget(directory, tokens_of_tags(directory.types, joining.pepper, joining.client_key, tags))


def _forget(directory: Directory, of: Iterable[tuple[str, Token]]) -> int:
    """Put other tokens in the place of these. Returns the number of those that were found."""
    control, parts, run = directory.control, directory.parts, directory.segments.run
    types, type_numbers = directory.types, directory.segments.numbers
    manifest = control.manifest() or Manifest(directory.evaluated_through)
    firsts = [bytes.fromhex(piece.first) for piece in manifest.pieces]
    tokens = list(of)
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
            found.add(token, types[name].parameters.client_bits, joined)
            numbers[token] = type_numbers[name]
    pieces = list(manifest.pieces)
    for at, part in opened.items():
        pieces[at] = parts.put(with_tokens(part, found.new)[0], manifest.step, run, pieces[at].first)
    parts.sync()
    replaced = {
        entry_of(token.key, token.token, number): entry_of(token.key, found.new[token], number)
        for token, number in numbers.items()
    }
    control.restate(run, [Manifest(manifest.step, tuple(pieces))], replaced)
    finish_forgetting(control, directory.log)
    parts.sweep({piece.name for piece in pieces}, run)
    directory.log.forget_before(manifest.step + 1)
    return len(replaced)


def _joined(log: DiskLog, mark: int, key: bytes) -> NDArray[np.uint32]:
    """The tokens that joined a set after the mark."""
    found = [log.joins(step, key, following(key))["token"] for step in log.steps() if step > mark]
    return np.concatenate(found) if found else np.zeros(0, np.uint32)
