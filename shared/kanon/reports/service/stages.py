"""The work of ``aggregate``: takes a job from stage to stage up to its publication.

Every stage may run any number of times, concurrently or late, and may crash. Objects are named by their content, the
first record of a worker's result is kept, and each change of state is one conditional write. Only the commit spends.
"""

import json
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from io import BytesIO
from itertools import chain
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kanon.errors import Error
from kanon.noise.words import NoiseKey
from kanon.reports.avro import part_names, write_summary
from kanon.reports.errors import NOT_WRITTEN, REPLACED, Counter, JobError
from kanon.reports.histogram import Histogram, skip_lists
from kanon.reports.job import DEFAULT_ERROR_THRESHOLD, JobRequest
from kanon.reports.noise import Noised, Randomness, reduce_partition
from kanon.reports.service.rotation import SPENT_MESSAGE
from kanon.reports.service.shards import (
    NOTHING_SPENT,
    UNPUBLISHED,
    Inputs,
    JobPlan,
    Ring,
    Worker,
    inputs_of,
    released_keys,
    write_plan,
)
from kanon.reports.shared_info import ReportSource, Unit, moment, units
from kanon.reports.storage.budgets import (
    BudgetsLeft,
    CommitOutcome,
    Spending,
    charges,
    exhausted,
    named_exhausted,
    rows_charged,
)
from kanon.reports.storage.objects import NameTakenError, UnwritableError
from kanon.reports.storage.report_jobs import (
    BEFORE_COMMIT,
    STAGED_KEPT,
    JobRow,
    MapMessage,
    Message,
    ReleasedKeys,
    StageMessage,
    State,
    output_of,
)
from kanon.reports.storage.work import Shard, sources_as_json, sources_of

EXHAUSTED, LATE = "PRIVACY_BUDGET_EXHAUSTED", "RETRIES_EXHAUSTED"
CODES = {CommitOutcome.EXHAUSTED: EXHAUSTED, CommitOutcome.LATE: LATE, CommitOutcome.REPLACED: REPLACED}
MESSAGES = {
    EXHAUSTED: (
        "units have less budget left than the job asks for: see the file beside the output, ask for a smaller epsilon,"
        " leave their reports out, or set skip_exhausted"
    ),
    LATE: "the job did not end within 24 hours: create a new job",
    REPLACED: "the table of budgets or of jobs was replaced: an operator must act, see the operator's guide",
}


class WaitError(Error):
    """Another job that is committing holds the budget of a unit. Run the stage again later."""


def summary_of(noised: Noised) -> bytes:
    """The file of one part of a summary."""
    release, file = noised.release(), BytesIO()
    write_summary(file, release.keys, release.metrics)
    return file.getvalue()


def check_errors(errors: Tally[Counter], reports: int, most: Fraction | None, option: str) -> None:
    """Check the share of the reports that are in error.

    Args:
        errors: reports that are not accepted, by counter.
        reports: all reports but those that are left out.
        most: percent; None: all but one, because anybody can send reports in error.
        option: what the user may raise.

    Raises:
        JobError: the share is larger than ``most``.
    """
    total = errors.total()
    if (0 < total == reports) if most is None else (100 * total > most * reports):
        share = "so none counts" if most is None else f"more than {float(most):g} percent"
        counted = ", ".join(f"{counter} {count}" for counter, count in sorted(errors.items()))
        raise JobError(
            "REPORTS_WITH_ERRORS_EXCEEDED_THRESHOLD",
            f"{total} of {reports} reports are in error ({counted}), {share}: fix the reports, or raise {option}",
            errors,
        )


@dataclass(frozen=True, kw_only=True)
class Stages(Worker):
    """The stages with their tables, buckets and keys.

    Attributes:
        committing: the commit, for an epoch of the budgets.
        ring: the keys that reports may be encrypted to.
        collected: the bucket of the collector, to which anybody may send.
        digests: SHA-256 of each value of a list, if the keys of jobs are not kept on receipt.
        threshold_name: what a user may raise if too many reports are in error.
    """

    budgets: BudgetsLeft
    committing: Callable[[str], Spending]
    ring: Callable[[], Ring]
    noise_key: NoiseKey
    deployment: str
    collected: str
    digests: Callable[[ReleasedKeys], Iterable[bytes]] = lambda _: ()
    threshold_name: str = "report_error_threshold_percentage"

    def run(
        self,
        message: StageMessage,
        has_time: Callable[[], bool] = lambda: True,
        begins: Callable[[State], None] = lambda _: None,
    ) -> list[Message]:
        """Take a job as far as it goes.

        Args:
            message: which job.
            has_time: whether there is time for one more stage. The first stage always begins.
            begins: called with the job's state before the stage of this state runs.

        Returns:
            Messages to send: without them the job waits for the sweep.

        Raises:
            WaitError: another job holds the budget of a unit.
        """
        seen: list[State] = []
        while (row := self.jobs.read(message.job)) is not None and row.state not in seen:
            if seen and not has_time():
                return [StageMessage(job=row.job)]
            seen.append(row.state)
            begins(row.state)
            try:
                sent = self._stage(row, message.part)
            except JobError as error:
                if not self.fail(row, error) and self._is_stuck(row):
                    raise
                continue
            if sent is not None:
                return sent
        return []

    def resumed(self, job: str) -> list[Message]:
        """The messages that continue a job whose own messages may be lost."""
        row = self.jobs.read(job)
        if row is None:
            return []
        late = row.state in BEFORE_COMMIT and self.clock() >= row.deadline
        return ([] if late else self._unrecorded(row)) or [StageMessage(job=job)]

    def _unrecorded(self, row: JobRow) -> list[Message]:
        """The messages for the shards, or parts of the summary, that are not recorded; none in the other states."""
        if row.state is State.REDUCING:
            parts, reduced = range(self.plan_of(row).partitions), self.jobs.recorded(row.job, "reduce")
            return [StageMessage(job=row.job, part=part) for part in parts if part not in reduced]
        stage: Literal["map", "remap"]
        if row.state is State.MAPPING:
            stage, shards = "map", [*range(len(self.plan_of(row).shards))]
        elif row.state is State.REMAPPING:
            stage, shards = "remap", sorted(map(int, self.work_of(row).json(row.values["manifest"])["skips"]))
        else:
            return []
        mapped = self.jobs.recorded(row.job, stage)
        return [MapMessage(job=row.job, stage=stage, shard=shard) for shard in shards if shard not in mapped]

    def _is_stuck(self, row: JobRow) -> bool:
        """Whether a job that has begun to commit is still where an error met it: no worker has taken it further."""
        if row.state in BEFORE_COMMIT:
            return False
        now = self.jobs.read(row.job)
        return now is not None and now.state is row.state

    def _stage(self, row: JobRow, part: int | None) -> list[Message] | None:
        """Run the stage of the job's state; None if the job may be in another state now."""
        if row.state is State.FINISHED:
            self.work_of(row).forget()
            return []
        if row.state in BEFORE_COMMIT and self.clock() >= row.deadline:
            raise JobError(LATE, MESSAGES[LATE])
        if row.state is State.REDUCING:
            return self._reduce(row, part)
        stages = {
            State.RECEIVED: self._plan,
            State.MAPPING: self._mapped,
            State.MATCHING: self._match,
            State.REMAPPING: self._remapped,
            State.COMMITTING: self._commit,
            State.ABORTING: self._abort,
            State.COMMITTED: self._publish,
        }
        return stages[row.state](row)

    def inputs(self, request: JobRequest, received_at: int) -> Inputs:
        """What the job reads, as it is now."""
        return inputs_of(request, self.bucket, received_at)

    def rows(self, charged: Sequence[Unit]) -> int:
        """The number of rows of budget that a job with these units charges."""
        return rows_charged(charged)

    def _plan(self, row: JobRow) -> list[Message] | None:
        request = self.request(row)
        inputs = self.inputs(request, row.received_at)
        if (pinned := ReleasedKeys.of(row)) is not None:
            inputs = replace(inputs, keys=self._released(row, pinned))
        plan = write_plan(row, request, self.ring(), self.work_of(row), inputs)
        now = self.clock()
        if not self.jobs.move(row, State.MAPPING, now, plan=plan, started=int(now)):
            return None
        return self.resumed(row.job)

    def _released(self, row: JobRow, pinned: ReleasedKeys) -> NDArray[np.bytes_]:
        """The keys of a list. They were kept on the job's receipt, or are read now."""
        if pinned.name:
            return self.work_of(row).ids(pinned.name)
        return released_keys(self.digests(pinned), pinned.count)

    def _mapped(self, row: JobRow) -> list[Message] | None:
        plan = self.plan_of(row)
        if self.jobs.recorded(row.job, "map").keys() < set(range(len(plan.shards))):
            return []
        self.jobs.move(row, State.MATCHING, self.clock())
        return None

    def _match(self, row: JobRow) -> list[Message] | None:
        """Pin the shards that must be mapped again, and the reports that they leave out."""
        work, request = self.work_of(row), self.request(row)
        names = self.jobs.recorded(row.job, "map")
        in_order = [names[number] for number in sorted(names)]
        shards = [work.shard(name) for name in in_order]
        skips = skip_lists([work.ids(shard.ids) for shard in shards])
        without = self._short_of_budget(request, shards) if request.skip_exhausted else frozenset()
        again = [
            number for number, shard in enumerate(shards) if skips[number] or not without.isdisjoint(shard.sources)
        ]
        if not again:
            return self._matched(row, in_order, frozenset())
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

    def _remapped(self, row: JobRow) -> list[Message] | None:
        manifest = self.work_of(row).json(row.values["manifest"])
        again = self.jobs.recorded(row.job, "remap")
        if again.keys() < set(map(int, manifest["skips"])):
            return []
        names = {int(number): name for number, name in manifest["shards"].items()} | again
        without = sources_of(manifest["without"])
        return self._matched(row, [names[number] for number in sorted(names)], without)

    def _matched(self, row: JobRow, names: Sequence[str], without: frozenset[ReportSource]) -> list[Message] | None:
        """Pin the results and the units of account that later stages use."""
        work, request = self.work_of(row), self.request(row)
        shards = [work.shard(name) for name in names]
        errors = sum((shard.errors for shard in shards), Tally[Counter]())
        reports = sum(shard.reports for shard in shards)
        left_out = sum(shard.left_out for shard in shards)
        most = request.error_threshold
        if most is None and request.input_bucket != self.collected:
            most = DEFAULT_ERROR_THRESHOLD
        check_errors(errors, reports - left_out, most, self.threshold_name)
        sources = frozenset(chain.from_iterable(shard.sources for shard in shards))
        counted = {
            "reports": reports,
            "accepted": sum(shard.accepted for shard in shards),
            "duplicates": sum(shard.duplicates for shard in shards),
            "left_out": left_out,
            "errors": dict(sorted(errors.items())),
            "rows": self.rows(units(sources, request.filtering_ids)),
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
        messages = self._unrecorded(reducing)
        return None if len(messages) == 1 else messages  # a summary of one part continues here

    def _reduce(self, row: JobRow, part: int | None) -> list[Message] | None:
        plan = self.plan_of(row)
        recorded = self.jobs.recorded(row.job, "reduce")
        mine = 0 if plan.partitions == 1 else part
        if mine is not None and mine < plan.partitions and mine not in recorded:
            value = self._part(row, plan, mine)
            self.jobs.record(row.job, "reduce", mine, value, self.clock())
            recorded = self.jobs.recorded(row.job, "reduce")
        if len(recorded) < plan.partitions:
            return None  # if the job has ended meanwhile, what this late worker wrote is deleted
        self.jobs.move(row, State.COMMITTING, self.clock())
        return None

    def _part(self, row: JobRow, plan: JobPlan, part: int) -> str:
        """Add noise to one part of the summary and store it. Returns its name, which reveals nothing about it."""
        return self.work_of(row).put_part(summary_of(self.noised(row, plan, part)))

    def noised(self, row: JobRow, plan: JobPlan, part: int) -> Noised:
        """One part of the summary with its noise."""
        if row.secret is None:
            raise JobError("INTERNAL_ERROR", "the job has no secret: create a new job")
        request, domain = self.request(row), plan.domain[part]
        randomness = Randomness(
            self.noise_key, self.deployment, row.job, row.secret, plan.digest, request.mode
        )  # fmt: skip
        keys = None if domain is None else self.work_of(row).ids(domain)
        return reduce_partition(self.sums(row, part), keys, request.parameters, randomness, part)

    def sums(self, row: JobRow, part: int) -> Iterator[Histogram]:
        """The exact sums of one part, of each shard."""
        work = self.work_of(row)
        for name in work.json(row.values["results"])["results"]:
            yield work.sums(work.shard(name).partitions[part])

    def _commit(self, row: JobRow) -> list[Message] | None:
        plan, request = self.plan_of(row), self.request(row)
        wanted = charges(units(self._sources(row), request.filtering_ids))
        parts = self.jobs.recorded(row.job, "reduce")
        outcome = self.committing(plan.epoch).commit(
            row.job, wanted, request.amount, row.claim, parts=[parts[number] for number in sorted(parts)]
        )
        if outcome is CommitOutcome.WAIT:
            raise WaitError("another job holds the budget of a unit: run the stage again later")
        if outcome is CommitOutcome.SPENT:
            self._spent(row)
        elif outcome in CODES:
            code = CODES[outcome]
            message = f"{MESSAGES[code]}. {NOTHING_SPENT}"
            self.jobs.move(row, State.ABORTING, self.clock(), code=code, message=message)
        return None

    def _spent(self, row: JobRow) -> None:
        """End a job whose row was put back after it had committed. What it took stays taken."""
        if self.jobs.move(row, State.FINISHED, self.clock(), code=REPLACED, message=SPENT_MESSAGE):
            self.ended(REPLACED)

    def _abort(self, row: JobRow) -> list[Message] | None:
        request = self.request(row)
        wanted = charges(units(self._sources(row), request.filtering_ids))
        kept = self.committing(self.plan_of(row).epoch).abort(row.job, wanted, request.amount, row.claim)
        if kept is CommitOutcome.SPENT:
            self._spent(row)
        if kept is not None:
            return None
        if row.values["code"] == EXHAUSTED:
            self._name_exhausted(row, request, self._sources(row), "exhausted")
        if self.jobs.move(row, State.FINISHED, self.clock()):
            self.ended(row.values["code"])
        return None

    def _publish(self, row: JobRow) -> list[Message] | None:
        """Copy the parts to the output, byte for byte. A part that is there already is done."""
        if self.clock() >= row.values["committed_at"] + STAGED_KEPT:
            message = "the summary was not published within 30 days and is deleted: create a new job, which spends"
            self._end(row, code=NOT_WRITTEN, message=message)
            return None
        work, request = self.work_of(row), self.request(row)
        work.forget_sums()
        bucket, prefix = output_of(row, request)
        place = self.bucket(bucket)
        try:
            for name, output in zip(row.values["parts"], part_names(prefix, len(row.values["parts"])), strict=True):
                place.put_new(output, work.part(name))
        except NameTakenError:
            return self._not_written(row, "an object of the output's name exists: publish under another prefix")
        except UnwritableError:
            return self._not_written(row, "the output bucket may not be written: publish to another bucket")
        code = "SUCCESS_WITH_ERRORS" if row.values["counters"]["errors"] else "SUCCESS"
        self._end(row, code=code, message="", output=[bucket, prefix])
        return None

    def _end(self, row: JobRow, **values: Any) -> None:
        """Finish a committed job with these values, among them its code."""
        if self.jobs.move(row, State.FINISHED, self.clock(), **values):
            self.ended(values["code"])
        self.jobs.forget_work(row.job)

    def _not_written(self, row: JobRow, why: str) -> list[Message]:
        """Record the failed publication. The job stays committed, and publishing again costs no budget."""
        message = f"{why}, free of charge"
        if self.jobs.move(row, State.COMMITTED, self.clock(), code=NOT_WRITTEN, message=message):
            self.ended(UNPUBLISHED)
        return []

    def _short_of_budget(self, request: JobRequest, shards: Sequence[Shard]) -> frozenset[ReportSource]:
        """The sources whose units have less left than the job asks for."""
        sources = frozenset(chain.from_iterable(shard.sources for shard in shards))
        charged = units(sources, request.filtering_ids)
        short = {unit for unit, _ in exhausted(self.budgets, charged, request.amount)}
        return frozenset(source for source in sources if not short.isdisjoint(units([source], request.filtering_ids)))

    def _name_exhausted(self, row: JobRow, request: JobRequest, sources: Collection[ReportSource], what: str) -> None:
        """Write which units of these sources are short of budget beside the output, unless the file exists."""
        folder = request.output_prefix.rpartition("/")[0]
        job = sha256(row.job.encode()).hexdigest()[:8]
        name = f"{folder}/" * bool(folder) + f"privacy_budget_{what}_{moment(row.received_at)}_{job}.json"
        named = named_exhausted(self.budgets, sources, request.filtering_ids, request.amount)
        body = {"privacy_budget_exhausted_info": {"aggregatable_input_budget_consumption_info": named}}
        try:
            self.bucket(request.output_bucket).put_new(name, json.dumps(body, indent=1).encode())
        except (NameTakenError, UnwritableError):
            return

    def _sources(self, row: JobRow) -> frozenset[ReportSource]:
        return sources_of(self.work_of(row).json(row.values["sources"]))
