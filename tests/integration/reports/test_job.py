"""A whole job on local files, through the functions and through the command line."""

import json
import os
import random
import threading
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from multiprocessing import popen_spawn_posix

import pytest
from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.noise.words import NoiseKey
from kanon.reports import histogram as module
from kanon.reports.aggregate import NoiseSecrets, aggregate, write
from kanon.reports.avro import read_debug_summary, read_reports, read_summary, write_domain, write_reports
from kanon.reports.errors import JobError
from kanon.reports.payload import PayloadLayout, private_document
from tests.unit.reports import made

RANDOM = random.Random(7)
LAYOUTS = [PayloadLayout(20), PayloadLayout(20, None), PayloadLayout(20, 8), PayloadLayout(100)]


def many(count, start=0):
    """Reports of several layouts with up to 5 pairs for 40 keys, and what they sum to."""
    reports, totals = [], Counter()
    for number in range(start, start + count):
        pairs = [(RANDOM.randrange(1, 41), RANDOM.randrange(1, 5000)) for _ in range(RANDOM.randrange(6))]
        reports.append(made.report(pairs, number, layout=LAYOUTS[number % 4]))
        for key, value in pairs:
            totals[key] += value
    return reports, dict(totals)


def test_a_job_adds_up_every_report_once(tmp_path):
    reports, totals = many(300)
    outcome = made.run(tmp_path, reports[:150], reports[100:], domain=range(50))
    assert made.sums(outcome) == {key: totals.get(key, 0) for key in range(50)}
    assert (outcome.reports, outcome.accepted, outcome.duplicates) == (350, 300, 50)


def test_the_same_secrets_give_the_same_bytes_and_others_give_others(tmp_path):
    reports, _ = many(20)
    job = made.job(tmp_path, reports, domain=range(50))
    texts = []
    others = [
        NoiseSecrets(NoiseKey("test", b"x" * 32), made.SECRETS.job_secret),
        replace(made.SECRETS, job_secret=b"x" * 32),
    ]
    for number, secrets in enumerate([made.SECRETS, made.SECRETS, *others]):
        [place] = write(aggregate(job, secrets), tmp_path / f"out{number}.avro")
        texts.append([fact.metric for fact in read_summary(place)])
    assert texts[0] == texts[1]
    for other in texts[2:]:
        assert sum(a == b for a, b in zip(texts[0], other, strict=True)) <= 3


def test_two_processes_give_the_result_of_one(tmp_path):
    reports, _ = many(60)
    parts = [reports[start : start + 12] for start in range(0, 60, 10)]  # more than wait at once; some come twice
    job = made.job(tmp_path, *parts, domain=range(50))
    one, two = aggregate(job, made.SECRETS, undeclared=True), aggregate(job, made.SECRETS, processes=2)
    assert made.released(one) == made.released(two)
    assert (one.units, one.errors, one.duplicates) == (two.units, two.errors, two.duplicates)


@pytest.mark.parametrize("code", ["INPUT_DATA_READ_FAILED", "UNSUPPORTED_REPORT_VERSION"])
def test_two_processes_end_with_the_error_of_one(tmp_path, code):
    second = made.report(number=2, version="2.0" if code == "UNSUPPORTED_REPORT_VERSION" else "1.0")
    job = made.job(tmp_path, [made.report()], [second], domain=range(5))
    if code == "INPUT_DATA_READ_FAILED":
        job.reports[1].write_bytes(job.reports[1].read_bytes()[:-20])
    told = []
    for processes in (1, 2):
        with pytest.raises(JobError) as caught:
            aggregate(job, made.SECRETS, processes)
        told.append((caught.value.code, str(caught.value)))
    assert told[0] == told[1]
    assert told[0][0] == code


def test_the_calling_thread_starts_the_processes(tmp_path, monkeypatch):
    """Only there Ctrl-C ends the wait for a process that dies as it starts."""
    launch, threads = popen_spawn_posix.Popen._launch, []

    def noted(self, process):
        threads.append(threading.current_thread())
        launch(self, process)

    monkeypatch.setattr(popen_spawn_posix.Popen, "_launch", noted)
    reports, _ = many(6)
    aggregate(made.job(tmp_path, *([one] for one in reports), domain=range(50)), made.SECRETS, processes=2)
    assert set(threads) == {threading.current_thread()}


def test_each_run_has_new_secrets():
    drawn = [NoiseSecrets.draw() for _ in range(2)]
    assert drawn[0].job_secret != drawn[1].job_secret
    assert drawn[0].noise_key.secret != drawn[1].noise_key.secret
    assert repr(drawn[0]) == "NoiseSecrets()"


@pytest.mark.parametrize("domain", [None, range(50)])
def test_a_job_of_several_partitions_gives_the_same_sums_in_several_files(tmp_path, monkeypatch, domain):
    reports, totals = many(50)
    job = made.job(tmp_path, reports, domain=domain)
    monkeypatch.setattr(module, "KEYS_A_PARTITION", 13)
    monkeypatch.setattr(module, "SLOTS_A_PARTITION", 300)
    outcome = aggregate(job, made.SECRETS, undeclared=True)
    assert len(outcome.partitions) >= 4
    assert made.sums(outcome) == ({key: totals.get(key, 0) for key in domain} if domain else totals)
    places = write(outcome.without_noise(), tmp_path / "s.avro", debug=True)
    assert len(places) == 2 * len(outcome.partitions)
    facts = [fact for place in places[len(outcome.partitions) :] for fact in read_debug_summary(place)]
    assert {
        int.from_bytes(f.bucket, "big"): f.unnoised_metric for f in facts if "in_reports" in f.annotations
    } == totals


def test_a_contribution_counts_for_the_requested_filtering_ids(tmp_path):
    reports = [made.report([(1, 5, 0), (2, 7, 3), (3, 9, 2**64 - 1)], layout=PayloadLayout(20, 8))]
    for ids, totals in (((0,), {1: 5}), ((3, 0), {1: 5, 2: 7}), ((2**64 - 1,), {3: 9}), ((9,), {})):
        (folder := tmp_path / str(ids)).mkdir()
        assert made.seen(made.run(folder, reports, filtering_ids=ids)) == totals


def test_discovery_shows_what_is_above_the_threshold(tmp_path):
    reports = [made.report([(1, 65_536)], number) for number in range(10)] + [made.report([(2, 5)], 99)]
    outcome = made.run(tmp_path, reports)
    assert set(made.released(outcome)) == {1}
    assert made.sums(outcome) == {1: 655_360, 2: 5}


@pytest.mark.parametrize("options", [{"error_threshold": Fraction(10)}, {"domain": ()}, {"filtering_ids": ()}])
def test_a_job_without_reports_keys_or_ids_is_refused(tmp_path, options):
    files = [] if "error_threshold" in options else [[made.report()]]
    with pytest.raises(JobError) as caught:
        made.run(tmp_path, *files, **options)
    assert caught.value.code == "INVALID_JOB"


def kanon(*arguments):
    return CliRunner().invoke(app, ["reports", *map(str, arguments)])


@pytest.fixture
def folder(tmp_path):
    reports, totals = many(30)
    (tmp_path / "in").mkdir()
    now = made.info().scheduled_report_time
    assert now
    write_reports(tmp_path / "in/a.avro", reports[:15])
    write_reports(tmp_path / "in/b.avro", reports[15:])
    write_domain(tmp_path / "domain.avro", made.keys16(*range(50)))
    (tmp_path / "keys.json").write_text(private_document({made.KEY_ID: made.KEY}))
    (tmp_path / "totals.json").write_text(json.dumps(totals))
    return tmp_path


def test_the_command_writes_a_summary_and_prints_its_guarantee(folder):
    told = kanon(
        "aggregate", folder / "in", "--domain", folder / "domain.avro", "--keys", folder / "keys.json", "--any-age",
        "--out", folder / "out.avro", "--debug",
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert "30 reports read, 30 counted, 0 duplicates." in told.output
    assert "50 keys released" in told.output
    assert "factor of at most" in told.output
    assert "keeps no ledger" in told.output
    facts = read_debug_summary(folder / "out_debug-1-of-1.avro")
    totals = json.loads((folder / "totals.json").read_text())
    assert {str(int.from_bytes(f.bucket, "big")): f.unnoised_metric for f in facts if f.unnoised_metric} == totals
    noisy = dict(read_summary(folder / "out-1-of-1.avro"))
    assert noisy == {f.bucket: f.unnoised_metric + f.noise for f in facts}
    assert noisy.keys() == {made.key16(key) for key in range(50)}


def test_two_runs_of_the_command_have_different_noise(folder):
    metrics = []
    for number in range(2):
        told = kanon(
            "aggregate", folder / "in", "--domain", folder / "domain.avro", "--keys", folder / "keys.json", "--any-age",
            "--out", folder / f"out{number}.avro", "--json",
        )  # fmt: skip
        facts = json.loads(told.output)
        assert (facts["keysReleased"], facts["errors"]) == (50, {"NUM_REPORTS_WITH_ERRORS": 0})
        metrics.append([fact.metric for fact in read_summary(folder / f"out{number}-1-of-1.avro")])
    assert sum(a == b for a, b in zip(*metrics, strict=True)) <= 3  # more by chance: below 1e-12


ALL = ("--keys", "keys.json", "--any-age")


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (("in", *ALL), 2, "--domain or --discover"),
    (("in", "--discover"), 2, "--keys"),
    (("in", "--domain", "domain.avro", "--delta", "1e-8", *ALL), 2, "leave --delta out"),
    (("in", "--discover", "--no-noise", *ALL), 2, "say --debug"),
    (("in", "--discover", "--epsilon", "x", *ALL), 2, "a decimal"),
    (("in", "--discover", "--epsilon", "65", *ALL), 2, "at most 64"),
    (("in", "--discover", "--delta", "0.1", *ALL), 2, "delta must be from"),
    (("in", "--discover", "--threshold", "x", *ALL), 2, "sharp or paper"),
    (("in", "--discover", "--filtering-ids", "a", *ALL), 2, "numbers below"),
    (("in", "--discover", "--reporting-site", "report.test", *ALL), 2, "https://example.com"),
    (("in", "--discover", "--reporting-site", "https://a.report.test:8443", *ALL), 2, "write https://report.test"),
    (("in", "--discover", "--keys", "missing.json"), 2, "make keys"),
    (("in", "--discover", "--keys", "totals.json"), 2, "a key document is"),
    (("in", "--discover", "--keys", "keys.json"), 1, "ORIGINAL_REPORT_TIME_TOO_OLD"),
    (("missing", "--discover", *ALL), 1, "neither a file nor a folder"),
    (("totals.json", "--discover", *ALL), 1, "not an Avro file"),
    (("domain.avro", "--discover", *ALL), 1, "lacks the fields"),
    (("in", "--domain", "in/a.avro", *ALL), 1, "lacks the fields"),
])  # fmt: skip
def test_every_mistake_gets_one_line_that_says_what_to_change(folder, monkeypatch, arguments, code, message):
    monkeypatch.chdir(folder)
    if code == 1 and message == "ORIGINAL_REPORT_TIME_TOO_OLD":
        write_reports(folder / "in/a.avro", [made.report(scheduled_report_time=1_000_000_000)])
        (folder / "in/b.avro").unlink()
    told = kanon("aggregate", *arguments)
    assert told.exit_code == code, told.output
    assert message in " ".join(told.output.replace("│", " ").split())
    assert "Traceback" not in told.output
    assert not list(folder.glob("summary*"))


def test_an_output_that_exists_is_kept(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "summary-1-of-1.avro").write_text("mine")
    told = kanon("aggregate", "in", "--discover", *ALL)
    assert (told.exit_code, (folder / "summary-1-of-1.avro").read_text()) == (1, "mine")
    assert "exists already" in told.output


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_summary_that_cannot_be_completed_leaves_no_file(tmp_path, monkeypatch):
    outcome = made.run(tmp_path, [made.report([(1, 5)])], domain=range(5))
    monkeypatch.setattr("kanon.reports.aggregate.write_debug_summary", full)
    with pytest.raises(JobError) as caught:
        write(outcome, tmp_path / "out/s.avro", debug=True)
    assert caught.value.code == "RESULT_WRITE_ERROR"
    assert not list((tmp_path / "out").iterdir())


def test_a_summary_never_takes_the_name_of_a_file_that_appears_while_it_is_written(tmp_path, monkeypatch):
    outcome = made.run(tmp_path, [made.report([(1, 5)])], domain=range(5))
    late = tmp_path / "out/s_debug-1-of-1.avro"
    monkeypatch.setattr("kanon.reports.aggregate.write_debug_summary", lambda *_: late.write_text("mine"))
    with pytest.raises(JobError, match="choose another name"):
        write(outcome, tmp_path / "out/s.avro", debug=True)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_only_the_owner_can_read_exact_sums(tmp_path):
    outcome = made.run(tmp_path, [made.report([(1, 5)])], domain=range(5))
    umask = os.umask(0o022)
    try:
        noisy = write(outcome, tmp_path / "noisy.avro", debug=True)
        exact = write(outcome.without_noise(), tmp_path / "exact.avro")
    finally:
        os.umask(umask)
    assert [place.stat().st_mode & 0o777 for place in (*noisy, *exact)] == [0o644, 0o600, 0o600]


def test_simulated_reports_that_cannot_be_completed_leave_no_file(folder, monkeypatch):
    (folder / "events.csv").write_text("time,client,key\n1,a,1\n")
    kanon("keys", "--private", folder / "p.json", "--public", folder / "public.json")
    before = sorted(folder.iterdir())
    monkeypatch.setattr("kanon.reports.clients.encrypt.encrypt", full)
    told = kanon("simulate", folder / "events.csv", "--keys", folder / "public.json", "--out", folder / "r.avro")
    assert (told.exit_code, sorted(folder.iterdir())) == (2, before)
    assert "cannot be written" in " ".join(told.output.replace("│", " ").split())


def test_decode_shows_clear_fields_and_with_a_key_the_contributions(folder):
    lines = [json.loads(line) for line in kanon("decode", folder / "in/a.avro").output.splitlines()]
    assert len(lines) == 15
    assert lines[0]["shared_info"]["reporting_origin"] == made.ORIGIN
    assert not any("contributions" in line for line in lines)
    keyed = kanon("decode", folder / "in/a.avro", "--keys", folder / "keys.json", "--limit", "15").output
    totals = Counter()
    for line in map(json.loads, keyed.splitlines()):
        for pair in line["contributions"]:
            totals[int(pair["bucket"], 16)] += pair["value"]
    expected = Counter()
    expected.update(made.seen(made.run(folder, list(read_reports(folder / "in/a.avro")))))
    assert totals == expected
    domain = kanon("decode", folder / "domain.avro", "--limit", "2").output.splitlines()
    assert [json.loads(line)["bucket"] for line in domain] == ["0" * 32, "0" * 31 + "1"]
    assert kanon("decode", folder / "keys.json").exit_code == 1
    (folder / "other.json").write_text(private_document({made.KEY_ID: made.OTHER_KEY}))
    wrong = kanon("decode", folder / "in/a.avro", "--keys", folder / "other.json", "--limit", "1").output
    assert json.loads(wrong)["error"] == "DECRYPTION_ERROR"


def test_keys_are_made_once_and_the_private_ones_are_for_the_owner_alone(tmp_path):
    files = ("--private", tmp_path / "private.json", "--public", tmp_path / "public.json")
    assert kanon("keys", *files).exit_code == 0
    assert (tmp_path / "private.json").stat().st_mode & 0o777 == 0o600
    assert len(json.loads((tmp_path / "public.json").read_text())["keys"]) == 1
    again = kanon("keys", *files)
    assert again.exit_code == 2
    assert "exists already" in " ".join(again.output.replace("│", " ").split())


@pytest.mark.parametrize("public", ["taken.json", "private.json", "taken.json/public.json"])
def test_no_private_keys_stay_without_public_ones(tmp_path, public):
    (tmp_path / "taken.json").write_text("mine")
    told = kanon("keys", "--private", tmp_path / "private.json", "--public", tmp_path / public)
    assert told.exit_code == 2
    assert "choose" in told.output
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_declared_keys_are_written_as_the_table_of_simulate_names_them(tmp_path):
    (tmp_path / "events.csv").write_text("time,client,key\n1,a,key1\n2,a,17\n3,a,0x12\n4,a,\u00e9t\u00e9\n")
    (tmp_path / "keys.txt").write_bytes("\ufeffkey1\r\n17\r\n0x11\n0x12\nété\nunused\nkey1".encode())
    files = ("--private", tmp_path / "private.json", "--public", tmp_path / "public.json")
    kanon("keys", *files)
    made_up = kanon("simulate", tmp_path / "events.csv", "--keys", files[3], "--out", tmp_path / "reports.avro")
    told = kanon("domain", tmp_path / "keys.txt", "--out", tmp_path / "domain.avro")
    assert (made_up.exit_code, told.exit_code) == (0, 0), told.output
    assert "5 declared keys." in told.output
    counted = kanon(
        "aggregate", tmp_path / "reports.avro", "--domain", tmp_path / "domain.avro", "--keys", files[1], "--any-age",
        "--out", tmp_path / "out.avro", "--no-noise", "--debug",
    )  # fmt: skip
    assert counted.exit_code == 0, counted.output
    sums = {fact.bucket.lstrip(b"\0"): fact.metric for fact in read_summary(tmp_path / "out-1-of-1.avro")}
    assert sums == {b"key1": 1, b"\x11": 1, b"\x12": 1, "été".encode(): 1, b"unused": 0}


@pytest.mark.parametrize(("text", "message"), [
    ("", "line 1"), ("1\n\n2\n", "line 2"), ("a text of seventeen\n", "line 1"), (f"{2**128}\n", "line 1"),
    (b"\xff\n", "in UTF-8"),
])  # fmt: skip
def test_invalid_declared_keys_are_refused(tmp_path, text, message):
    given = text if isinstance(text, bytes) else text.encode()
    told = CliRunner().invoke(app, ["reports", "domain", "-", "--out", str(tmp_path / "d.avro")], input=given)
    assert told.exit_code == 2
    assert message in " ".join(told.output.replace("│", " ").split())
    assert not list(tmp_path.iterdir())


def test_a_domain_that_exists_is_kept(tmp_path):
    (tmp_path / "d.avro").write_text("mine")
    told = CliRunner().invoke(app, ["reports", "domain", "-", "--out", str(tmp_path / "d.avro")], input="1\n")
    assert (told.exit_code, [path.read_text() for path in tmp_path.iterdir()]) == (2, ["mine"])


def test_explain_adds_what_joins_of_a_listed_type_cost() -> None:
    own = ("--type", '{"k": 50, "window": 720, "profile": "crossing"}')
    told = kanon("explain", "--epsilon", "4", *own, "--joins", "5").output
    assert "epsilon 19 = 4 + 5 x 3, delta 2.26893e-06 = 0 + 5 x 4.53786e-07" in told
    daily = kanon("explain", "--epsilon", "4", *own, "--period", "86400").output
    assert "4.53786e-07" not in daily
    for unused in (("--joins", "5"), ("--period", "60")):
        assert "has no effect without --type" in kanon("explain", *unused).output
    assert "window: Field required" in kanon("explain", "--type", '{"k": 50}').output


def test_threshold_and_explain_print_their_numbers():
    assert "181,715" in kanon("threshold").output
    assert json.loads(kanon("threshold", "--epsilon", "64", "--sparsity", "20", "--json").output)["paper"] == 87_467
    assert kanon("threshold", "--delta", "1").exit_code == 2
    told = kanon("explain", "--epsilon", "64", "--delta", "1e-7").output
    assert "6.24e+27" in told
    assert "protects nobody by itself" in told
    assert "22,026.47" not in told
    assert kanon("explain", "--epsilon", "0").exit_code == 2
    ten = kanon("explain", "--epsilon", "1").output
    assert "at most 2.72" in ten
    assert "protects nobody" not in ten


@pytest.mark.parametrize("change", [
    {"id": "other"}, {"error_threshold": Fraction(11)}, {"filtering_ids": (0, 1)},
    {"rules": replace(made.RULES, received_at=made.NOW + 1)}, {"rules": replace(made.RULES, check_age=False)},
    {"parameters": replace(made.DECLARED, epsilon=Fraction(9))},
])  # fmt: skip
def test_another_plan_over_the_same_sums_has_other_noise(tmp_path, change):
    job = made.job(tmp_path, [made.report([(1, 5)])], domain=range(200))
    one, other = (aggregate(each, made.SECRETS) for each in (job, replace(job, **change)))
    assert made.sums(one) == made.sums(other)
    same = one.partitions[0].noise == other.partitions[0].noise
    assert same.sum() <= 3


def test_a_file_that_changed_without_changing_a_sum_has_other_noise(tmp_path):
    job = made.job(tmp_path, [made.report([(1, 5)])], domain=range(200))
    one = aggregate(job, made.SECRETS)
    write_reports(job.reports[0], [made.report([(1, 5)]), made.report([], 2)])
    other = aggregate(job, made.SECRETS)
    assert made.sums(one) == made.sums(other)
    assert (one.partitions[0].noise == other.partitions[0].noise).sum() <= 3
