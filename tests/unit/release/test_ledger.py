"""The ledger: costs, the order of writes, and recovery after a crash at any write."""

import json
import os
import stat
from fractions import Fraction
from pathlib import Path

import pytest

from kanon.noise.bound import Bound
from kanon.release import Ledger, release
from kanon.release.accounting import Period
from kanon.release.errors import InputError, LedgerError, OverBudgetError, SpecificationError
from kanon.release.ledger import Purchase
from kanon.release.noising import PrivateTable, keyed_digest
from kanon.release.output import csv_bytes
from kanon.release.tape import Tape
from tests.unit.release.made import LOG, Given, spec


@pytest.fixture
def place(tmp_path):
    return tmp_path / "ledger"


# COUNT has so many digits that no digest, address or time holds it by chance.
ONE = Fraction(1)
COUNT = 47_114_711_471_147


def made(place, engine=LOG, name=None, dataset="data", **more):
    return release([], spec(**more), Ledger.at(place), dataset=dataset, name=name, engine=engine)


def bytes_of(result):
    return csv_bytes(result.released, ("set",))


def spent(place, unit="user", dataset="data"):
    return {account.unit: account.spent for account in Ledger.at(place).accounts(dataset)}[unit]


def kept_secrets(place):
    return sorted(path.name for path in (place / "secrets").iterdir())


def lines(place):
    return (place / "ledger.jsonl").read_text().splitlines()


def test_the_same_release_again_costs_nothing_and_has_the_same_bytes(place):
    first, again = made(place), made(place)
    assert (first.new, again.new) == (True, False)
    assert bytes_of(first) == bytes_of(again)
    assert first.described() == again.described()
    assert spent(place) == Bound(Fraction(1), Fraction("1e-5"))


def test_a_new_name_on_equal_data_costs_again_and_draws_new_noise(place):
    results = [made(place, name=f"week {i}") for i in range(8)]
    assert len({bytes_of(result) for result in results}) > 1
    assert len({result.id for result in results}) == 8
    assert spent(place) == Bound(Fraction(8), Fraction("8e-5"))


def test_the_same_name_on_changed_data_is_refused(place):
    made(place)
    with pytest.raises(InputError, match="other data"):
        made(place, Given(("a", 100), ("b", 60), ("c", 12), ("d", 2)))
    assert len(lines(place)) == 1


def test_the_same_name_in_another_dataset_or_for_another_question_is_another_release(place):
    ids = {made(place, name="n").id, made(place, name="n", dataset="other").id, made(place, name="n", floor=2).id}
    assert len(ids) == 3


def test_the_fourth_release_of_a_budget_for_three_is_refused_before_anything_is_read_or_drawn(place, monkeypatch):
    Ledger.at(place).set_budget("data", "user", Bound(Fraction(3), Fraction("3e-5")))
    for i in range(3):
        made(place, name=str(i))
    engine = Given(("a", 100))
    before = lines(place), kept_secrets(place)
    monkeypatch.setattr(Tape, "_named", None)
    with pytest.raises(OverBudgetError, match="Nothing was drawn"):
        made(place, engine, name="3")
    assert engine.queries == 0
    assert (lines(place), kept_secrets(place)) == before


def test_a_release_that_was_paid_for_is_repeated_even_if_the_budget_is_gone(place):
    first = made(place)
    Ledger.at(place).set_budget("data", "user", Bound(Fraction(0), Fraction(0)))
    assert bytes_of(made(place)) == bytes_of(first)


def test_either_part_of_a_budget_is_enough_to_refuse(place):
    for budget in (Bound(Fraction(9), Fraction("1e-6")), Bound(Fraction(1, 2), Fraction(1))):
        Ledger.at(place).set_budget("data", "user", budget)
        with pytest.raises(OverBudgetError):
            made(place)


JANUARY, FEBRUARY, DAY = Period.read("2026-01"), Period.read("2026-02"), Period.read("2026-01-05")


@pytest.mark.parametrize(
    ("unit", "periods", "epsilon"),
    [
        ("user", [JANUARY, FEBRUARY], 2),
        ("user-month", [JANUARY, FEBRUARY], 1),
        ("user-month", [JANUARY, DAY], 2),
        ("user-month", [DAY, Period.read("2026-01-06")], 2),
        ("user-month", [JANUARY, FEBRUARY, None], 2),
        ("user-day", [JANUARY, FEBRUARY], 1),
        ("user-day", [DAY, Period.read("2026-01-06")], 1),
        ("user-day", [DAY, Period.read("2026-01-04..2026-01-05")], 2),
    ],
)
def test_disjoint_periods_are_parallel_only_for_units_that_lie_inside_one(place, unit, periods, epsilon):
    for i, period in enumerate(periods):
        made(place, name=str(i), unit=unit, period=period)
    assert spent(place, unit).epsilon == epsilon


def test_releases_for_users_count_for_their_months_and_days_and_never_the_other_way(place):
    ledger = Ledger.at(place)
    for unit in ("user", "user-month", "user-day"):
        ledger.set_budget("data", unit, Bound(Fraction(9), Fraction(1)))
        made(place, unit=unit)
    assert [spent(place, unit).epsilon for unit in ("user", "user-month", "user-day")] == [1, 2, 3]
    ledger.set_budget("data", "user-day", Bound(Fraction(3), Fraction(1)))
    with pytest.raises(OverBudgetError, match="unit user-day"):
        made(place, name="more")


def test_costs_from_elsewhere_add_up_and_are_refused_over_budget(place):
    ledger = Ledger.at(place)
    ledger.set_budget("data", "user", Bound(Fraction(3), Fraction("1e-4")))
    ledger.add_spend("data", "user", None, Bound(Fraction("2.25"), Fraction("1e-6")), "the service")
    with pytest.raises(OverBudgetError):
        made(place)
    with pytest.raises(OverBudgetError):
        ledger.add_spend("data", "user", None, Bound(Fraction(1), Fraction(0)), "")
    ledger.add_spend("data", "user", None, Bound(Fraction(1), Fraction(0)), "", past_budget=True)
    assert spent(place) == Bound(Fraction("3.25"), Fraction("1e-6"))


def test_a_forgotten_release_cannot_be_repeated_and_its_secret_is_gone(place):
    result = made(place)
    Ledger.at(place).forget(result.id)
    assert not (place / "secrets" / f"noise-{result.id}").exists()
    with pytest.raises(LedgerError, match="destroyed"):
        made(place)
    assert spent(place).epsilon == 1
    with pytest.raises(SpecificationError, match="no release"):
        Ledger.at(place).forget("0" * 32)


def test_forgetting_that_was_interrupted_is_completed_by_forgetting_again(place, monkeypatch):
    result = made(place)
    monkeypatch.setattr("kanon.release.stores.FileSecrets.destroy", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        Ledger.at(place).forget(result.id)
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="destroyed"):
        made(place)
    Ledger.at(place).forget(result.id)
    assert not (place / "secrets" / f"noise-{result.id}").exists()


def test_a_paid_release_without_its_secret_is_always_refused(place):
    result = made(place)
    (place / "secrets" / f"noise-{result.id}").unlink()
    assert Ledger.at(place).without_secret() == [result.id]
    with pytest.raises(LedgerError, match="missing"):
        made(place)
    assert len(lines(place)) == 1


def test_other_tables_than_those_that_were_paid_for_are_refused(place, monkeypatch):
    made(place)
    monkeypatch.setattr("kanon.release.mechanism.Mechanism.digest", "other")
    with pytest.raises(InputError, match="other tables"):
        made(place)


def test_everything_in_the_ledger_can_be_read_by_its_owner_alone(place):
    made(place)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [place, *place.rglob("*")]}
    assert modes == {0o700, 0o600}


@pytest.mark.parametrize("part", ["", "secrets"])
def test_a_ledger_that_others_may_read_is_refused(place, part):
    made(place)
    (place / part).chmod(0o755)
    with pytest.raises(LedgerError, match="chmod 700"):
        made(place)
    (place / part).chmod(0o700)
    for secret in (place / "secrets").iterdir():
        secret.chmod(0o644)
    with pytest.raises(LedgerError, match="chmod 600"):
        made(place)


CHANGED = {
    "a line is removed": lambda first, second: second,
    "a number is changed": lambda first, second: first.replace('"epsilon":"1"', '"epsilon":"0"') + second,
    "lines change places": lambda first, second: second + first,
    "a line is no JSON": lambda first, second: first + "{}\n" + second,
    "a line is of no known kind": lambda first, second: first.replace('"spend"', '"gift"') + second,
}


@pytest.mark.parametrize("changed", CHANGED.values(), ids=CHANGED)
def test_a_chain_that_was_changed_is_refused(place, changed):
    made(place, name="1")
    made(place, name="2")
    path = place / "ledger.jsonl"
    path.write_text(changed(*path.read_text().splitlines(keepends=True)))
    with pytest.raises(LedgerError, match="Put no older copy in its place"):
        made(place, name="3")


def test_the_ledger_holds_neither_group_nor_count_and_its_digest_means_nothing_without_the_secret(place):
    made(place, Given(("very-secret-group", COUNT)))
    entry = json.loads(lines(place)[0])
    assert "very-secret-group" not in str(entry)
    assert str(COUNT) not in str(entry)
    others = {json.loads(line)["input"] for line in lines(place)}
    made(place, Given(("very-secret-group", COUNT)), name="again")
    assert {json.loads(line)["input"] for line in lines(place)} > others


class Crash(BaseException):
    pass


WRITES = ("open", "pwrite", "fsync", "link", "ftruncate", "mkdir")


def crashing(monkeypatch, at, *, torn):
    """The ``at``-th writing call of the operating system ends the process; a torn one writes half before."""
    calls = []
    for name in WRITES:
        real = getattr(os, name)

        def call(*arguments, _real=real, _name=name, **options):
            calls.append(_name)
            if len(calls) - 1 == at:
                if torn and _name == "pwrite":
                    handle, content, offset = arguments
                    _real(handle, content[: len(content) // 2], offset)
                raise Crash
            return _real(*arguments, **options)

        monkeypatch.setattr(os, name, call)
    return calls


def crash_points(place, monkeypatch):
    calls = crashing(monkeypatch, -1, torn=False)
    made(place)
    monkeypatch.undo()
    return len(calls)


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_a_run_that_ends_at_any_write_is_continued_with_one_spend_and_one_result(tmp_path, monkeypatch, torn):
    number = crash_points(tmp_path / "whole", monkeypatch)
    assert number >= 15
    for at in range(number):
        place = tmp_path / f"{at}"
        drawn = []
        named = Tape._named
        monkeypatch.setattr(Tape, "_named", lambda tape, role: drawn.append(tape) or named(tape, role))  # noqa: B023
        crashing(monkeypatch, at, torn=torn)
        with pytest.raises(Crash):
            made(place)
        monkeypatch.undo()
        assert not drawn, "noise was drawn before the spend was durable"
        after_crash = lines(place) if (place / "ledger.jsonl").exists() else []
        second, third = made(place), made(place)
        assert bytes_of(second) == bytes_of(third)
        assert not third.new
        assert len(Ledger.at(place).spends()) == 1
        if len(after_crash) == 1 and after_crash[0].endswith("}"):
            assert json.loads(after_crash[0])["id"] == second.id
        assert Ledger.at(place).without_secret() == []


def test_the_secret_is_durable_before_the_spend_and_the_spend_before_the_draw(place, monkeypatch):
    order = []
    real_fsync, real_link, named = os.fsync, os.link, Tape._named

    def fsync(handle):
        file = Path(f"/proc/self/fd/{handle}").readlink()
        order.append("a secret" if file.suffix == ".part" else file.name)
        real_fsync(handle)

    def link(file, place):
        order.append(place.name.split("-")[0])
        real_link(file, place)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(Tape, "_named", lambda *where: order.append("draw") or named(*where))
    made(place)
    steps = [step for step, before in zip(order, [None, *order], strict=False) if step != before]
    assert steps == [
        "a secret", "sampling", "secrets", "a secret", "noise", "secrets", "ledger", "ledger.jsonl", "draw"
    ]  # fmt: skip


def test_two_processes_cannot_both_spend_the_last_of_a_budget(place):
    first, second = Ledger.at(place), Ledger.at(place)
    first.set_budget("data", "user", Bound(Fraction(1), Fraction(1)))

    class Racing(Given):
        def table(self, *arguments):
            if not self.queries:
                self.queries = 1
                release([], spec(), second, dataset="data", name="other", engine=LOG)
            return super().table(*arguments)

    with pytest.raises(OverBudgetError):
        release([], spec(), first, dataset="data", name="mine", engine=Racing(("a", 100)))
    assert spent(place).epsilon == 1
    assert len([name for name in kept_secrets(place) if name.startswith("noise")]) == 1


def test_a_spend_that_another_process_entered_meanwhile_is_found_and_shared(place):
    ledger = Ledger.at(place)
    append, results = ledger._store.append, []

    def raced(line, after):
        if not results:
            results.append(made(place))
        return append(line, after)

    ledger._store.append = raced
    mine = release([], spec(), ledger, dataset="data", engine=LOG)
    assert mine.id == results[0].id
    assert bytes_of(mine) == bytes_of(results[0])
    assert len(ledger.spends()) == 1
    assert len([name for name in kept_secrets(place) if name.startswith("noise")]) == 1


def test_a_private_table_shows_nothing_of_what_it_holds():
    table = PrivateTable.of_rows(spec().bounding, lambda: iter([("secret", COUNT)]), {})
    assert "secret" not in repr(table)
    assert str(COUNT) not in str(table)
    assert table
    for use in (len, iter, list):
        with pytest.raises(TypeError):
            use(table)
    assert keyed_digest(table, b"a" * 32) != keyed_digest(table, b"b" * 32)


def test_the_rest_of_a_long_line_after_a_crash_is_removed_by_the_next_append(place):
    made(place, name="1")
    path = place / "ledger.jsonl"
    path.write_bytes(path.read_bytes() + b'{"event":"note","text":"' + b"x" * 5000)
    assert [spend.name for spend in Ledger.at(place).spends()] == ["1"]
    made(place, name="2")
    assert [spend.name for spend in Ledger.at(place).spends()] == ["1", "2"]
    assert path.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize(
    ("columns", "epsilon"),
    [
        ([("client", "created"), ("client", "created")], 1),
        ([("client", "created"), ("client", "updated")], 2),
        ([("client", "created"), ("member", "created")], 2),
        ([("client", "created"), ("client", "updated"), ("client", "created")], 2),
        ([("client", "created"), ("client", "updated"), ("client", "updated")], 3),
    ],
)
def test_periods_of_another_column_add_up_because_one_row_may_be_in_both(place, columns, epsilon):
    months = [JANUARY, FEBRUARY, Period.read("2026-03")]
    for period, (user, time) in zip(months, columns, strict=False):
        made(place, unit="user-month", period=period, user=user, time=time)
    (account,) = Ledger.at(place).accounts("data")
    assert account.spent.epsilon == epsilon
    assert account.columns == ("client", "created")


def test_a_budget_holds_over_columns_of_time(place):
    Ledger.at(place).set_budget("data", "user-month", Bound(Fraction(1), Fraction("1e-5")))
    made(place, unit="user-month", period=JANUARY, time="created")
    with pytest.raises(OverBudgetError):
        made(place, unit="user-month", period=FEBRUARY, time="updated")
    made(place, unit="user-month", period=FEBRUARY, time="created")


def test_a_release_that_reads_no_time_binds_none(place):
    made(place)
    made(place, unit="user-month", period=JANUARY, time="created")
    assert Ledger.at(place).accounts("data")[0].columns == ("client", "created")


def test_costs_by_hand_are_parallel_and_releases_that_name_no_column_add_up(place, monkeypatch):
    ledger = Ledger.at(place)
    for month in (JANUARY, FEBRUARY):
        ledger.add_spend("hand", "user-month", month, Bound(Fraction(1), Fraction(0)), "the service")
    assert spent(place, "user-month", "hand").epsilon == 1
    monkeypatch.setattr("kanon.release.releasing.Purchase", lambda *told: Purchase(*told[:9]))  # an earlier version
    for month in (JANUARY, FEBRUARY):
        made(place, unit="user-month", period=month)
    monkeypatch.undo()
    made(place, unit="user-month", period=Period.read("2026-03"))
    assert spent(place, "user-month").epsilon == 3
    assert not made(place, unit="user-month", period=JANUARY).new


@pytest.mark.parametrize("unit", ["user", "user-month", "user-day"])
@pytest.mark.parametrize("other", ["user", "user-month", "user-day"])
def test_once_a_dataset_has_a_budget_a_unit_without_one_is_refused(place, unit, other):
    ledger = Ledger.at(place)
    ledger.set_budget("data", unit, Bound(Fraction(100), Fraction(1, 2)))
    ledger.set_budget("another", other, Bound(Fraction(100), Fraction(1, 2)))
    cost = Bound(Fraction(20), Fraction(0))
    if unit == other:
        made(place, unit=other)
        return
    with pytest.raises(OverBudgetError, match=f"kanon ledger add --budget --unit {other}`. Nothing was drawn"):
        made(place, unit=other)
    with pytest.raises(OverBudgetError, match="does not limit"):
        ledger.add_spend("data", other, None, cost, "")
    ledger.add_spend("data", other, None, cost, "", past_budget=True)


@pytest.mark.parametrize("text", ["d ", "  d", "ｄ", "d\u00a0"])
def test_spaces_and_other_forms_of_a_letter_name_the_same_dataset(place, text):
    made(place, dataset=text)
    assert not made(place, dataset="d").new
    Ledger.at(place).set_budget(text, "user", Bound(ONE, ONE))
    assert [(one.dataset, one.budget.epsilon) for one in Ledger.at(place).accounts(text)] == [("d", 1)]


@pytest.mark.parametrize("text", ["D", "d.", "-d", "Ｄ"])
def test_a_name_that_looks_like_a_dataset_is_refused(place, text):
    made(place, dataset="d")
    ledger = Ledger.at(place)
    for use in (
        lambda: made(place, dataset=text),
        lambda: ledger.add_note(text, "x"),
        lambda: ledger.set_budget(text, "user", Bound(ONE, ONE)),
        lambda: ledger.add_spend(text, "user", None, Bound(ONE, ONE), ""),
    ):
        with pytest.raises(SpecificationError, match="the ledger has a dataset 'd'"):
            use()
    assert len(lines(place)) == 1


def test_names_that_differ_in_a_letter_or_digit_are_other_datasets(place):
    names = ["d", "e", "d1", "d-1", "données", "2026-01", "2026-1", "данные"]
    for name in names:
        made(place, dataset=name)
    assert [account.spent.epsilon for account in Ledger.at(place).accounts()] == [1] * len(names)


@pytest.mark.parametrize("name", ["", "  ", "---", "d\u200bata", "d\x00", "\u202ed"])
def test_a_name_without_letters_or_with_invisible_ones_is_refused(place, name):
    with pytest.raises(SpecificationError, match="letters or digits"):
        made(place, dataset=name)
    assert not (place / "ledger.jsonl").exists()


def test_accounts_of_an_earlier_version_that_look_alike_are_added_up_and_repeated_free(place, monkeypatch):
    monkeypatch.setattr(Ledger, "dataset", lambda _, text: text)
    old = {name: bytes_of(made(place, dataset=name)) for name in ("d", "D", "d ")}
    Ledger.at(place).set_budget("D", "user", Bound(Fraction(3), Fraction("1e-2")))
    monkeypatch.undo()
    assert {name: bytes_of(made(place, dataset=name)) for name in old} == old
    (account,) = Ledger.at(place).accounts()
    assert (account.dataset, account.spent.epsilon, account.budget.epsilon) == ("d", 3, 3)
    for name in old:
        assert Ledger.at(place).accounts(name) == [account]
        assert [spend.dataset for spend in Ledger.at(place).spends(name)] == list(old)
        with pytest.raises(OverBudgetError):
            made(place, dataset=name, name="more")


def test_a_delta_of_a_hundredth_is_refused_unless_it_was_paid_for_before(place, monkeypatch):
    with pytest.raises(SpecificationError, match=r"--delta must be below 0\.01"):
        made(place, delta=Fraction("0.01"))
    assert not (place / "ledger.jsonl").exists()
    made(place, delta=Fraction("0.0099"))
    monkeypatch.setattr("kanon.release.releasing.refuse_delta", lambda _: None)  # an earlier version
    made(place, delta=Fraction("0.01"))
    monkeypatch.undo()
    assert not made(place, delta=Fraction("0.01")).new


def test_the_number_of_users_for_a_warning_is_a_released_one(place):
    users, low, _ = made(place, floor=3).released.rows[0][1]
    assert 3 < made(place, floor=3).fewest_users == low < users
    assert made(place, floor=3, only_groups=True).fewest_users == 3
    assert made(place, Given(), floor=4).fewest_users == 0


@pytest.mark.parametrize(
    ("epsilon", "delta", "users", "warnings"),
    [
        ("10", "1e-3", 1000, []),
        ("10.01", "1e-3", 1000, ["epsilon 10.01 is above 10"]),
        ("1", "1.01e-3", 1000, ["delta 1.01e-3 is above 1 divided by 1000 users"]),
        ("1", "0.009", 0, []),
        ("11", "0.009", 112, ["epsilon", "delta 9.00e-3 is above 1 divided by 112 users"]),
    ],
)
def test_a_weak_guarantee_has_warnings(epsilon, delta, users, warnings):
    found = list(Bound(Fraction(epsilon), Fraction(delta)).cautions(users))
    assert len(found) == len(warnings)
    assert all(text in told for text, told in zip(warnings, found, strict=True))


def test_every_error_of_a_damaged_ledger_says_that_no_older_copy_belongs_in_its_place(place):
    result = made(place)
    secret = place / "secrets" / f"noise-{result.id}"
    kept = secret.read_bytes()
    secret.write_bytes(kept[:31])
    with pytest.raises(LedgerError, match="choose another --name"):
        made(place)
    secret.unlink()
    with pytest.raises(LedgerError, match="choose another --name"):
        made(place)
    path = place / "ledger.jsonl"
    whole = path.read_bytes()
    for broken in (whole.replace(b'"epsilon":"1"', b'"epsilon":"one"'), b"\xff\n", b"{}\n", whole * 2):
        path.write_bytes(broken)
        with pytest.raises(LedgerError, match=r"(?i)put no older copy in its place"):
            Ledger.at(place).accounts()
