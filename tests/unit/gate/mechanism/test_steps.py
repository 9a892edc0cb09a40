"""Steps, instances and phases."""

from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.mechanism.steps import end_of, first_step, instance_of, phase_of, step_at
from tests.unit.examples import set_key

STEPS = st.integers(-(10**9), 10**9)
WINDOWS = st.integers(2, 65_535)


def test_a_step_begins_with_its_first_second_and_ends_before_the_next_one_begins() -> None:
    assert step_at(7200, 3600) == 2
    assert step_at(7199.999, 3600) == 1
    assert end_of(1, 3600) == 7200


@given(STEPS, st.integers(1, 86_400))
def test_the_end_of_a_step_is_the_first_second_of_the_next_one(step: int, period: int) -> None:
    assert step_at(end_of(step, period), period) == step + 1
    assert step_at(end_of(step, period) - 1, period) == step


@given(STEPS, WINDOWS, st.data())
def test_an_instance_covers_exactly_one_window_of_steps(step: int, window: int, data: st.DataObject) -> None:
    phase = data.draw(st.integers(0, window - 1))
    instance = instance_of(step, phase, window)
    first = first_step(instance, phase, window)
    assert first <= step < first + window
    assert instance_of(first - 1, phase, window) == instance - 1
    assert instance_of(first + window - 1, phase, window) == instance
    assert instance_of(first + window, phase, window) == instance + 1


def test_the_phase_moves_the_instances_by_as_many_steps() -> None:
    assert [instance_of(t, 0, 3) for t in range(-3, 6)] == [-1, -1, -1, 0, 0, 0, 1, 1, 1]
    assert [instance_of(t, 2, 3) for t in range(6)] == [-1, -1, 0, 0, 0, 1]


@given(st.binary(min_size=32, max_size=32), WINDOWS)
def test_the_phase_by_hash_is_the_end_of_the_set_key_modulo_the_window(key: bytes, window: int) -> None:
    assert phase_of(key, window, "hash") == int(key[24:].hex(), 16) % window


@given(st.binary(min_size=32, max_size=32), WINDOWS)
def test_the_phase_zero_is_zero_for_every_set(key: bytes, window: int) -> None:
    assert phase_of(key, window, "zero") == 0


def test_the_phase_does_not_depend_on_the_bits_that_choose_the_slot() -> None:
    key = set_key(1)
    assert phase_of(b"\x00" + key[1:], 720, "hash") == phase_of(b"\xff" + key[1:], 720, "hash")


def test_the_phases_of_many_sets_spread_over_the_window() -> None:
    assert {phase_of(set_key(n), 6, "hash") for n in range(100)} == set(range(6))
