"""``python -m bench.lists [SETS [BYTES]]``: both listers list a million sets, or so many, at two steps.

A value has 32 bytes, or so many. Of ten sets one turns true at the first step, so that its value is opened then; those
of the others were opened before. One turns false at the second step, one is false, and some are suppressed. The time of
the second list is that of known values; what the first one takes longer is that of new ones. Then every value of both
lists is compared with what `Querying` answers at its step, from the same statuses.

On AWS the objects are files of a folder, and table and slots are in memory, so that the lister itself is measured. On
one machine all is real. It exits with a status other than 0 if a value differs, or takes more memory than 512 MiB.
"""

import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from types import SimpleNamespace
from typing import Any, NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.disk import transaction
from kanon.dynamo.batches import chunks
from kanon.gate.listed_sets import ListedSet, decode, encode
from kanon.gate.listing import Listing
from kanon.gate.lists import Lists
from kanon.gate.names import set_key
from kanon.gate.publishing import Horizon, tick_of
from kanon.gate.querying import Querying
from kanon.gate.sealing import seal
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.aws.control import Place
from kanon.gate.storage.aws.lists import ListObjects, PublishedLists, pair
from kanon.gate.true_sets import PREFIX
from kanon.gate.types import read_types
from kanon.keys import Secret
from kanon.serving.directory import Directory, Given, open_directory
from kanon.serving.lists import Lister
from kanon.serving.secret_files import LIST_KEY, list_key

SLOTS, STEP, PERIOD, DELAY = 16, 472_000, 3600, 1800
TYPES = '{"terms": {"k": 50, "window": 24, "profile": "crossing", "listed": true}}'
HOLD = 24
"""The steps for which a set of this type is true."""
TICKS = [tick_of(STEP + n, PERIOD, DELAY) + 1 for n in range(2)]
MOST_MEMORY = 512 << 20
A_QUERY, A_PAGE = 1000, 1000


class Workload(NamedTuple):
    """How many sets, and the bytes of a value."""

    sets: int = 1_000_000
    bytes: int = 32


class Set(NamedTuple):
    """A set: its value and key, the step at which it crossed, and whether it is suppressed."""

    value: bytes
    key: bytes
    crossing: int
    suppressed: bool

    @property
    def new(self) -> bool:
        """Whether it turned true at the first of the two steps."""
        return self.crossing == STEP


def made(of: Workload, pepper: Secret) -> Iterator[Set]:
    """The sets."""
    crossings = {0: STEP, 1: STEP + 1 - HOLD, 2: STEP - HOLD}
    for number in range(of.sets):
        value = b"value %d" % number
        value += b" " * (of.bytes - len(value))
        key = set_key(pepper, "terms", sha256(value).digest())
        yield Set(value, key, crossings.get(number % 10, STEP - 3), suppressed=number % 100 in (10, 13))


def sealed(each: Set, key: X25519PrivateKey) -> bytes:
    """Its sealed value; where nobody opens it, bytes of its length."""
    content = len(each.value) + 2
    return seal(each.value, key.public_key(), each.key) if each.new else bytes(content + -content % 32 + 48)


def measured(name: str, of: Workload, publish: Callable[[float], Any], lists: Lists, querying: Querying) -> None:
    """Publish at both ticks, print what it takes, and compare every value."""
    seconds = []
    for now in TICKS:
        began = time.process_time()
        publish(now)
        seconds.append(time.process_time() - began)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    counts = [compared(of, lists, querying, now, STEP + n) for n, now in enumerate(TICKS)]
    new = sum(each.new and not each.suppressed for each in made(of, querying.pepper))
    known = seconds[1] / counts[1]
    told = {"lister": name, "values": counts, "new": new, "seconds": [round(each, 1) for each in seconds]}
    told |= {"us a known value": round(1e6 * known, 1)}
    told |= {"us a new value": round(1e6 * ((seconds[0] - known * (counts[0] - new)) / new), 1)}
    print(json.dumps({**told, "MiB": memory >> 20}), flush=True)
    if memory > MOST_MEMORY:
        sys.exit("a list takes more memory than 512 MiB")


def compared(of: Workload, lists: Lists, querying: Querying, now: float, step: int) -> int:
    """Compare the list of a step, value by value, with the answers. Returns the number of values."""
    found = lists.of_step("terms", step)
    if found is None:
        sys.exit(f"there is no list of step {step}")
    values, after = set[bytes](), b""
    while rows := lists.page("terms", found, after, A_PAGE):
        values |= {row.value.encode() for _, row in rows}
        after = rows[-1][0]
    differ, shared = 0, 0
    for some in chunks(made(of, querying.pepper), A_QUERY):
        answer = querying.query([("terms", sha256(each.value).digest()) for each in some], now)
        differ += answer.step != step
        for each, above in zip(some, answer.above, strict=True):
            differ += (each.value in values) != above
            shared += above
    if differ or not found.values == len(values) == shared or not of.sets // 2 < shared < of.sets:
        sys.exit(f"the list of step {step} has other values than queries answer")
    return shared


# The lister of AWS


class Absent(Exception):  # noqa: N818, the service's name
    """There is no such object."""

    response = {"Error": {"Code": "NoSuchKey"}}  # noqa: RUF012, read by the lister


class Folder:
    """Objects as files, with the calls of boto3 that the lister needs."""

    exceptions = SimpleNamespace(ClientError=Absent)

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def put_object(self, *, Key: str, Body: Any, **_: Any) -> None:  # noqa: N803, the client's names
        """Write a file."""
        file = self._path / Key
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as to:
            source = io.BytesIO(Body) if isinstance(Body, bytes) else Body
            while some := source.read(1 << 20):
                to.write(some)

    def get_object(self, *, Key: str, **_: Any) -> Any:  # noqa: N803
        """Read a file."""
        if not (self._path / Key).exists():
            raise Absent
        return {"Body": io.BytesIO((self._path / Key).read_bytes())}

    def head_object(self, *, Key: str, **_: Any) -> Any:  # noqa: N803
        """Say that there is no history yet, or that it was just written."""
        if not (self._path / Key).exists():
            raise Absent
        return {"ETag": "", "Metadata": {"stamp": ""}}

    def get_paginator(self, _: str) -> Any:
        """List files."""
        return SimpleNamespace(paginate=lambda **given: [{"Contents": list(self._below(given["Prefix"]))}])

    def delete_objects(self, *, Delete: Any, **_: Any) -> Any:  # noqa: N803
        """Delete files."""
        for each in Delete["Objects"]:
            (self._path / each["Key"]).unlink()
        return {}

    def _below(self, prefix: str) -> Iterator[dict[str, str]]:
        for file in (self._path / prefix).rglob("*"):
            if file.is_file():
                yield {"Key": str(file.relative_to(self._path))}


class Table:
    """The pointer of the one type."""

    def __init__(self) -> None:
        self.lists: tuple[Any, ...] = ()

    def pointer(self, _: str) -> Any:
        """The last lists."""
        return self.lists

    def stamp(self) -> str:
        """Nothing was unlisted."""
        return ""

    def publish(self, _: str, before: Any, new: Any, __: str) -> bool:
        """Let readers see a list."""
        self.lists = (new, *before)
        return True


class InMemory:
    """The statuses of all sets; their crossings are in memory from the first query on."""

    def __init__(self, of: Workload) -> None:
        self._of, self._crossings = of, dict[bytes, tuple[int, ...]]()
        self.suppressed = frozenset(each.key for each in made(of, PEPPER) if each.suppressed)

    def read(self, keys: Sequence[bytes], slots: Sequence[int], **_: Any) -> Any:
        """The crossings of sets, none of suppressed ones, and the horizons of slots."""
        if keys and not self._crossings:
            self._crossings = {each.key: (each.crossing,) for each in made(self._of, PEPPER) if not each.suppressed}
        horizons = {
            slot: Horizon(STEP + 1, TICKS[1] - 1, STEP, TICKS[0] - 1, None, *[name_of(slot)] * 2) for slot in slots
        }
        return {key: self._crossings[key] for key in keys if key in self._crossings}, horizons


PEPPER = Secret.derived("set-pepper", "of the bench of lists")
KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
LAYOUT = Layout(SLOTS, 0, 1)


def name_of(slot: int) -> str:
    """The name of the object of true sets of a slot."""
    return f"{PREFIX}0/{slot}/{STEP}-1-{'0' * 32}"


def made_on_aws(folder: Path, of: Workload) -> None:
    """Write the objects of all slots."""
    objects = ListObjects(Folder(str(folder)), "", PERIOD)  # type: ignore[arg-type]
    slots: list[list[Set]] = [[] for _ in range(SLOTS)]
    for each in sorted(made(of, PEPPER), key=lambda each: each.key):
        slots[LAYOUT.slot_of(each.key)].append(each)
    for slot, sets in enumerate(slots):
        found = (ListedSet(e.key, 1, (e.crossing,), e.crossing + HOLD - 1, sealed(e, KEY)) for e in sets)
        (folder / f"sets-{slot}").write_bytes(encode(name_of(slot), found))
        with TemporaryFile() as kept:
            for each in sets:
                if not each.new:
                    kept.write(pair(each.key, each.value))
            objects.put_opened(Place(0, slot), kept)


def on_aws(folder: Path, of: Workload) -> None:
    """Measure the lister of AWS."""
    table, statuses, types = Table(), InMemory(of), read_types(TYPES, PERIOD)
    objects, layouts = ListObjects(Folder(str(folder)), "", PERIOD), Layouts((LAYOUT,))  # type: ignore[arg-type]
    lister = Listing(
        types=types,
        layouts=layouts,
        period=PERIOD,
        publish_delay=DELAY,
        review=0,
        control=SimpleNamespace(type_numbers=lambda _: {"terms": 1}),  # type: ignore[arg-type]
        statuses=statuses,  # type: ignore[arg-type]
        listed_sets=lambda name: decode(name, (folder / f"sets-{name.split('/')[2]}").read_bytes()),
        table=table,  # type: ignore[arg-type]
        objects=objects,
        key=KEY,
    )

    def publish(now: float) -> None:
        outcome = lister.run(now)
        if outcome.unopened or outcome.waiting:
            sys.exit("a list is not complete")

    querying = Querying(types, PEPPER, statuses, PERIOD, layouts, DELAY, None)  # type: ignore[arg-type]
    measured("AWS", of, publish, PublishedLists(table, objects), querying)  # type: ignore[arg-type]


# The lister of one machine


def opened(folder: Path) -> Directory:
    """The directory."""
    return open_directory(folder, Given(PERIOD, TYPES), STEP * PERIOD)


def made_on_one_machine(folder: Path, of: Workload) -> None:
    """Commit the sets, and keep the opened values."""
    with opened(folder) as directory:
        key, control, pepper = list_key(folder / "secrets" / LIST_KEY), directory.control, directory.joining.pepper
        sets, number = sorted(made(of, pepper), key=lambda each: each.key), control.type_numbers()["terms"]
        statuses = ((each.key, (each.crossing,), TICKS[1] * 2) for each in sets)
        values = ((each.key, number, sealed(each, key)) for each in sets)
        run = control.begin_run()
        control.commit(run, None, STEP, [], statuses, TICKS[0] - 1, values)
        control.commit(run, STEP, STEP + 1, [], [], TICKS[1] - 1)
        with transaction(control.database):
            for each in sets:
                if each.suppressed:
                    control.suppress(each.key)
        database = Lister(directory).file.database
        with transaction(database):
            known = ((each.key, each.value.decode()) for each in sets if not each.new)
            database.executemany("INSERT INTO opened VALUES (?, ?)", known)


def on_one_machine(folder: Path, of: Workload) -> None:
    """Measure the lister of one machine."""
    with opened(folder) as directory:
        lister = Lister(directory)

        def publish(now: float) -> None:
            if lister.publish(now) != 1 or lister.unopened:
                sys.exit("a list is not complete")

        measured("one machine", of, publish, lister.file, directory.querying)


def main() -> None:
    """Make the sets of each lister and publish their lists, each in a process of its own."""
    of = Workload(*map(int, sys.argv[1:]))
    for parts in ((made_on_aws, on_aws), (made_on_one_machine, on_one_machine)):
        with TemporaryDirectory() as folder:
            for part in parts:
                child = os.fork()
                if child == 0:
                    in_child(part, Path(folder), of)
                if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                    sys.exit(1)


def in_child(part: Callable[[Path, Workload], None], folder: Path, of: Workload) -> None:
    """Run a part, and end the process."""
    try:
        part(folder, of)
    except SystemExit as error:
        print(error.code, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
