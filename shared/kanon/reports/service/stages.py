"""The work of ``aggregate``: takes a job from stage to stage up to its publication.

Every stage may run any number of times, at once or late, and may crash. Objects are named by their content, the first
record of a worker's result is kept, and each change of state is one conditional write. Only the commit spends.
"""

import json
from collections import Counter as Tally
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from itertools import chain
from typing import Any

from botocore.exceptions import ClientError

from kanon.noise.words import NoiseKey
from kanon.reports.account import Source, units
from kanon.reports.avro import part_names, write_summary
from kanon.reports.errors import Counter, JobError
from kanon.reports.matching import skip_lists
from kanon.reports.noise import Randomness
from kanon.reports.reducing import reduce_partition
from kanon.reports.service.committing import Committing, Outcome, exhausted
from kanon.reports.service.epoch import REPLACED, REPLACED_MESSAGE
from kanon.reports.service.exhaustion import named_exhausted
from kanon.reports.service.failing import NOTHING_SPENT, fail, untold
from kanon.reports.service.messages import Message, StageMessage
from kanon.reports.service.plan import Bucket, Plan, Ring, percent, read_plan, write_plan
from kanon.reports.service.requests import JobRequest
from kanon.reports.service.shards import missing_shards
from kanon.reports.storage.budgets import (
    MOST_ROWS,
    Amount,
    Charge,
    charges,
)
from kanon.reports.storage.objects import FORBIDDEN, NO_BUCKET, Objects, TakenError
from kanon.reports.storage.report_jobs import BEFORE_COMMIT, STAGED_KEPT, ReportJobs, Row, State
from kanon.reports.storage.work import Shard, Work, sources_as_json, sources_of

EXHAUSTED, LATE, NOT_WRITTEN = "PRIVACY_BUDGET_EXHAUSTED", "RETRIES_EXHAUSTED", "RESULT_WRITE_ERROR"
CODES = {Outcome.EXHAUSTED: EXHAUSTED, Outcome.LATE: LATE, Outcome.REPLACED: REPLACED}
MESSAGES = {
    EXHAUSTED: (
        "units have less budget left than the job asks for: see the file beside the output, ask for a smaller epsilon,"
        " leave their reports out, or set skip_exhausted"
    ),
    LATE: "the job did not end within 24 hours: create a new job",
    REPLACED: REPLACED_MESSAGE,
}


class WaitError(Exception):
    """A unit is held by another job that is committing. Run the stage again later."""


@dataclass(frozen=True)
class Stages:
    """The stages with their tables, buckets and keys.

    Attributes:
        jobs: the jobs.
        committing: the commit, for an epoch of the budgets.
        work: the work bucket.
        bucket: a bucket of inputs and outputs by its name.
        request: reads the stored request of a job.
        ring: the keys that reports may be encrypted to.
        noise_key: the key of the noise.
        deployment: the name of the deployment.
        clock: unix seconds.
        ended: called with the return code if a run ends its job.
    """

    jobs: ReportJobs
    committing: Callable[[str], Committing]
    work: Objects
    bucket: Bucket
    request: Callable[[Row], JobRequest]
    ring: Callable[[], Ring]
    noise_key: NoiseKey
    deployment: str
    clock: Callable[[], float]
    ended: Callable[[str], None] = untold

    def run(self, message: StageMessage, has_time: Callable[[], bool] = lambda: True) -> list[Message]:
        """Take a job as far as it goes.

        Args:
            message: which job.
            has_time: whether there is time for one more stage. The first stage always begins.

        Returns:
            Messages to send: without them the job waits for the sweep.

        Raises:
            WaitError: a unit is held by another job.
        """
        seen: list[State] = []
        while (row := self.jobs.read(message.job)) is not None and row.state not in seen:
            if seen and not has_time():
                return [StageMessage(job=row.job)]
            seen.append(row.state)
            try:
                sent = self._stage(row, message.part)
            except JobError as error:
                if fail(self.jobs, row, error, self.clock()):
                    self.ended(error.code)
                elif self._is_stuck(row):
                    raise
                continue
            except Exception as error:
                error.add_note(row.state)
                raise
            if sent is not None:
                return sent
        return []

    def resumed(self, job: str) -> list[Message]:
        """The messages that continue a job whose own messages may be lost."""
        row = self.jobs.read(job)
        if row is None:
            return []
        if row.state in BEFORE_COMMIT and self.clock() >= row.deadline:
            return [StageMessage(job=job)]
        if row.state in (State.MAPPING, State.REMAPPING):
            work = Work(self.work, job)
            manifest = work.json(row.values["manifest"])["skips"] if row.state is State.REMAPPING else None
            found = missing_shards(self.jobs, row, read_plan(work, row.values["plan"]), manifest)
            return [*found] or [StageMessage(job=job)]
        if row.state is State.REDUCING:
            return self._unreduced(row) or [StageMessage(job=job)]
        return [StageMessage(job=job)]

    def _is_stuck(self, row: Row) -> bool:
        """Whether a job that has begun to commit is still where an error met it: no worker has taken it further."""
        now = self.jobs.read(row.job)
        return row.state not in BEFORE_COMMIT and now is not None and now.state is row.state

    def _stage(self, row: Row, part: int | None) -> list[Message] | None:
        """Run the stage of the job's state; None if the job may be in another state now."""
        if row.state is State.FINISHED:
            Work(self.work, row.job).forget()
            return []
        late = self.clock() >= row.deadline
        match row.state:
            case State.ABORTING:
                return self._abort(row)
            case State.COMMITTED:
                return self._publish(row)
            case State.COMMITTING:
                return self._commit(row)
            case _ if late:
                raise JobError(LATE, MESSAGES[LATE])
            case State.RECEIVED:
                return self._plan(row)
            case State.MAPPING:
                return self._mapped(row)
            case State.MATCHING:
                return self._match(row)
            case State.REMAPPING:
                return self._remapped(row)
            case _:
                return self._reduce(row, part)

    def _plan(self, row: Row) -> list[Message] | None:
        work, request = Work(self.work, row.job), self.request(row)
        name, plan = write_plan(row, request, self.ring(), work, self.bucket)
        now = self.clock()
        if not self.jobs.move(row, State.MAPPING, now, plan=name, started=int(now)):
            return None
        mapping = self.jobs.read(row.job)
        return [] if mapping is None else [*missing_shards(self.jobs, mapping, plan, None)]

    def _mapped(self, row: Row) -> list[Message] | None:
        plan = self._plan_of(row)
        if self.jobs.recorded(row.job, "map").keys() < set(range(len(plan.shards))):
            return []
        self.jobs.move(row, State.MATCHING, self.clock())
        return None

    def _match(self, row: Row) -> list[Message] | None:
        """Pin the shards that must be mapped again, and the reports that they leave out."""
        work, request = Work(self.work, row.job), self.request(row)
        names = self.jobs.recorded(row.job, "map")
        shards = [work.shard(names[number]) for number in sorted(names)]
        skips = skip_lists([work.ids(shard.ids) for shard in shards])
        without = self._short_of_budget(request, shards) if request.skip_exhausted else frozenset()
        again = [
            number for number, shard in enumerate(shards) if skips[number] or not without.isdisjoint(shard.sources)
        ]
        if not again:
            return self._matched(row, work, request, [names[number] for number in sorted(names)], frozenset())
        manifest = work.put_json(
            "manifest",
            {
                "shards": {str(number): name for number, name in names.items()},
                "skips": {str(number): work.put_ids(skips[number]) for number in again},
                "without": sources_as_json(without),
            },
        )
        if not self.jobs.move(row, State.REMAPPING, self.clock(), manifest=manifest):
            return None
        return self.resumed(row.job)

    def _remapped(self, row: Row) -> list[Message] | None:
        work = Work(self.work, row.job)
        manifest = work.json(row.values["manifest"])
        again = self.jobs.recorded(row.job, "remap")
        if again.keys() < set(map(int, manifest["skips"])):
            return []
        names = {int(number): name for number, name in manifest["shards"].items()} | again
        without = sources_of(manifest["without"])
        return self._matched(row, work, self.request(row), [names[number] for number in sorted(names)], without)

    def _matched(
        self, row: Row, work: Work, request: JobRequest, names: Sequence[str], without: frozenset[Source]
    ) -> list[Message] | None:
        """Pin the results and the units of account that later stages use."""
        shards = [work.shard(name) for name in names]
        errors = sum((shard.errors for shard in shards), Tally[Counter]())
        reports = sum(shard.reports for shard in shards)
        if percent(errors.total(), reports) > request.error_threshold:
            raise JobError("REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD", _too_many(errors, reports, request))
        sources = frozenset(chain.from_iterable(shard.sources for shard in shards))
        rows = len(charges(units(sources, request.filtering_ids)))
        if rows > MOST_ROWS:
            raise JobError(
                "INVALID_JOB",
                f"the reports belong to {rows:,} rows of budget, and a job charges at most {MOST_ROWS:,}: ask for fewer"
                " days, or name the attribution_destinations",
            )
        counted = {
            "reports": reports,
            "accepted": sum(shard.accepted for shard in shards),
            "duplicates": sum(shard.duplicates for shard in shards),
            "left_out": sum(shard.left_out for shard in shards),
            "errors": dict(sorted(errors.items())),
            "rows": rows,
        }
        if without:
            self._name_exhausted(row, request, without, "skipped")
        self.jobs.move(
            row,
            State.REDUCING,
            self.clock(),
            results=work.put_json("manifest", {"results": list(names)}),
            sources=work.put_json("units", sources_as_json(sources)),
            counters=counted,
        )
        reducing = self.jobs.read(row.job)
        if reducing is None or reducing.state is not State.REDUCING:
            return None
        messages = self._unreduced(reducing)
        return None if len(messages) == 1 else messages  # a summary of one part continues here

    def _unreduced(self, row: Row) -> list[Message]:
        recorded = self.jobs.recorded(row.job, "reduce")
        parts = range(self._plan_of(row).partitions)
        return [StageMessage(job=row.job, part=part) for part in parts if part not in recorded]

    def _reduce(self, row: Row, part: int | None) -> list[Message] | None:
        plan = self._plan_of(row)
        recorded = self.jobs.recorded(row.job, "reduce")
        mine = 0 if plan.partitions == 1 else part
        if mine is not None and mine < plan.partitions and mine not in recorded:
            value = self._part(row, plan, mine)
            recorded[mine] = self.jobs.record(row.job, "reduce", mine, value, self.clock())
            recorded = self.jobs.recorded(row.job, "reduce")
        if len(recorded) < plan.partitions:
            return None  # if the job has ended meanwhile, what this late worker wrote is deleted
        self.jobs.move(row, State.COMMITTING, self.clock())
        return None

    def _part(self, row: Row, plan: Plan, part: int) -> str:
        """Add noise to one part of the summary and store it. Returns its name, which reveals nothing about it."""
        if row.secret is None:
            raise JobError("INTERNAL_ERROR", "the job has no secret: create a new job")
        work, request = Work(self.work, row.job), self.request(row)
        results = work.json(row.values["results"])["results"]
        sums = (work.sums(work.shard(name).partitions[part]) for name in results)
        domain = plan.domain[part]
        randomness = Randomness(
            self.noise_key, self.deployment, row.job, row.secret, plan.digest, request.mode
        )  # fmt: skip
        keys = None if domain is None else work.keys(domain)
        release = reduce_partition(sums, keys, plan.parameters(request), randomness, part).release()
        file = BytesIO()
        write_summary(file, release.keys, release.metrics)
        return work.put_part(file.getvalue())

    def _commit(self, row: Row) -> list[Message] | None:
        plan, request = self._plan_of(row), self.request(row)
        wanted, amount = self._charged(row, request)
        parts = self.jobs.recorded(row.job, "reduce")
        outcome = Outcome.REPLACED
        if self._is_in_force(plan.epoch):
            outcome = self.committing(plan.epoch).commit(
                row.job, wanted, amount, row.claim, parts=[parts[number] for number in sorted(parts)]
            )
        if outcome is Outcome.WAIT:
            raise WaitError("a unit is held by another job")
        if outcome in CODES:
            code = CODES[outcome]
            message = f"{MESSAGES[code]}. {NOTHING_SPENT}"
            self.jobs.move(row, State.ABORTING, self.clock(), code=code, message=message)
        return None

    def _is_in_force(self, epoch: str) -> bool:
        """Whether the epoch of a plan is still that of the keys and of the budget table."""
        try:
            return self.ring().epoch == epoch
        except JobError:
            return False

    def _abort(self, row: Row) -> list[Message] | None:
        request = self.request(row)
        wanted, amount = self._charged(row, request)
        if not self.committing(self._plan_of(row).epoch).abort(row.job, wanted, amount, row.claim):
            return None
        if row.values["code"] == EXHAUSTED:
            self._name_exhausted(row, request, self._sources(row), "exhausted")
        if self.jobs.move(row, State.FINISHED, self.clock()):
            self.ended(row.values["code"])
        return None

    def _publish(self, row: Row) -> list[Message] | None:
        """Copy the parts to the output, byte for byte. A part that is there already is done."""
        if self.clock() >= row.values["committed_at"] + STAGED_KEPT:
            self._end(row, code=NOT_WRITTEN, message="the summary was not published within 30 days, and is deleted")
            return None
        work, request = Work(self.work, row.job), self.request(row)
        work.forget_sums()
        bucket, prefix = row.values.get("output", [request.output_bucket, request.output_prefix])
        place = self.bucket(bucket)
        try:
            for name, output in zip(row.values["parts"], part_names(prefix, len(row.values["parts"])), strict=True):
                place.put_new(output, work.part(name))
        except TakenError:
            return self._not_written(row, "an object of the output's name exists: publish under another prefix")
        except ClientError as error:
            if error.response["Error"]["Code"] not in FORBIDDEN | NO_BUCKET:
                raise
            return self._not_written(row, "the output bucket may not be written: publish to another bucket")
        code = "SUCCESS_WITH_ERRORS" if row.values["counters"]["errors"] else "SUCCESS"
        self._end(row, code=code, message="", output=[bucket, prefix])
        return None

    def _end(self, row: Row, **values: Any) -> None:
        """Finish a committed job with these values, among them its code."""
        if self.jobs.move(row, State.FINISHED, self.clock(), **values):
            self.ended(values["code"])
        self.jobs.forget_work(row.job)

    def _not_written(self, row: Row, why: str) -> list[Message]:
        """Record the failed publication. The job stays committed, and publishing again costs no budget."""
        message = f"{why}, free of charge"
        self.jobs.move(row, State.COMMITTED, self.clock(), code=NOT_WRITTEN, message=message)
        return []

    def _short_of_budget(self, request: JobRequest, shards: Sequence[Shard]) -> frozenset[Source]:
        """The sources whose units have less left than the job asks for."""
        sources = frozenset(chain.from_iterable(shard.sources for shard in shards))
        amount = Amount.of(request.epsilon, request.delta)
        budgets = self.committing("").budgets
        short = {unit for unit, _ in exhausted(budgets, units(sources, request.filtering_ids), amount)}
        return frozenset(source for source in sources if not short.isdisjoint(units([source], request.filtering_ids)))

    def _name_exhausted(self, row: Row, request: JobRequest, sources: Collection[Source], what: str) -> None:
        """Write which units of these sources are short of budget beside the output, unless the file exists."""
        budgets, amount = self.committing("").budgets, Amount.of(request.epsilon, request.delta)
        received = datetime.fromtimestamp(row.received_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        folder = request.output_prefix.rpartition("/")[0]
        job = sha256(row.job.encode()).hexdigest()[:8]
        name = f"{folder}/" * bool(folder) + f"privacy_budget_{what}_{received}_{job}.json"
        body = json.dumps(named_exhausted(budgets, sources, request.filtering_ids, amount), indent=1).encode()
        try:
            self.bucket(request.output_bucket).put_new(name, body)
        except TakenError:
            return
        except ClientError as error:
            if error.response["Error"]["Code"] not in FORBIDDEN | NO_BUCKET:
                raise

    def _charged(self, row: Row, request: JobRequest) -> tuple[list[Charge], Amount]:
        return charges(units(self._sources(row), request.filtering_ids)), Amount.of(request.epsilon, request.delta)

    def _sources(self, row: Row) -> frozenset[Source]:
        return sources_of(Work(self.work, row.job).json(row.values["sources"]))

    def _plan_of(self, row: Row) -> Plan:
        return read_plan(Work(self.work, row.job), row.values["plan"])


def _too_many(errors: Tally[Counter], reports: int, request: JobRequest) -> str:
    counted = ", ".join(f"{counter} {count}" for counter, count in sorted(errors.items()))
    return (
        f"{errors.total()} of {reports} reports are in error ({counted}), more than"
        f" {float(request.error_threshold):g} percent: fix the reports, or raise report_error_threshold_percentage"
    )
