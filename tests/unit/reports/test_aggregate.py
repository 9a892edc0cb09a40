"""Objects in memory keep the promises of the bucket that they stand for, and jobs in memory leave no file."""

import pytest

from kanon.reports import aggregate
from kanon.reports.aggregate import MemoryJobs, MemoryObjects
from kanon.reports.storage.budgets import CommitOutcome
from kanon.reports.storage.objects import NameTakenError


@pytest.mark.parametrize("most", [1, 1 << 20], ids=["in a file", "in memory"])
def test_an_object_is_never_overwritten(monkeypatch, most):
    monkeypatch.setattr(aggregate, "IN_MEMORY", most)
    with MemoryObjects() as place:
        for key, body in (("a/1", b"one"), ("b/1", b""), ("a/2", b"other"), ("a/1", b"one")):
            place.put_new(key, body)
        with pytest.raises(NameTakenError):
            place.put_new("a/1", b"two")
        assert [(one.key, one.size) for one in place.listed("a/", 9)] == [("a/1", 3), ("a/2", 5)]
        assert [place.read(key) for key in ("a/2", "a/1", "b/1")] == [b"other", b"one", b""]
        place.delete_under("a/")
        assert [one.key for one in place.listed("", 9)] == ["b/1"]


def test_jobs_in_memory_commit_once_and_leave_no_file(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    jobs = MemoryJobs()
    assert jobs.create("job", {}, 5, bytes(32))
    outcomes = [jobs.commit(job, [], None, "", parts=["p"]) for job in ("another", "job")]
    assert outcomes == [CommitOutcome.LEFT, CommitOutcome.COMMITTED]
    row = jobs.read("job")
    assert (row.secret, row.values) == (None, {"parts": ["p"], "committed_at": 5})
    jobs.close()
    assert list(tmp_path.iterdir()) == []
