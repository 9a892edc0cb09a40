"""The packed members of many sets, as the bytes in their items.

Format 1 is: the version (1 byte), the bytes per token (1), the evaluated step (8), then each member's token and age
(2). The age is the number of steps between the member's last join and the evaluated step; it is less than the window.
All numbers are big-endian, the step is signed.
"""

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kanon.errors import UndecodableMembersError
from kanon.gate.mechanism.columns import Ints, Tokens
from kanon.gate.mechanism.parameters import AGE_BYTES

FORMAT = 1
_HEAD = struct.Struct(">BBq")
_MOST_TOKEN_BYTES = 4
_WORD_BYTES = 8


def pack_all(members: Tokens, lasts: Ints, step: int, token_bytes: int) -> list[bytes]:
    """Pack the members of n sets that were evaluated at ``step``."""
    width = token_bytes + AGE_BYTES
    # Token and age are the last bytes of a word.
    words = (members.tokens << 8 * AGE_BYTES | step - lasts).astype(">u8")
    body = words.view(np.uint8).reshape(-1, _WORD_BYTES)[:, _WORD_BYTES - width :].tobytes()
    head = _HEAD.pack(FORMAT, token_bytes, step)
    bounds = (members.starts * width).tolist()
    return [head + body[start:end] for start, end in pairwise(bounds)]


def unpack_all(packed: Sequence[bytes]) -> tuple[Ints, Tokens, Ints]:
    """The evaluated steps of n sets, their members, and the last steps of these, of any format ever written.

    Raises:
        UndecodableMembersError: some bytes are of no known format.
    """
    heads = [_head(value) for value in packed]
    evaluated = np.array([step for _, step in heads], np.int64)
    widths = np.array([width for width, _ in heads], np.int64)
    sizes = (np.array([len(value) for value in packed], np.int64) - _HEAD.size) // widths
    words = np.empty(int(sizes.sum()), np.int64)
    owners = np.repeat(np.arange(len(packed)), sizes)
    for width in set(widths.tolist()):  # one, unless client_bits differ
        body = b"".join([value[_HEAD.size :] for value, (own, _) in zip(packed, heads, strict=True) if own == width])
        words[widths[owners] == width] = _words(body, width)
    tokens, ages = words >> 8 * AGE_BYTES, words & (1 << 8 * AGE_BYTES) - 1
    return evaluated, Tokens(sizes, tokens), evaluated[owners] - ages


def _head(packed: bytes) -> tuple[int, int]:
    """Bytes per member, and the evaluated step."""
    if len(packed) < _HEAD.size or packed[0] != FORMAT:
        raise UndecodableMembersError(f"packed members of unknown format {packed[:1].hex() or 'empty'}")
    _, token_bytes, evaluated = _HEAD.unpack_from(packed)
    width = token_bytes + AGE_BYTES
    if not 1 <= token_bytes <= _MOST_TOKEN_BYTES or (len(packed) - _HEAD.size) % width:
        raise UndecodableMembersError("packed members of format 1 end inside a member")
    return width, evaluated


def _words(body: bytes, width: int) -> NDArray[np.int64]:
    """Entries of ``width`` bytes as integers."""
    words = np.zeros((len(body) // width, _WORD_BYTES), np.uint8)
    words[:, _WORD_BYTES - width :] = np.frombuffer(body, np.uint8).reshape(-1, width)
    return words.view(">u8").ravel().astype(np.int64)
