"""The checks of ``kanon doctor`` for reports: jobs, keys, budgets, queues, schedules, tables. They only read.

Names of jobs are shown, because an operator needs them. No origin, no key of a histogram, no sum and no secret is read.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

from kanon.dynamo.tables import described
from kanon.findings import Finding, Section, Verdict, moment
from kanon.operate.changes import changed_fingerprints
from kanon.operate.findings import environment_finding, queue_finding, readable, schedule_finding
from kanon.operate.running_reports import QUEUES, SCHEDULES, RunningReports
from kanon.reports.settings import RecordedSettings, fingerprints
from kanon.reports.storage.key_ring import NEW_EVERY, PUBLISHED
from kanon.reports.storage.report_jobs import STUCK, JobRow, State

HOUR = 3600
LATE = 12 * HOUR
"""The allowed delay of a new key in seconds; rotation runs every five minutes."""
SHOWN = 5
"""The largest number of jobs that a finding names."""


def examine_reports(reports: RunningReports, now: float) -> list[Finding]:
    """All findings about reports, in the order of the checks; ``now`` in Unix seconds."""
    return [finding for name, check in CHECKS.items() for finding in readable(name)(check)(reports, now)]


def _environments(reports: RunningReports, _: float) -> Iterator[Finding]:
    functions = (reports.collect, reports.jobs, reports.decrypt, reports.aggregate, reports.rotate)
    names = sorted({name for each in functions for name in type(each).model_fields})
    good, section = "they have consistent environments", Section.REPORT_FUNCTION_ERRORS
    yield environment_finding("report functions", functions, names, good, section)


def _fingerprints(reports: RunningReports, _: float) -> Iterator[Finding]:
    """Whether a deployment changed an immutable value: then these functions refuse to work."""
    check = "report fingerprints"
    recorded = RecordedSettings(reports.client("dynamodb"), reports.aggregate.control_table)
    changed: set[str] = set()
    started = []
    for function, settings in (("jobs", reports.jobs), ("decrypt", reports.decrypt), ("aggregate", reports.aggregate)):
        known = recorded.recorded(function)
        started += [function] if known else []
        changed.update(changed_fingerprints(known, fingerprints(settings)))
    if changed:
        seen = f"changed since the functions first started: {', '.join(sorted(changed))}"
        advice = "undo the change and deploy; other values need a new stack"
        yield Finding(check, Verdict.FAIL, seen, advice, Section.REPORT_FUNCTION_ERRORS)
    elif started:
        yield Finding(check, Verdict.OK, f"unchanged since they first started: {', '.join(started)}")
    else:
        yield Finding(check, Verdict.NOT_SEEN, "jobs, decrypt and aggregate have not started yet")


def _keys(reports: RunningReports, now: float) -> Iterator[Finding]:
    """Whether clients have a key, and whether the next one is late."""
    check, section = "report keys", Section.KEYS_MISSING
    ring = reports.key_ring.read()
    if ring is None:
        yield Finding(check, Verdict.NOT_SEEN, "rotate has not run yet: it issues the first key within five minutes")
        return
    published = ring.published(now)
    if not published:
        yield Finding(
            check, Verdict.FAIL, "none is published: clients cannot encrypt reports",
            "find out why rotate fails: nothing else issues keys", section,
        )  # fmt: skip
        return
    last = max(key.published_until for key in published)
    seen = f"{len(published)} published, the last one until {moment(last)}; {len(ring.opening(now))} open reports"
    if last - now < PUBLISHED - NEW_EVERY - LATE:
        advice = "find out why rotate issues no new key: without one, clients cannot encrypt reports then"
        yield Finding(check, Verdict.WARN, seen, advice, section)
    else:
        yield Finding(check, Verdict.OK, seen)


def _budget_table(reports: RunningReports, _: float) -> Iterator[Finding]:
    """Whether Budgets is the table for which the keys were issued: another one would refill every budget."""
    check = "budget table"
    ring = reports.key_ring.read()
    if ring is None:
        yield Finding(check, Verdict.NOT_SEEN, "rotate has not run yet")
    elif ring.withdrawn or not reports.epoch.is_of(ring):
        seen = "not the one on which the keys were issued: it was restored, created again or filled by hand"
        advice = "no job commits until then: run `kanon operate new-report-keys`"
        yield Finding(check, Verdict.FAIL, seen, advice, Section.BUDGET_TABLE_REPLACED)
    else:
        yield Finding(check, Verdict.OK, "the one on which the keys were issued")


def _job_table(reports: RunningReports, _: float) -> Iterator[Finding]:
    """Whether ReportJobs is the table that the stack began with: a restored one brings back jobs and their secrets."""
    check = "job table"
    ring = reports.key_ring.read()
    if ring is None or ring.jobs_id is None:
        yield Finding(check, Verdict.NOT_SEEN, "rotate has not recorded it yet")
    elif reports.epoch.has_jobs_of(ring):
        yield Finding(check, Verdict.OK, "the one that the stack began with")
    else:
        seen = "not the one that the stack began with: it was restored or created again"
        advice = "no job runs until then: run `kanon operate accept-report-jobs`"
        yield Finding(check, Verdict.FAIL, seen, advice, Section.JOB_TABLE_LOST)


def _jobs(reports: RunningReports, now: float) -> Iterator[Finding]:
    """Jobs that should have ended, and results that could not be written."""
    jobs = reports.report_jobs
    rows = [row for row in map(jobs.read, jobs.unfinished()) if row is not None and row.state is not State.FINISHED]
    unwritten = [row for row in rows if row.state is State.COMMITTED and row.values.get("code")]
    stuck = [row for row in rows if row not in unwritten and now - row.received_at >= STUCK]
    if stuck:
        states = ", ".join(f"{state} {len(list(some))}" for state, some in groupby(sorted(row.state for row in stuck)))
        seen = f"{_names_of(stuck)} not finished after 12 hours ({states})"
        advice = "find out why decrypt or aggregate fails; a job that has not begun to commit ends after 24 hours"
        yield Finding("report jobs", Verdict.WARN, seen, advice, Section.STUCK_JOBS)
    else:
        yield Finding("report jobs", Verdict.OK, f"{len(rows)} not finished, none for more than 12 hours")
    if unwritten:
        seen = f"{_names_of(unwritten)}: the result is final and could not be written"
        advice = "publish it again, elsewhere if need be: it costs no budget, for 30 days"
        yield Finding("publications", Verdict.WARN, seen, advice, Section.PUBLICATION_FAILED)
    else:
        yield Finding("publications", Verdict.OK, "none has failed")


def _names_of(rows: Sequence[JobRow]) -> str:
    """The number of jobs, and some of their names."""
    names = [row.job for row in sorted(rows, key=lambda row: row.received_at)[:SHOWN]]
    more = len(rows) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")


def _holds(reports: RunningReports, _: float) -> Iterator[Finding]:
    """Rows of Budgets that are held by jobs which are neither committing nor aborting."""
    check = "budget holds"
    jobs, budgets = reports.report_jobs, reports.budgets
    dead: dict[str, bool] = {}
    found: dict[str, list[bytes]] = {}
    for row, job in budgets.holders():
        if job not in dead:
            dead[job] = not _holds_rightly(jobs.read(job))
        if dead[job]:
            found.setdefault(job, []).append(row)
    # A job that has ended may have given back a row between the two reads: read again.
    held = {job: [r for r in rows if any(job == one for one, _, _ in budgets.taken(r))] for job, rows in found.items()}
    count = sum(map(len, held.values()))
    if count:
        seen = f"{count} rows hold budget of {sum(map(bool, held.values()))} jobs that will not commit"
        advice = "report it as a defect: that budget is lost until its rows expire; nothing else is affected"
        yield Finding(check, Verdict.FAIL, seen, advice, Section.HELD_BUDGET)
    else:
        yield Finding(check, Verdict.OK, f"every row belongs to one of {len(dead)} jobs that may hold it")


def _holds_rightly(row: JobRow | None) -> bool:
    return row is not None and (row.committed or row.state in (State.COMMITTING, State.ABORTING))


def _dead_letters(reports: RunningReports, _: float) -> Iterator[Finding]:
    for queue in QUEUES:
        yield queue_finding(
            f"dead letters of {queue}", reports.client("sqs"), reports.dead_letters[queue], 0,
            "find the cause, then move the messages back to their queue", Section.REPORT_DEAD_LETTERS,
        )  # fmt: skip


def _schedules(reports: RunningReports, _: float) -> Iterator[Finding]:
    for function, (advice, section) in SCHEDULED.items():
        check = f"schedule of {function}"
        if reports.deployed:
            client, name = reports.client("scheduler"), reports.schedules.get(SCHEDULES[function])
            yield schedule_finding(check, client, name, advice, section)
        else:
            yield Finding(check, Verdict.NOT_SEEN, "a local stack calls the function itself")


SCHEDULED = {
    "aggregate": (
        "enable it, or deploy again: nothing else continues a job whose message was lost",
        Section.STUCK_JOBS,
    ),
    "rotate": ("enable it, or deploy again: nothing else issues keys", Section.KEYS_MISSING),
}
"""What to do if a function's schedule is off, and where to read on."""


def _tables(reports: RunningReports, _: float) -> Iterator[Finding]:
    """Whether deletion protection is on, and no table has a stream or backup."""
    dynamodb = reports.client("dynamodb")
    tables = described(dynamodb, reports.tables)
    open_ = [name for name, table in tables.items() if not table.get("DeletionProtectionEnabled")]
    if not reports.deployed:
        yield Finding("deletion of report tables", Verdict.NOT_SEEN, "a local stack ends with its process")
    elif open_:
        advice = "the first deployment succeeded: set ReportsDeletionProtection=ON and deploy again"
        yield Finding("deletion of report tables", Verdict.WARN, f"{', '.join(open_)}: not protected", advice)
    else:
        yield Finding("deletion of report tables", Verdict.OK, "protected")
    check, section = "copies of report tables", Section.REPORT_TABLE_COPIES
    copied = [f"{name}: has a stream" for name, table in tables.items() if table.get("StreamSpecification")]
    for name, table in reports.tables.items():
        backups = dynamodb.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
        recovery = backups.get("PointInTimeRecoveryDescription", {})
        if recovery.get("PointInTimeRecoveryStatus") == "ENABLED":
            copied.append(f"{name}: has point-in-time recovery")
    if copied:
        advice = "turn it off: a copy keeps what names the noise of a job, and refills budgets if it is restored"
        yield Finding(check, Verdict.FAIL, "; ".join(copied), advice, section)
    else:
        yield Finding(check, Verdict.OK, "no stream and no point-in-time recovery")


CHECKS: dict[str, Callable[[RunningReports, float], Iterator[Finding]]] = {
    "report functions": _environments,
    "report fingerprints": _fingerprints,
    "report keys": _keys,
    "budget table": _budget_table,
    "job table": _job_table,
    "report jobs": _jobs,
    "budget holds": _holds,
    "dead letters": _dead_letters,
    "schedules of reports": _schedules,
    "report tables": _tables,
}
"""The checks, by the name of the finding if a check cannot read."""
