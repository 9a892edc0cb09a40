"""The lists of a directory as keys of jobs. They are kept on receipt: lists may follow each other within seconds."""

from collections.abc import Mapping

from kanon.gate.lists import join_bounds
from kanon.gate.types import Type
from kanon.reports.service.job_routes import KeyLists, ListOf
from kanon.reports.service.shards import released_keys
from kanon.reports.storage.objects import ObjectStore
from kanon.reports.storage.work import WorkFolder
from kanon.serving.lists import ListsFile


def published_lists(types: Mapping[str, Type], file: ListsFile, work: ObjectStore) -> KeyLists:
    """The lists of a ``file`` as jobs use them; ``work`` is the folder of their intermediate results."""

    def kept(job: str, type_name: str, found: ListOf) -> str:
        digests = file.digests(type_name, found.step, b"", None)
        return WorkFolder(work, job).put_keys(released_keys(digests, found.values))

    return KeyLists(join_bounds(types), file.newest, kept)
