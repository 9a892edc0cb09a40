"""The mistakes of this design, each planted once: its check must pass without the mistake and fail with it.

| trap | mistake |
|---|---|
| 1 | info built from JSON that was written again |
| 2 | a zero byte behind the prefix accepted |
| 3 | keys shown *at* the threshold; a threshold that is one too small |
| 4 | noise clamped to the threshold instead of drawn again |
| 5 | declared keys intersected with the keys seen |
| 6 | declared keys without reports left without noise |
| 7 | padding counted as bucket 0 |
| 8 | a report counted twice: in one file, in two files, under one id in two writings |
| 9 | a copy that does not open pushes out the real report |
| 10 | units of those filtering ids only that stand in reports |
| 14 | noise used again after an input changed |
| 18 | age measured by the clock, not from when the job was received |
| 19 | partitions, and so names, that depend on what reports hold |
| 20 | a short bucket and its 16 bytes taken for two keys |
| 21 | epsilon read as a floating-point number |
| 24 | part numbers without leading zeros |
| 25 | sums as floating-point numbers |
| 26 | times as floating-point numbers |
| 30 | messages with an origin or a report id |
| 32 | an output that exists overwritten |
| 33 | a report of version 2.0 counted as one bad report, and the job goes on |

The traps of clients (27 to 29) are in ``clients/test_traps.py``, those of the service and its tables in
``tests/integration/reports/test_traps.py``.
"""

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction

import fastavro
import numpy as np
import pytest

from kanon.hpke import SUITE
from kanon.noise.exact import exp_bounds
from kanon.reports import aggregate, avro, errors, histogram, job, mapping, payload, processes, shared_info
from kanon.reports import noise as noise_module
from kanon.reports.errors import JobError, ReportRefusedError
from kanon.reports.histogram import Histogram
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.noise import DiscreteLaplace, Noised, PartitionTape, Randomness
from kanon.reports.payload import open_sealed
from kanon.reports.service import shards, stages
from tests.unit.reports import made
from tests.unit.reports.sampler import drawn

WITH_SPACES = json.dumps(json.loads(made.info().text()), indent=2)


def errors_of(*reports, rules=made.RULES):
    return dict(map_reports(reports, rules, Selection()).errors)


# Each check takes a folder; each plant a monkeypatch.


def opens_under_the_text_as_received(folder):
    assert errors_of(made.report([(1, 2)], text=WITH_SPACES)) == {}


def plant_rewritten_info(patch):
    def rewritten(wire, key, text):
        return open_sealed(wire, key, json.dumps(json.loads(text), separators=(",", ":")))

    patch.setattr(mapping, "open_sealed", rewritten)


def refuses_a_zero_byte_behind_the_prefix(folder):
    text = made.info().text()
    wire = SUITE.encrypt(b"", made.KEY.public_key(), payload.PREFIX + b"\0" + text.encode())
    assert errors_of(avro.Report(wire, made.KEY_ID, text)) == {"DECRYPTION_ERROR": 1}


def plant_zero_byte(patch):
    def lenient(wire, key, text):
        try:
            return open_sealed(wire, key, text)
        except ReportRefusedError:
            return open_sealed(wire, key, "\0" + text)

    patch.setattr(mapping, "open_sealed", lenient)


def hides_a_key_at_the_threshold(folder):
    tau = made.DISCOVER.threshold
    at = Noised(Histogram(made.keys16(1, 2), np.array([tau, tau + 1])), np.array([0, 0]), tau)
    assert made.released(replace(EMPTY_OUTCOME, partitions=(at,))) == {2: tau + 1}


def plant_greater_or_equal(patch):
    def release(self):
        metrics = self.exact.sums + self.noise
        return noise_module.ReleasedPartition(
            self.exact.keys[metrics >= self.threshold], metrics[metrics >= self.threshold]
        )

    patch.setattr(Noised, "release", release)


def keeps_the_name_of_a_key_within_delta(folder):
    chosen = job.PrivacyParameters("discover", Fraction(10), Fraction(1, 10**8))
    tau, bound, a = chosen.threshold, chosen.contribution_bound, chosen.epsilon / chosen.contribution_bound

    def chance(tau, bits=512):
        """Bounds of g(bound), the chance that a sum of ``bound`` passes."""
        (low, high), (one_low, one_high), (full_low, full_high), (next_low, next_high) = (
            exp_bounds(a * n, bits) for n in (tau - bound + 1, 1, bound, tau + 1)
        )
        top = (1 - 1 / full_low) / high, (1 - 1 / full_high) / low
        bottom = 1 + 1 / one_high - 2 / next_low, 1 + 1 / one_low - 2 / next_high
        return top[0] / bottom[1], top[1] / bottom[0]

    assert isinstance(tau, int)
    assert chance(tau)[1] <= chosen.delta < chance(tau - 1)[0]


def plant_threshold_one_too_small(patch):
    original = job.threshold
    patch.setattr(job, "threshold", lambda *arguments: original(*arguments) - 1)


def draws_again_beyond_the_threshold(folder):
    law, tape = DiscreteLaplace(Fraction(1, 5), most=6), PartitionTape(bytes(range(32)))
    assert law.draw(tape, 300).tolist() == drawn(law.a, law.most, tape.seed, 300)


def plant_clamping(patch):
    original = DiscreteLaplace.draw

    def clamped(law, tape, count):
        return np.clip(original(replace(law, most=None), tape, count), -law.most, law.most)

    patch.setattr(DiscreteLaplace, "draw", clamped)


DOMAIN = tuple(range(1, 201))


def releases_declared_keys_alone_and_all(folder):
    outcome = made.run(folder, [made.report([(1, 5), (999, 7)])], domain=DOMAIN)
    assert set(made.released(outcome)) == set(DOMAIN)


def plant_intersection(patch):
    original = noise_module.exact_sums

    def intersected(sums, domain):
        merged = Histogram.merged(sums)
        return original(sums, domain if domain is None else np.intersect1d(domain, merged.keys))

    patch.setattr(noise_module, "exact_sums", intersected)


def adds_noise_to_keys_without_reports(folder):
    outcome = made.run(folder, [made.report([(1, 5)])], domain=DOMAIN)
    assert sum(metric != 0 for metric in made.released(outcome).values()) > 190


def plant_zeros_without_noise(patch):
    original = noise_module.reduce_partition

    def bare(*arguments):
        noised = original(*arguments)
        return replace(noised, noise=noised.noise * (noised.exact.sums > 0))

    patch.setattr(stages, "reduce_partition", bare)


def drops_padding(folder):
    assert made.seen(made.run(folder, [made.report([(7, 5)])])) == {7: 5}


def plant_padding(patch):
    def take(shard, slots, counted):
        shard.keys.append(slots.buckets[counted].ravel())
        shard.values.append(slots.values[counted].ravel())
        shard.pairs += slots.values[counted].size

    patch.setattr(mapping._Shard, "_take", take)


def counts_a_report_once_in_a_file(folder):
    twice = [made.report([(7, 5)], 1), made.report([(8, 3)], 2), made.report([(7, 5)], 1)]
    upper = made.report([(7, 5)], text=made.info(1).text().replace(made.report_id(1), made.report_id(1).upper()))
    outcome = made.run(folder, [*twice, upper])
    assert made.seen(outcome) == {7: 5, 8: 3}
    assert (outcome.accepted, outcome.duplicates, outcome.errors.total()) == (2, 2, 0)


def plant_no_memory(patch):
    def always(shard, report_id):
        shard.seen[report_id] = None
        return True

    patch.setattr(mapping._Shard, "_is_first", always)


def counts_a_report_once_in_two_files(folder):
    second = [made.report([(8, 3)], 2), made.report([(7, 5)], 1), made.report([(7, 5)], 1)]
    outcome = made.run(folder, [made.report([(7, 5)], 1)], second)
    assert made.seen(outcome) == {7: 5, 8: 3}
    assert (outcome.accepted, outcome.duplicates) == (2, 2)


def plant_no_matching(patch):
    patch.setattr(stages, "skip_lists", lambda shards: [frozenset()] * len(shards))


def counts_the_report_behind_a_copy_that_does_not_open(folder):
    forged = made.report([(7, 60_000)], 1, key=made.OTHER_KEY)
    outcome = made.run(folder, [forged, made.report([(7, 5)], 1)], error_threshold=Fraction(100))
    assert made.seen(outcome) == {7: 5}
    assert dict(outcome.errors) == {"DECRYPTION_ERROR": 1}


def plant_duplicates_by_clear_id(patch):
    def by_clear_id(reports, *rest):
        first = {shared_info.parse(report.shared_info).report_id: report for report in reversed(list(reports))}
        return map_reports(first.values(), *rest)

    patch.setattr(processes, "map_reports", by_clear_id)


def charges_every_requested_filtering_id(folder):
    outcome = made.run(folder, [made.report([(7, 5)])], filtering_ids=(0, 3))
    assert len(outcome.units) == 2


def plant_units_of_present_ids(patch):
    original = stages.units
    patch.setattr(stages, "units", lambda sources, ids: original(sources, ids[:1]))


def draws_other_noise_for_other_sums(folder):
    domain = range(1, 41)
    noise = []
    for value in (5, 6):
        randomness = Randomness(made.SECRETS.noise_key, "d", "j", bytes(32), bytes(32), "declared")
        sums = Histogram(made.keys16(1), np.array([value]))
        noise.append(noise_module.reduce_partition([sums], made.keys16(*domain), made.DECLARED, randomness).noise)
    assert (noise[0] == noise[1]).sum() <= 1


def plant_noise_without_content(patch):
    original = Randomness.tape
    patch.setattr(Randomness, "tape", lambda self, partition, digest: original(self, partition, bytes(32)))


def measures_age_from_when_the_job_was_received(folder):
    long_ago = 1_000_000_000
    rules = replace(made.RULES, received_at=long_ago)
    reports = [made.report(scheduled_report_time=long_ago - days * 86_400) for days in (90, 91, -1, -2)]
    assert errors_of(*reports, rules=rules) == {"ORIGINAL_REPORT_TIME_TOO_OLD": 1, "REPORT_TIME_IN_FUTURE": 1}


def plant_clock(patch):
    original = mapping.accept_clear
    patch.setattr(
        mapping,
        "accept_clear",
        lambda text, rules: original(text, replace(rules, received_at=int(time.time()))),
    )


def a_null_report_changes_nothing_but_the_sums(folder):
    facts = []
    for pairs in ([(1, 5), (2, 6)], []):
        place = folder / str(len(pairs))
        place.mkdir()
        outcome = made.run(place, [made.report(pairs, 1), made.report([(3, 9)], 2)], filtering_ids=(0, 3))
        written = [path.name for path in aggregate.write(outcome, place / "out.avro")]
        facts.append((outcome.units, outcome.errors, outcome.accepted, outcome.duplicates, written))
    assert facts[0] == facts[1]


def plant_partitions_by_content(patch):
    real = aggregate._Stages.inputs

    def by_content(stages, *rest):
        mapped = map_reports(avro.read_reports(stages.files[0]), made.RULES, Selection())
        patch.setattr(shards, "partitions_of", lambda *_: len(mapped.partitions[0].keys))
        return real(stages, *rest)

    patch.setattr(aggregate._Stages, "inputs", by_content)


def takes_a_short_bucket_for_its_16_bytes(folder):
    with (folder / "short.avro").open("wb") as file:
        fastavro.writer(file, avro.DOMAIN, [{"bucket": b"key1"}, {"bucket": b"key1".rjust(16, b"\0")}])
    written = made.job(folder, [made.report([(0x6B657931, 5)])], domain=(1,))
    outcome = aggregate.aggregate(replace(written, domain=(folder / "short.avro",)), made.SECRETS)
    assert made.sums(outcome) == {0x6B657931: 5}


def plant_keys_padded_behind(patch):
    def behind(path):
        buckets = [row["bucket"] for row in avro._rows(path, avro.DOMAIN)]
        return np.frombuffer(b"".join(bucket.ljust(16, b"\0") for bucket in buckets), "S16")

    patch.setattr(aggregate, "read_domain", behind)


def reads_epsilon_exactly(folder):
    tenth = job.decimal("0.1", "epsilon")
    assert 1 - 10 * tenth == 0
    assert job.PrivacyParameters("declared", tenth).epsilon == Fraction(1, 10)


def plant_float_epsilon(patch):
    patch.setattr(job, "decimal", lambda text, name: Fraction(float(text)))


def names_of_parts_sort_as_numbers(folder):
    names = avro.part_names("out.avro", 12)
    assert names == sorted(names)
    assert names[0] == "out-01-of-12.avro"


def plant_unpadded_names(patch):
    patch.setattr(avro, "part_names", lambda prefix, n: [f"{prefix[:-5]}-{i}-of-{n}.avro" for i in range(1, n + 1)])


def adds_up_above_2_to_the_53(folder):
    keys = made.keys16(1, 1, 2)
    totals = Histogram.of(keys, np.array([2**53, 1, 2**53 + 1]))
    assert totals.sums.tolist() == [2**53 + 1, 2**53 + 1]
    place = folder / "large.avro"
    avro.write_summary(place, totals.keys, totals.sums)
    assert [fact.metric for fact in avro.read_summary(place)] == [2**53 + 1, 2**53 + 1]


def plant_float_sums(patch):
    def of(cls, keys, values):
        distinct, places = np.unique(keys, return_inverse=True)
        return Histogram(distinct, np.bincount(places, weights=values).astype(np.int64))

    patch.setattr(histogram.Histogram, "of", classmethod(of))


def reads_a_decimal_time_exactly(folder):
    text = made.info().text().replace(f'"{made.NOW - 3600}"', "1640995199.99999999999")
    assert shared_info.parse(text).scheduled_report_time == 1_640_995_199


def plant_float_time(patch):
    patch.setattr(shared_info, "_DECODER", json.JSONDecoder(parse_float=lambda text: int(float(text))))


def names_no_origin_and_no_id_in_an_error(folder):
    for change in ({"reporting_origin": "http://secret.test"}, {"version": "2.0"}, {"report_id": "secret"}):
        with pytest.raises((ReportRefusedError, JobError)) as caught:
            shared_info.accept_clear(made.info(**change).text(), made.RULES)
        assert "secret" not in str(caught.value)
        assert made.report_id(1) not in str(caught.value)


def plant_talkative_errors(patch):
    original = shared_info.parse

    def talkative(text):
        try:
            return original(text)
        except ReportRefusedError as error:
            error.args = (f"{error}: {text}",)
            raise

    patch.setattr(shared_info, "parse", talkative)


def overwrites_no_output(folder):
    outcome = made.run(folder, [made.report([(7, 5)])])
    taken = folder / "out-1-of-1.avro"
    taken.write_text("mine")
    with pytest.raises(JobError, match="exists already"):
        aggregate.write(outcome, folder / "out.avro")
    assert taken.read_text() == "mine"


def plant_overwriting(patch):
    patch.setattr(aggregate, "created", lambda _: nullcontext(lambda place, _: place.open("wb")))


def ends_the_job_at_a_report_of_version_2(folder):
    with pytest.raises(JobError) as caught:
        made.run(folder, [made.report([(7, 5)], 1), *[made.report([(7, 5)], n, version="2.0") for n in (2,)]],
                 error_threshold=Fraction(100))  # fmt: skip
    assert caught.value.code == "UNSUPPORTED_REPORT_VERSION"


def plant_lenient_version(patch):
    def lenient(fields):
        raise ReportRefusedError(errors.Counter.UNSUPPORTED_SHAREDINFO_VERSION)

    patch.setattr(shared_info, "_version", lenient)


EMPTY_OUTCOME = aggregate.JobOutcome((), (), (), (), aggregate.Tally(), 0, 0, 0)

TRAPS = [
    (1, opens_under_the_text_as_received, plant_rewritten_info),
    (2, refuses_a_zero_byte_behind_the_prefix, plant_zero_byte),
    (3, hides_a_key_at_the_threshold, plant_greater_or_equal),
    (3, keeps_the_name_of_a_key_within_delta, plant_threshold_one_too_small),
    (4, draws_again_beyond_the_threshold, plant_clamping),
    (5, releases_declared_keys_alone_and_all, plant_intersection),
    (6, adds_noise_to_keys_without_reports, plant_zeros_without_noise),
    (7, drops_padding, plant_padding),
    (8, counts_a_report_once_in_a_file, plant_no_memory),
    (8, counts_a_report_once_in_two_files, plant_no_matching),
    (9, counts_the_report_behind_a_copy_that_does_not_open, plant_duplicates_by_clear_id),
    (10, charges_every_requested_filtering_id, plant_units_of_present_ids),
    (14, draws_other_noise_for_other_sums, plant_noise_without_content),
    (18, measures_age_from_when_the_job_was_received, plant_clock),
    (19, a_null_report_changes_nothing_but_the_sums, plant_partitions_by_content),
    (20, takes_a_short_bucket_for_its_16_bytes, plant_keys_padded_behind),
    (21, reads_epsilon_exactly, plant_float_epsilon),
    (24, names_of_parts_sort_as_numbers, plant_unpadded_names),
    (25, adds_up_above_2_to_the_53, plant_float_sums),
    (26, reads_a_decimal_time_exactly, plant_float_time),
    (30, names_no_origin_and_no_id_in_an_error, plant_talkative_errors),
    (32, overwrites_no_output, plant_overwriting),
    (33, ends_the_job_at_a_report_of_version_2, plant_lenient_version),
]  # fmt: skip
named = [f"{number}-{check.__name__}" for number, check, _ in TRAPS]


@pytest.mark.parametrize(("number", "check", "plant"), TRAPS, ids=named)
def test_the_rule_holds(number, check, plant, tmp_path):
    check(tmp_path)


@pytest.mark.parametrize(("number", "check", "plant"), TRAPS, ids=named)
def test_the_mistake_is_caught(number, check, plant, tmp_path, monkeypatch):
    plant(monkeypatch)
    # No other exception: a TypeError would be a broken plant, a JobError another rule's work.
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(tmp_path)
