"""Range files are as few as fit 64 KiB, and the client finds in them what the list has, and nothing else."""

from hashlib import sha256

import pytest

from kanon.client import ranges as reader
from kanon.gate.ranges import (
    ALL,
    MORE_BITS,
    MOST_BITS,
    MOST_FILE_BYTES,
    ListStep,
    bits_for,
    encode,
    first_of,
    most_hashes,
    name_of,
    number_of,
)

OF = ListStep("terms", 488_000, 1_760_000_000)


def hashes(count: int) -> list[bytes]:
    return sorted(sha256(b"%d" % n).digest() for n in range(count))


def files(listed: list[bytes], bits: int) -> dict[str, bytes]:
    found: dict[str, list[bytes]] = {name_of(number, bits): [] for number in range(1 << bits)}
    for digest in listed:
        found[name_of(int.from_bytes(digest, "big") >> 256 - bits, bits)].append(digest)
    return {name: encode(OF, bits, own) for name, own in found.items()}


@pytest.mark.parametrize("count", [0, 1, 5, 40, 500])
@pytest.mark.parametrize("most", [4, 30])
def test_bits_are_the_fewest_with_which_every_file_fits(count: int, most: int) -> None:
    listed = hashes(count)
    bits = bits_for(listed, most)
    largest = [max(len(file) for file in files(listed, each).values()) for each in range(bits + 1)]
    room = len(encode(OF, 0, [])) + 16 * most
    assert largest[-1] <= room
    assert all(size > room for size in largest[:-1])


@pytest.mark.parametrize("name", ["t", "t" * 64])
def test_a_full_file_has_at_most_64_kib(name: str) -> None:
    most = most_hashes(name)
    of = ListStep(name, 2**40, 2**40)
    assert len(encode(of, MOST_BITS, [bytes(32)] * most)) <= MOST_FILE_BYTES
    assert len(encode(of, MOST_BITS, [bytes(32)] * (most + 1))) > MOST_FILE_BYTES


@pytest.mark.slow
def test_a_million_values_make_256_or_512_files() -> None:
    assert bits_for(hashes(1_000_000), most_hashes("terms")) in (8, 9)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [0, 1, 3, 16])
def test_the_client_finds_what_is_listed_and_nothing_else(bits: int) -> None:
    listed, others = hashes(300), [sha256(b"other %d" % n).digest() for n in range(300)]
    found = reader.Ranges(OF.step, bits, 0.0)
    own = files(listed, bits)
    for name in sorted({found.name(digest) for digest in [*listed, *others]}):
        found.files[name] = reader.read(own[name], "terms", found)
    assert all(found.has(digest) for digest in listed)
    assert not any(found.has(digest) for digest in others)
    assert set(found.names()) == set(own)


def test_before_the_first_list_nothing_is_listed() -> None:
    assert not reader.Ranges(None, 0, 0.0).has(bytes(32))


@pytest.mark.parametrize(
    "change",
    [
        lambda file: b"KNR2" + file[4:],
        lambda file: file[:4] + b"\1" + file[5:],
        lambda file: file[:-1],
        lambda file: file + bytes(16),
        lambda file: encode(ListStep("other", OF.step, OF.next_update), 0, hashes(3)),
        lambda file: encode(ListStep("terms", OF.step + 1, OF.next_update), 0, hashes(3)),
        lambda file: b"",
    ],
    ids=["magic", "bits", "cut", "longer", "another type", "another step", "empty"],
)
def test_a_file_of_another_list_or_a_damaged_one_is_refused(change: object) -> None:
    file = encode(OF, 0, hashes(3))
    assert len(reader.read(file, "terms", reader.Ranges(OF.step, 0, 0.0))) == 48
    with pytest.raises(ValueError, match="another list"):
        reader.read(change(file), "terms", reader.Ranges(OF.step, 0, 0.0))  # type: ignore[operator]


def test_names_of_files_are_their_bits() -> None:
    assert [name_of(n, 2) for n in range(4)] == ["00", "01", "10", "11"]
    assert [number_of(name, 2) for name in ("00", "11", "0", "000", "1x", "all", "")] == [0, 3, *[None] * 5]
    assert (name_of(0, 0), number_of(ALL, 0), number_of("0", 0)) == (ALL, 0, None)
    assert first_of(1, 1) == b"\x80" + bytes(31)
    assert first_of(0, 0) == bytes(32)


def test_values_whose_hashes_begin_alike_do_not_make_thousands_of_files() -> None:
    most = 30
    alike = sorted(bytes(4) + digest[4:] for digest in hashes(20 * most))
    assert bits_for(alike, most) == (20 - 1).bit_length() + MORE_BITS
    assert bits_for(sorted([*alike, *hashes(100 * most)]), most) <= 7 + MORE_BITS
