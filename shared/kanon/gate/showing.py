"""The object of the sets that are true at a step (:mod:`kanon.gate.true_sets`), as columns; and the listed ones.

That of a step follows from the one before: the sets that crossed are added, and those that are no longer true go. No
part is read for it in which nothing happened.
"""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from kanon.gate.listed_sets import ListedSet
from kanon.gate.mechanism.columns import NEVER, Ints
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.tape import SET_KEY_BYTES
from kanon.gate.mechanism.vectorised import crossing_needed
from kanon.gate.parts import Part, keys_of
from kanon.gate.true_sets import ENTRY_BYTES, HEADER_BYTES, KEY_BYTES, MOST_TRUE, TrueSets, encode

ENTRY = np.dtype([("key", f"S{KEY_BYTES}"), ("crossing", "<u4"), ("last", "<u4")])
Entries = NDArray[np.void]
NO_ENTRIES: Entries = np.zeros(0, ENTRY)


def entries_of(part: Part, parameters: Mapping[int, Parameters], since: int, step: int) -> Entries:
    """The sets of a part that crossed at step ``since`` or later and that may be true at ``step``, (n,).

    A set whose type is not known (any more) stays as long as its state.
    """
    part = part.rows((part.crossings[:, 1] != NEVER) & (part.crossings[:, 1] >= since))
    last = part.ends.copy()
    for number, own in parameters.items():
        rows = part.types == number
        last[rows] = _last_true(part.rows(rows), own)
    entries = np.zeros(len(part), ENTRY)
    entries["key"], entries["crossing"], entries["last"] = _prefixes(part), part.crossings[:, 1], last
    return entries[last >= step]


def listed_of(part: Part, listed: Mapping[int, Parameters], since: int, step: int) -> list[ListedSet]:
    """The sets of a part of listed types, by number, that crossed at step ``since`` or later and are true at ``step``.

    A set without a sealed value is left out.
    """
    if part.sealed is None or not listed:
        return []
    own = np.isin(part.types, list(listed)) & (part.crossings[:, 1] != NEVER) & (part.crossings[:, 1] >= since)
    part = part.rows(own & (part.sealed != b""))
    sets = zip(
        keys_of(part.keys),
        part.types.tolist(),
        part.crossings.tolist(),
        () if part.sealed is None else part.sealed,
        strict=True,
    )
    found = []
    for key, number, crossings, sealed in sets:
        last = Searches.of(listed[number], key).last_true(crossings[1])
        if last >= step:
            found.append(ListedSet(key, number, tuple(each for each in crossings if each != NEVER), last, sealed))
    return found


def after(before: TrueSets | None, found: Iterable[Entries], step: int) -> bytes | None:
    """The object after ``step``.

    Args:
        before: that of an earlier step; None: ``found`` has every true set.
        found: the sets that crossed since then; of a set that is there twice the later entry counts.
        step: the step.

    Returns:
        Its bytes; None if too many sets are true.
    """
    new = np.concatenate([NO_ENTRIES, *found])
    new = new[np.argsort(new["key"], kind="stable")]
    new = new[np.append(new["key"][1:] != new["key"][:-1], True)] if len(new) else new
    old = NO_ENTRIES if before is None else np.frombuffer(before.content, ENTRY, before.count, HEADER_BYTES)
    old = old[(old["last"] >= step) & ~np.isin(old["key"], new["key"])]
    if len(old) + len(new) > MOST_TRUE:
        return None
    entries = np.insert(old, np.searchsorted(old["key"], new["key"]), new)
    return encode(entries.tobytes())


def _last_true(part: Part, parameters: Parameters) -> Ints:
    """The last step at which each set is true because of its newest crossing, (n,)."""
    newest = part.crossings[:, 1]
    if parameters.restart is not None:
        return newest + parameters.restart.hold - 1
    return crossing_needed(keys_of(part.keys), newest, parameters)


def _prefixes(part: Part) -> NDArray[np.bytes_]:
    whole = np.frombuffer(part.keys.tobytes(), np.uint8).reshape(-1, SET_KEY_BYTES)
    return np.ascontiguousarray(whole[:, :KEY_BYTES]).view(f"S{KEY_BYTES}").reshape(-1)


assert ENTRY.itemsize == ENTRY_BYTES
