"""Objects and the one job of a process: what a job on local files works with. Nothing of it outlives the process."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import IO, Any, Self, cast

from kanon.reports.storage.objects import ObjectStore, Stored, TakenError
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, JobRow, State

IN_MEMORY = 64 << 20
"""Bytes of objects in memory. Further ones are in a file without a name, which disappears with the process."""


class MemoryObjects(ObjectStore):
    """A bucket, until the end of a ``with`` block."""

    def __init__(self) -> None:
        self._file = cast("IO[bytes]", tempfile.SpooledTemporaryFile(IN_MEMORY))  # noqa: SIM115, closed by __exit__
        self._places: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def listed(self, prefix: str, most: int, wanted: Callable[[str], bool] = bool) -> list[Stored]:
        """The first objects under a prefix whose names are wanted, by name."""
        found = [Stored(key, size, "") for key, (_, size) in self._places.items() if key.startswith(prefix)]
        return sorted(one for one in found if wanted(one.key))[:most]

    def read(self, key: str, etag: str | None = None) -> bytes:  # noqa: ARG002, no object ever changes
        """The bytes of an object."""
        begins, size = self._places[key]
        self._file.seek(begins)
        return self._file.read(size)

    def put_new(self, key: str, body: bytes) -> None:
        """Write an object, unless it exists with the same bytes.

        Raises:
            TakenError: an object of this name has other bytes.
        """
        if key in self._places:
            if self.read(key) != body:
                raise TakenError("an object with other content has this name: choose another name")
            return
        self._places[key] = self._file.seek(0, 2), len(body)
        self._file.write(body)

    def delete_under(self, prefix: str) -> None:
        """Delete every object under a prefix."""
        self._places = {key: place for key, place in self._places.items() if not key.startswith(prefix)}


class MemoryJob:
    """One job, and the results of its workers.

    Attributes:
        row: the job.
    """

    def __init__(self, row: JobRow) -> None:
        self.row = row
        self._results: dict[str, dict[int, Any]] = {}

    def read(self, job: str) -> JobRow | None:
        """The job; None if it has another id."""
        return self.row if self.row.job == job else None

    def move(self, row: JobRow, to: State, now: float, **values: Any) -> bool:
        """Move the job from the state of ``row`` to another one and record values; False if it has left that state."""
        if self.row.state is not row.state:
            return False
        keeps = to in (*BEFORE_COMMIT, State.COMMITTING)
        secret = self.row.secret if keeps else None
        recorded = {**self.row.values, **values}
        self.row = replace(self.row, state=to, updated_at=int(now), secret=secret, values=recorded)
        return True

    def record(self, job: str, stage: str, number: int, value: Any, now: float) -> Any:  # noqa: ARG002, as in the table
        """Record a worker's result, unless another one was first. Returns the recorded result."""
        return self._results.setdefault(stage, {}).setdefault(number, value)

    def recorded(self, job: str, stage: str) -> dict[int, Any]:  # noqa: ARG002, as in the table
        """The results of a stage by number."""
        return dict(self._results.get(stage, {}))

    def forget_work(self, job: str) -> None:  # noqa: ARG002, as in the table
        """Delete the workers' results."""
        self._results.clear()
