"""Where a client's tokens would be, and other tokens in their place.

The token of a client becomes a random one that no other member of the set has. So no count moves, and no answer
changes. It stays until the client's join would have left the window. Nothing links it to anybody.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kanon.gate.names import ClientKind, client_token, set_key
from kanon.gate.parts import Part
from kanon.gate.types import Type
from kanon.keys import Secret

KINDS: tuple[ClientKind, ...] = ("client", "short")


class Token(NamedTuple):
    """A token in a set, by the key of the set."""

    key: bytes
    token: int


def tokens_of(
    types: Mapping[str, Type], pepper: Secret, client_key: Secret, client: str, sets: Iterable[bytes]
) -> Iterator[tuple[str, Token]]:
    """The tokens that a client would have in these sets, each once, with the name of the type.

    No client has a name in a type that needs credentials.
    """
    seen = set[Token]()
    for set_id in sets:
        for name, type_ in types.items():
            if type_.credential:
                continue
            key, bits = set_key(pepper, name, set_id), type_.parameters.client_bits
            for kind in KINDS:
                found = Token(key, client_token(client_key, key, kind, client.encode(), bits))
                if found not in seen:
                    seen.add(found)
                    yield name, found


class Tag(NamedTuple):
    """What a person showed in a set, as its own client computes it."""

    type_name: str
    set_id: bytes
    tag: bytes


def tokens_of_tags(
    types: Mapping[str, Type], pepper: Secret, client_key: Secret, tags: Iterable[Tag]
) -> Iterator[tuple[str, Token]]:
    """The tokens of tags, each once, with the name of the type, which needs credentials."""
    for name, set_id, tag in dict.fromkeys(tags):
        key = set_key(pepper, name, set_id)
        yield name, Token(key, client_token(client_key, key, "arc", tag, types[name].parameters.client_bits))


class Replacements:
    """The tokens of a client and the new ones, as they are chosen: none is a new one of another.

    Args:
        tokens: all tokens of the client.
    """

    def __init__(self, tokens: Iterable[Token]) -> None:
        self.new: dict[Token, int] = {}
        self._taken: dict[bytes, set[int]] = {}
        for each in tokens:
            self._taken.setdefault(each.key, set()).add(each.token)

    def add(self, token: Token, bits: int, taken: Collection[int]) -> None:
        """Choose a random token that nobody has in the set: none of ``taken``."""
        own = self._taken[token.key]
        own |= set(taken)
        while (new := secrets.randbits(bits)) in own:
            pass
        own.add(new)
        self.new[token] = new


def members(part: Part, key: bytes) -> NDArray[np.uint16 | np.uint32]:
    """The tokens of a set of a part, as a view."""
    rows = np.flatnonzero(part.keys == np.bytes_(key))  # as arrays: a scalar lacks the zero bytes at its end
    if not len(rows):
        return part.tokens[:0]
    row = int(rows[0])
    start = int(part.sizes[:row].sum())
    return part.tokens[start : start + int(part.sizes[row])]


def with_tokens(part: Part, replaced: Mapping[Token, int]) -> tuple[Part, set[Token]]:
    """The part with other tokens, and those that were there."""
    changed, found = replace(part, tokens=part.tokens.astype(np.uint32)), set[Token]()
    for place, new in replaced.items():
        own = members(changed, place.key)
        if place.token in own:
            found.add(place)
            own[own == place.token] = new
    return changed, found
