"""``kanon operate new-report-keys`` and ``accept-report-jobs``: reports after one of their tables was replaced.

**A new epoch of keys** follows a replaced budget table, or a private key that leaked. Every key ends immediately and
its private key is destroyed. Then no report encrypted to it can be opened, and none is charged to a table that may lack
spent budgets. The new epoch is one transaction on the ring and the table. It is safe to interrupt the command anywhere:
run it again, or let the function ``rotate`` finish.

**Accepting a table of jobs** lets jobs run on a table ReportJobs that was created again or restored. A restored table
brings back unfinished jobs. Those that have not begun to commit end by themselves, because no job is planned or commits
on a table that is not accepted. So the command waits for them: no job of a backup continues.
"""

from kanon.operate.changes import ChangeRefusedError
from kanon.operate.running_reports import RunningReports
from kanon.operate.stacks import RunningStack
from kanon.reports.service.rotation import Rotation
from kanon.reports.storage.key_ring import PrivateKeys, StoredRing
from kanon.reports.storage.report_jobs import State


def current_keys(stack: RunningStack) -> tuple[StoredRing, bool]:
    """The ring, and whether table Budgets is not the one for which its keys were issued.

    Raises:
        ChangeRefusedError: the stack has no keys.
    """
    epoch = _reports(stack).epoch
    keys = epoch.ring.read()
    if keys is None:
        raise ChangeRefusedError(
            "the stack has no keys yet: nothing was changed; the first ones come within five minutes"
        )
    return keys, not epoch.is_of(keys)


def renew_keys(stack: RunningStack, seen: StoredRing, now: float) -> None:
    """Begin a new epoch at ``now`` (Unix s) and destroy all keys.

    The next rotation, within five minutes, issues the first new key.

    Raises:
        ChangeRefusedError: the table has changed, or the ring is no longer as ``seen``.
    """
    reports = _reports(stack)
    settings = reports.rotate
    private = PrivateKeys(reports.client("secretsmanager"), settings.report_key_prefix, settings.kms_key)
    rotation = Rotation(reports.epoch, private)
    if not rotation.epoch.renew(seen):
        raise ChangeRefusedError(
            "the keys or the table have changed meanwhile: nothing was changed, run the command again"
        )
    while (keys := rotation.epoch.ring.read()) is not None and rotation.destroy_one(keys, now):
        pass


def replaced_jobs(stack: RunningStack) -> StoredRing:
    """The key ring, which names another table of jobs.

    Raises:
        ChangeRefusedError: there is nothing to accept, or unfinished jobs of the replaced table may still commit.
    """
    reports = _reports(stack)
    keys = reports.key_ring.read()
    if keys is None or reports.epoch.has_jobs_of(keys):
        raise ChangeRefusedError("table ReportJobs was not replaced: nothing was changed")
    rows = filter(None, map(reports.report_jobs.read, reports.report_jobs.unfinished()))
    if left := sum(row.state not in (State.COMMITTED, State.FINISHED) for row in rows):
        raise ChangeRefusedError(
            f"{left} jobs of the replaced table have not ended: nothing was changed. They end by themselves within ten"
            " minutes and spend nothing: run the command again then"
        )
    return keys


def accept_jobs(stack: RunningStack, seen: StoredRing) -> None:
    """Let jobs run on the present table.

    Raises:
        ChangeRefusedError: the ring is no longer as ``seen``.
    """
    reports = _reports(stack)
    if not reports.epoch.accept_jobs(seen):
        raise ChangeRefusedError("the keys have changed meanwhile: nothing was changed, run the command again")


def _reports(stack: RunningStack) -> RunningReports:
    if stack.reports is None:
        raise ChangeRefusedError("Reports is OFF in this stack: nothing was changed")
    return stack.reports
