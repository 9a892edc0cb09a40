"""The lists of a directory as keys of jobs. They are kept on receipt: lists may follow each other within seconds."""

from dataclasses import dataclass
from functools import cached_property

from kanon.gate.lists import Found, join_bounds
from kanon.reports.service.requests import ListOf, Lists
from kanon.reports.service.shards import released_keys
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.work import Work
from kanon.serving.directory import Directory
from kanon.serving.lists import ListsFile


@dataclass(frozen=True)
class PublishedLists:
    """The lists of a directory.

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

    def lists(self) -> Lists:
        """As jobs use them."""
        return Lists(join_bounds(self.directory.types), self._newest, self._kept)

    def _newest(self, type_name: str) -> Found | None:
        return self._file.newest(type_name)

    def _kept(self, job: str, type_name: str, found: ListOf) -> str:
        digests = self._file.digests(type_name, found.step, b"", None)
        return Work(self.work, job).put_keys(released_keys(digests, found.values))

    def close(self) -> None:
        """Close the file of lists, if it was read."""
        if "_file" in vars(self):
            self._file.close()
