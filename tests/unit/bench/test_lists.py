"""The measurement of both listers still runs, on few values, and sees a value that no query calls shared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import lists
from bench.lists import Workload
from kanon.gate.listing import Listing
from kanon.gate.storage.disk.control import ControlFile

SETS = Workload(400, 40)
Part = Callable[[Path, Workload], None]
BOTH: list[tuple[Part, Part]] = [
    (lists.made_on_aws, lists.on_aws),
    (lists.made_on_one_machine, lists.on_one_machine),
]


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of all tests is not measured."""
    monkeypatch.setattr(lists, "MOST_MEMORY", 1 << 40)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "measure"), BOTH)
def test_every_value_of_two_lists_is_compared(make: Part, measure: Part, tmp_path: Path, capfd: Any) -> None:
    make(tmp_path, SETS)
    measure(tmp_path, SETS)
    assert '"values": [352, 312], "new": 36' in capfd.readouterr().out


def _suppressed(control: ControlFile, number: int) -> Any:
    rows = control.database.execute("SELECT set_key, newest, value FROM statuses JOIN sealed USING (set_key)")
    return ((bytes(key), (newest,), bytes(value)) for key, newest, value in rows)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "measure"), BOTH)
def test_a_planted_suppressed_value_is_seen(
    make: Part, measure: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Listing._publish

    def publish(self: Listing, *given: Any, **more: Any) -> None:
        self.statuses.suppressed = frozenset()
        original(self, *given, **more)

    monkeypatch.setattr(Listing, "_publish", publish)
    monkeypatch.setattr(ControlFile, "listed", _suppressed)
    make(tmp_path, SETS)
    with pytest.raises(SystemExit, match="has other values than queries answer"):
        measure(tmp_path, SETS)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "measure"), BOTH)
def test_too_much_memory_is_an_error(
    make: Part, measure: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "MOST_MEMORY", 1 << 20)
    make(tmp_path, SETS)
    with pytest.raises(SystemExit, match="more memory than 512 MiB"):
        measure(tmp_path, SETS)
