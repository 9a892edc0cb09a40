"""A part says which sets are due, also when the step of a wake-up has passed."""

from dataclasses import replace
from hashlib import sha256

import numpy as np

from kanon.gate.mechanism.columns import NEVER
from kanon.gate.parts import Part, decode, encode


def part(wake_ups: list[int], ends: list[int]) -> Part:
    none, count = np.zeros(0, np.int64), len(wake_ups)
    keys = np.array([bytes([n + 1]) * 32 for n in range(count)], "S32")
    never = np.full((count, 2), NEVER)
    sizes = np.zeros(count, np.int64)
    return Part(keys, np.ones(count, np.uint8), sizes, none, none, never, np.array(wake_ups), np.array(ends))


def test_a_set_is_due_from_its_wake_up_on() -> None:
    some = part([NEVER, 6, 7, 8], [9, 9, 9, 9])
    assert some.due(7).tolist() == [False, True, True, False]


def test_something_happens_to_a_part_at_its_first_wake_up_or_after_its_first_end() -> None:
    assert part([NEVER, 6], [4, 9]).earliest == 5
    assert part([NEVER, 3], [4, 9]).earliest == 3
    assert part([NEVER], [4]).earliest == 5
    assert part([], []).earliest is None


def test_the_bytes_of_a_part_never_change() -> None:
    """Kept manifests name digests of files: what is evaluated again, by a later version too, has the same."""
    some = replace(
        part([NEVER, 6, 7], [4, 9, 8]),
        sizes=np.array([2, 0, 1]),
        tokens=np.array([1, 65_535, 2], np.uint32),
        lasts=np.array([5, 3, 4], np.int32),
        crossings=np.array([[NEVER, NEVER], [2, 5], [NEVER, 4]]),
    )
    wide = replace(some, tokens=some.tokens + np.uint32(1))
    values = replace(some, sealed=np.array([b"one", b"", b"three"], object))
    for each, digest in ((some, "74d789599fb0d041"), (wide, "18564d0e82059c4a"), (values, "251c4a8a081009d1")):
        content, whole = encode(each, 5)
        assert whole.startswith(digest)
        assert sha256(content).hexdigest() == whole
        assert encode(decode(content), 5) == (content, whole)
