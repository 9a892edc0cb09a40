"""The lists of a directory as keys of jobs."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kanon.gate.lists import Found
from kanon.gate.mechanism.bounds import guarantee
from kanon.reports.histogram import KEY
from kanon.reports.service.bodies import invalid
from kanon.reports.service.released import ReleasedKeys
from kanon.reports.service.requests import LISTED_TYPE
from kanon.reports.service.shards import MOST_KEYS
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.work import Work
from kanon.serving.directory import Directory
from kanon.serving.lists import ListsFile

KEY_BYTES = 16
"""The first bytes of SHA-256 of a value: its key in reports."""


@dataclass(frozen=True)
class PublishedLists:
    """The lists of a directory. :class:`~kanon.reports.service.released.Lists` has the contract.

    Attributes:
        directory: the deployment.
        work: the folder of intermediate results of jobs.
    """

    directory: Directory
    work: ObjectStore

    @cached_property
    def _file(self) -> ListsFile:
        file = ListsFile(self.directory.path)
        self.directory.closes(file)
        return file

    @property
    def _listed(self) -> list[str]:
        return sorted(name for name, type_ in self.directory.types.items() if type_.listed)

    def check(self, type_name: str) -> None:
        """Check that a type has a list with values."""
        self._newest(type_name)

    def pinned(self, job: str, type_name: str) -> ReleasedKeys:
        """Write the keys of the newest list of a type into the work folder of a job."""
        database = self._file.database
        database.execute("BEGIN")  # list and values of one moment
        try:
            step = self._newest(type_name).step
            digests = self._file.digests(type_name, step, b"", None)
        finally:
            database.execute("ROLLBACK")
        keys = np.unique(np.array([digest[:KEY_BYTES] for digest in digests], KEY))
        name = Work(self.work, job).put_keys(keys)
        join = guarantee(self.directory.types[type_name].parameters).watched
        return ReleasedKeys(type_name, step, len(keys), name, join)

    def _newest(self, type_name: str) -> Found:
        if type_name not in self._listed:
            known = ", ".join(self._listed) or "none; declare a type with listed, or use declared or discover"
            raise invalid(LISTED_TYPE, f"is no listed type of this deployment. Listed types: {known}")
        found = self._file.newest(type_name)
        if found is None:
            raise invalid(LISTED_TYPE, "this type has no list yet: create the job after the next tick")
        if not found.values:
            raise invalid(LISTED_TYPE, "the newest list is empty: no value is shared yet, create the job later")
        if found.values > MOST_KEYS:
            raise invalid(LISTED_TYPE, f"the list has more than {MOST_KEYS:,} values, the most of a job: declare keys")
        return found

    def close(self) -> None:
        """Close the file of lists, if it was read."""
        if "_file" in vars(self):
            self._file.close()
