"""The noise tape: the same place gives the same noise, every other place other noise."""

import hashlib
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kanon.gate.mechanism.parameters import CrossingRestart, Parameters
from kanon.gate.mechanism.tape import LogGeneration, Noise, Tapes
from kanon.noise.laws import two_sided
from kanon.noise.words import NoiseKey, length_prefixed
from tests.unit.examples import CROSSING, KEY, PUBLISHED, SMALL, set_key

TAPES = Tapes(KEY, "deployment", "type", PUBLISHED)
SET = set_key("a")


@pytest.mark.parametrize(
    "other",
    [
        replace(TAPES, key=NoiseKey("1", bytes(32))),
        replace(TAPES, key=NoiseKey("2", KEY.secret)),
        replace(TAPES, deployment="another deployment"),
        replace(TAPES, type_name="another type"),
        replace(TAPES, generation=LogGeneration("log", 5)),
    ],
    ids=["key", "key id", "deployment", "type", "log generation"],
)
def test_another_key_deployment_type_or_log_generation_has_another_tape(other: Tapes) -> None:
    assert _share_no_word(other.words(SET, 7, 721), TAPES.words(SET, 7, 721))


@pytest.mark.parametrize("other", [LogGeneration("log 2", 5), LogGeneration("log", 6)], ids=["log", "first step"])
def test_both_parts_of_a_log_generation_are_part_of_the_name_of_its_tape(other: LogGeneration) -> None:
    words = replace(TAPES, generation=LogGeneration("log", 5)).words(SET, 7, 721)
    assert _share_no_word(replace(TAPES, generation=other).words(SET, 7, 721), words)


@pytest.mark.parametrize(
    "other",
    [
        replace(PUBLISHED, k=51),
        replace(PUBLISHED, window=721),
        replace(PUBLISHED, period=3601),
        replace(PUBLISHED, threshold_law=two_sided(Fraction(3, 4), 24)),
        replace(PUBLISHED, query_law=two_sided(Fraction(3, 4), 23)),
        replace(PUBLISHED, client_bits=17),
        replace(PUBLISHED, phase="zero"),
    ],
    ids=["k", "window", "period", "threshold law", "query law", "client bits", "phase"],
)
def test_every_parameter_of_a_type_is_part_of_the_name_of_its_tape(other: Parameters) -> None:
    words = replace(TAPES, parameters=other).words(SET, 7, 721)
    assert _share_no_word(words, TAPES.words(SET, 7, 721))


def test_another_set_or_instance_has_another_tape() -> None:
    assert _share_no_word(TAPES.words(set_key("b"), 7, 721), TAPES.words(SET, 7, 721))
    assert _share_no_word(TAPES.words(SET, 8, 721), TAPES.words(SET, 7, 721))
    assert _share_no_word(TAPES.words(SET, -7, 721), TAPES.words(SET, 7, 721))


def test_no_word_is_used_for_two_steps_or_two_roles() -> None:
    words = TAPES.words(SET, 7, 721)
    assert len({words[at : at + 8] for at in range(0, len(words), 8)}) == 721


@given(st.integers(1, 721))
def test_a_tape_read_in_part_is_the_beginning_of_the_whole_tape(count: int) -> None:
    assert TAPES.words(SET, 7, 721)[: 8 * count] == TAPES.words(SET, 7, count)


@pytest.mark.parametrize(
    ("generation", "domain", "log"),
    [(None, b"kanon/tape/1", ()), (LogGeneration("log", 5), b"kanon/tape/2", (b"log", (5).to_bytes(8, "big")))],
)
def test_the_tape_is_shake_256_over_the_length_prefixed_names_of_its_place(
    generation: LogGeneration | None, domain: bytes, log: tuple[bytes, ...]
) -> None:
    name = (domain, KEY.secret, b"1", b"deployment", b"type", PUBLISHED.fingerprint, *log)
    place = (SET, (-3).to_bytes(8, "big", signed=True))
    prefixed = b"".join(len(part).to_bytes(8, "big") + part for part in (*name, *place))
    assert replace(TAPES, generation=generation).words(SET, -3, 5) == hashlib.shake_256(prefixed).digest(40)


def test_the_first_words_of_a_known_tape_never_change() -> None:
    assert TAPES.words(SET, 7, 2).hex() == "ff3e0bb643820858359107e4b0d87964"


PAGED = Tapes(KEY, "deployment", "type", CROSSING)


def test_a_page_of_the_tape_of_a_search_is_named_by_its_first_step_and_its_number() -> None:
    name = (KEY.secret, b"1", b"deployment", b"type", CROSSING.fingerprint)
    place = (SET, (7).to_bytes(8, "big"), (2).to_bytes(8, "big"))
    first = hashlib.shake_256(length_prefixed(b"kanon/tape/3", *name, *place))
    later = hashlib.shake_256(length_prefixed(b"kanon/tape/4", *name, b"log", (5).to_bytes(8, "big"), *place))
    assert PAGED.words(SET, 7, 7, 2) == first.digest(56)
    assert replace(PAGED, generation=LogGeneration("log", 5)).words(SET, 7, 7, 2) == later.digest(56)


def test_the_first_words_of_a_known_page_never_change() -> None:
    assert PAGED.words(SET, 7, 2, 1).hex() == "09bc88ffd80b09e4264d67e107c6d279"


def test_a_search_longer_than_a_window_reads_one_page_after_another() -> None:
    pages = [PAGED.words(SET, 7, 7, page) for page in range(3)]
    words = [page[at : at + 8] for page in pages for at in range(8, 56, 8)]
    assert len(set(words)) == 18
    noise = Noise(PAGED, SET, 7)
    assert noise.mu == CROSSING.threshold_law.draw(int.from_bytes(pages[0][:8], "big"))
    assert [noise.nu(i) for i in range(18)] == [CROSSING.query_law.draw(int.from_bytes(w, "big")) for w in words]
    for begin, end in ((0, 0), (0, 6), (2, 9), (6, 12), (7, 18), (12, 12), (13, 14)):
        assert PAGED.query_words(SET, 7, begin, end) == b"".join(words[begin:end])


@pytest.mark.parametrize("restart", [CrossingRestart(9, 15), CrossingRestart(8, 16), None])
def test_hold_and_epoch_are_part_of_the_name_of_the_tape(restart: CrossingRestart | None) -> None:
    other = replace(PAGED, parameters=replace(CROSSING, restart=restart))
    assert _share_no_word(other.words(SET, 7, 7), PAGED.words(SET, 7, 7))


def test_word_0_gives_the_threshold_noise_and_word_1_plus_i_the_query_noise_of_step_i() -> None:
    noise = Noise(TAPES, SET, 7)
    tape = TAPES.words(SET, 7, 721)
    word = [int.from_bytes(tape[at : at + 8], "big") for at in range(0, len(tape), 8)]
    assert noise.mu == PUBLISHED.threshold_law.draw(word[0])
    assert [noise.nu(i) for i in range(720)] == [PUBLISHED.query_law.draw(w) for w in word[1:]]


def test_the_threshold_noise_is_drawn_by_the_threshold_law_and_the_query_noise_by_the_other() -> None:
    noises = [Noise(Tapes(KEY, "d", "t", SMALL), set_key(n), 0) for n in range(200)]
    assert {noise.mu for noise in noises} == {-1, 0, 1}
    assert {noise.nu(i) for noise in noises for i in range(6)} == {-2, -1, 0, 1, 2}


@given(st.lists(st.binary(max_size=4), max_size=4), st.lists(st.binary(max_size=4), max_size=4))
def test_different_lists_of_parts_never_have_the_same_encoding(parts: list[bytes], others: list[bytes]) -> None:
    assert (length_prefixed(*parts) == length_prefixed(*others)) == (parts == others)


def test_a_noise_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="a noise key is 32 bytes"):
        NoiseKey("1", bytes(31))


def test_a_noise_key_does_not_show_its_secret() -> None:
    key = NoiseKey("1", b"\xaa" * 32)
    assert repr(key) == "NoiseKey(id='1')"
    assert "xaa" not in repr(Tapes(key, "d", "t", SMALL))


def _share_no_word(tape: bytes, other: bytes) -> bool:
    here = {tape[at : at + 8] for at in range(0, len(tape), 8)}
    return here.isdisjoint(other[at : at + 8] for at in range(0, len(other), 8))
