"""Objects and the job of one process keep the promises of the bucket and of the table that they stand for."""

import pytest

from kanon.reports import aggregate
from kanon.reports.aggregate import MemoryJob, MemoryObjects
from kanon.reports.storage.objects import NameTakenError
from kanon.reports.storage.report_jobs import JobRow, State

ROW = JobRow("job", State.MAPPING, {}, 0, 0, bytes(32), {"plan": "p"})


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


def test_only_the_first_of_two_workers_moves_a_job():
    jobs = MemoryJob(ROW)
    assert jobs.read("another") is None
    assert jobs.move(ROW, State.MATCHING, 5, manifest="m")
    assert not jobs.move(ROW, State.FINISHED, 6, code="late")
    assert (jobs.row.state, jobs.row.values) == (State.MATCHING, {"plan": "p", "manifest": "m"})


@pytest.mark.parametrize(("to", "kept"), [(State.COMMITTING, True), (State.COMMITTED, False), (State.FINISHED, False)])
def test_a_job_that_has_committed_or_ended_has_no_secret(to, kept):
    jobs = MemoryJob(ROW)
    jobs.move(ROW, to, 5)
    assert (jobs.row.secret is not None) == kept


def test_the_first_result_of_a_part_stands_until_the_job_ends():
    jobs = MemoryJob(ROW)
    assert [jobs.record("job", "map", 1, value, 5) for value in ("first", "second")] == ["first", "first"]
    jobs.recorded("job", "map").clear()
    assert jobs.recorded("job", "map") == {1: "first"}
    jobs.forget_work("job")
    assert jobs.recorded("job", "map") == {}
