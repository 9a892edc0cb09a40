"""The measurement of parts still runs, on a small one."""

from bench import parts
from kanon.gate.parts import decode, encode


def test_a_part_is_measured_with_and_without_joins() -> None:
    content, _ = encode(parts.part(20, 3), parts.STEP - 1)
    assert (len(decode(content)), len(decode(content).tokens)) == (20, 60)
    assert all(parts.spent(content, share) > 0 for share in (0.0, 0.5, 1.0))
