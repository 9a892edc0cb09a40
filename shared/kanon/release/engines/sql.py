"""The bounding as one SQL text for all engines; a dialect has the differences in syntax.

Its source holds rows that ``kanon.joinlog`` has read and checked. Comparisons are binary, hashes and lengths are of
UTF-8 bytes, and no expression can fail on a value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kanon.joinlog.rows import LogReading
from kanon.release.bounding import (
    LARGEST_VALUE,
    LEFT_OUT,
    Bins,
    Bounding,
    Cells,
    Centred,
    Clamped,
    CountedRows,
    Distinct,
    Measure,
    Squares,
    Sum,
    UserMeans,
    bin_edges,
)
from kanon.release.errors import InputError

UNREADABLE = "the engine cannot read the input: check that it is valid CSV or Parquet"

OPERATOR_COUNTS = ("rows_used", "users", "users_with_too_many_groups", "groups", "groups_after_bounding")


@dataclass(frozen=True)
class Dialect:
    """The syntax of an engine, as format strings.

    Attributes:
        name: the engine's name.
        wide: an integer type of at least 38 digits.
        sha256: hexadecimal SHA-256 of a text.
        octets: length of a text in bytes.
        quotient: the quotient of two integers that are not negative, rounded down.
        joined: all texts of a group, separated by commas, in any order.
        escapes: whether a backslash in a text literal must be doubled.
    """

    name: str
    wide: str
    sha256: str
    octets: str
    quotient: str
    joined: str
    escapes: bool = False

    def literal(self, text: str) -> str:
        """A quoted text."""
        text = text.replace("\\", "\\\\") if self.escapes else text
        return "'" + text.replace("'", "''") + "'"

    def whole(self, expression: str) -> str:
        """The expression as a wide integer."""
        return f"cast({expression} as {self.wide})"

    def hashed(self, secret: str, domain: str, *expressions: str) -> str:
        """The keyed hash of texts. Each follows its length, so that the encoding is injective."""
        parts = [self.literal(f"{secret}/{domain}")]
        for text in expressions:
            parts += [f"cast({self.octets.format(text)} as varchar(20))", "':'", text]
        return self.sha256.format(" || ".join(parts))


DUCKDB = Dialect(
    "duckdb", "hugeint", "sha256({})", "strlen({})", "({} // {})", "string_agg({}, ',')",
)  # fmt: skip
ATHENA = Dialect(
    "athena", "decimal(38, 0)", "lower(to_hex(sha256(to_utf8({}))))", "length(to_utf8({}))",
    "floor({} / {})", "array_join(array_agg({}), ',')",
)  # fmt: skip

SPARK = Dialect(
    "spark", "decimal(38, 0)", "sha2({}, 256)", "octet_length({})",
    # Exact: subtract the remainder first. Spark's own integer division is limited to 64 bits.
    "cast((cast({0} as decimal(38, 0)) - cast({0} as decimal(38, 0)) % cast({1} as decimal(38, 0)))"
    " / cast({1} as decimal(38, 0)) as decimal(38, 0))",
    "concat_ws(',', collect_list({}))", escapes=True,
)  # fmt: skip
DIALECTS = {dialect.name: dialect for dialect in (DUCKDB, SPARK, ATHENA)}


@dataclass(frozen=True)
class SqlTexts:
    """The SQL of one bounding.

    Attributes:
        bounding: the computation.
        dialect: the engine's syntax.
        source: a relation with ``bounding.columns``: texts, integers, and days since 1970.
        secret: the key of the hashes; letters and digits.
    """

    bounding: Bounding
    dialect: Dialect
    source: str
    secret: str

    @property
    def read_source_once(self) -> bool:
        """Whether the source may be a stream: :meth:`table` reads it once, and no other text is needed."""
        return not self._sampled_values() and not self.bins()

    def table(self) -> str:
        """One row for each group: ``grp``, ``users``, ``m0``, ``m1``, .. in the order of the measures."""
        return f"{self._kept_pairs()}{self._sampled_values()}{self._per_group()}"

    def bins(self) -> dict[str, str]:
        """By column with automatic bounds, one row for each bin: the users whose one entry falls into it.

        The entry of a user is that of a random kept pair. The users with too many groups, if wanted, are one more bin.
        """
        found = {m.column: self._users_in_bins(m.column) for m in self.bounding.measures if isinstance(m, Bins)}
        if self.bounding.left_out:
            found[LEFT_OUT] = f"{self._kept_pairs()}\nselect 0 as bin, count(*) as users from busy"
        return found

    def _users_in_bins(self, column: str) -> str:
        sums = f"s{self.bounding.numbers.index(column)}"
        place = f"row_number() over (partition by usr order by {self._hash(f'bins/{column}', 'usr', 'grp')}, grp)"
        return (
            f"{self._kept_pairs()}\n"
            f"select bin, count(*) as users from (\n"
            f"  select {_bin_case(sums)} as bin, {place} as place from kept) entries\n"
            f"where place = 1 group by bin"
        )

    def operator_counts(self) -> str:
        """Numbers for the operator alone, in the order of ``OPERATOR_COUNTS``."""
        return (
            f"{self._kept_pairs()}\n"
            f"select (select coalesce(sum(n), 0) from pairs), (select count(distinct usr) from pairs),\n"
            f"  (select count(*) from busy), (select count(distinct grp) from pairs),"
            f" (select count(distinct grp) from kept)"
        )

    # Step A and B.

    def _kept_pairs(self) -> str:
        b = self.bounding
        sums = "".join(f", sum({self.dialect.whole(f'v{i}')}) as s{i}" for i in range(len(b.numbers)))
        names = "".join(f", s{i}" for i in range(len(b.numbers)))
        return f"""with valid as (
{self._valid()}
), pairs as (
  select usr, grp, count(*) as n{sums} from valid group by usr, grp
), busy as (
  select usr from pairs group by usr having count(*) > {b.kappa}
), ranked as (
  select p.usr, p.grp, n{names},
    row_number() over (partition by p.usr order by {self._hash("groups", "p.usr", "p.grp")}, p.grp) as place
  from pairs p join busy on busy.usr = p.usr
), kept as (
  select usr, grp, n{names} from pairs where not exists (select 1 from busy where busy.usr = pairs.usr)
  union all
  select usr, grp, n{names} from ranked where place <= {b.kappa}
)"""

    def _valid(self) -> str:
        """The unit, the group, and the values of each row."""
        b = self.bounding
        unit = {
            "user": "u",
            "user-day": "cast(day as varchar(20)) || ':' || u",
            "user-month": f"{self._month()} || ':' || u",
        }[b.unit]
        values = "".join(f", {name}" for name in b.columns if name[0] in "vt")
        listed = "\n  where exists (select 1 from listed where listed.grp = named.grp)" if b.listed is not None else ""
        return (
            f"  select usr, grp{values} from (\n"
            f"    select {unit} as usr, {self._group()} as grp{values} from {self.source} source) named{listed}"
        )

    def _month(self) -> str:
        """The month of a day as text, unique for each month."""
        return "cast(year(date '1970-01-01' + {0}) * 12 + month(date '1970-01-01' + {0}) as varchar(20))".format(
            "interval '1' day * day" if self.dialect.name == "athena" else "cast(day as integer)"
        )

    def _group(self) -> str:
        """``bounding.encoded`` in SQL."""
        if len(self.bounding.groups) == 1:
            return "g0"
        return " || ".join(
            f"cast({self.dialect.octets.format(f'g{i}')} as varchar(20)) || ':' || g{i}"
            for i in range(len(self.bounding.groups))
        )

    # Step C.

    def _sampled_values(self) -> str:
        """The values of each kept pair in a random order that depends on that pair's own rows only."""
        b = self.bounding
        parts = []
        if any(isinstance(m, Centred | Squares | Cells) for m in b.measures):
            names = [f"v{i}" for i in range(len(b.numbers))]
            row = [f"cast({name} as varchar(20))" for name in names]
            key = self._hash("values", "usr", "grp", *row, "cast(occurrence as varchar(20))")
            values = ", ".join(names)
            parts.append(
                f"""numbered as (
  select valid.usr, valid.grp, {", ".join(f"valid.{name}" for name in names)},
    row_number() over (partition by valid.usr, valid.grp, {values} order by {values}) as occurrence
  from valid join kept on kept.usr = valid.usr and kept.grp = valid.grp
), sampled as (
  select grp, {values},
    row_number() over (partition by usr, grp order by {key}, {values}, occurrence) as place
  from numbered
), of_values as (
  select grp{"".join(self._sampled_column(m, i) for i, m in enumerate(b.measures))}
  from sampled group by grp
)"""
            )
        for i, measure in enumerate(b.measures):
            if isinstance(measure, Cells):
                parts.append(self._histogram(measure, i))
            elif isinstance(measure, Distinct):
                parts.append(self._distinct(measure, i))
            elif isinstance(measure, Bins):
                parts.append(self._binned(measure, i))
        return "".join(f", {part}" for part in parts)

    def _sampled_column(self, measure: Measure, i: int) -> str:
        if not isinstance(measure, Centred | Squares):
            return ""
        w = f"(2 * {self._clamped(self._value(measure.column), measure)} - ({measure.low + measure.high}))"
        width = (measure.high - measure.low) ** 2
        term = w if isinstance(measure, Centred) else f"(2 * {w} * {w} - {self.dialect.whole(str(width))})"
        zero = self.dialect.whole("0")
        return f",\n    sum(case when place <= {measure.values} then {term} else {zero} end) as m{i}"

    def _histogram(self, measure: Cells, i: int) -> str:
        distance = f"({self._clamped(self._value(measure.column), measure)} - ({measure.low}))"
        scaled = self.dialect.quotient.format(f"({distance} * {measure.cells})", measure.high - measure.low)
        pair = "cast(cell as varchar(20)) || ':' || cast(number as varchar(20))"
        return f"""cells{i} as (
  select grp, cell, count(*) as number from (
    select grp, cast(least({measure.cells - 1}, {scaled}) as bigint) as cell from sampled where place = 1) placed
  group by grp, cell
), histogram{i} as (
  select grp, {self.dialect.joined.format(pair)} as m{i} from cells{i} group by grp
)"""

    def _distinct(self, measure: Distinct, i: int) -> str:
        text = f"t{self.bounding.texts.index(measure.column)}"
        key = self._hash("distinct", "usr", "grp", text)
        return f"""texts{i} as (
  select distinct valid.usr, valid.grp, {text}
  from valid join kept on kept.usr = valid.usr and kept.grp = valid.grp
), distinct{i} as (
  select grp, count(distinct {text}) as m{i} from (
    select grp, {text}, row_number() over (partition by usr, grp order by {key}, {text}) as place
    from texts{i}) placed
  where place <= {measure.values} group by grp
)"""

    def _binned(self, measure: Bins, i: int) -> str:
        sums = f"s{self.bounding.numbers.index(measure.column)}"
        low, high = (self.dialect.whole(edge) for edge in (str(-(1 << 63)), str(1 << 63)))
        triple = " || ':' || ".join(f"cast({name} as varchar(40))" for name in ("bin", "number", "total"))
        return f"""bins{i} as (
  select grp, bin, count(*) as number, sum(greatest(least({sums}, {high}), {low})) as total
  from (select grp, {sums}, {_bin_case(sums)} as bin from kept) placed group by grp, bin
), binned{i} as (
  select grp, {self.dialect.joined.format(triple)} as m{i} from bins{i} group by grp
)"""

    def _per_group(self) -> str:
        b = self.bounding
        columns, joins = ["pair_counts.grp", "users"], []
        counts = []
        for i, measure in enumerate(b.measures):
            column = self._pair_column(measure)
            if column is not None:
                counts.append(f"sum({column}) as m{i}")
            elif isinstance(measure, Centred | Squares):
                joins.append("of_values")
            else:
                joins.append(f"{ {Cells: 'histogram', Distinct: 'distinct', Bins: 'binned'}[type(measure)] }{i}")
            columns.append(f"m{i}")
        joined = "".join(f"\njoin {one} on {one}.grp = pair_counts.grp" for one in dict.fromkeys(joins))
        return f""", pair_counts as (
  select grp, {", ".join(["count(*) as users", *counts])} from kept group by grp
)
select {", ".join(columns)} from pair_counts{joined}"""

    def _pair_column(self, measure: Measure) -> str | None:
        """A measure that is a sum over kept pairs."""
        whole = self.dialect.whole
        match measure:
            case CountedRows(most):
                return f"least(n, {most})"
            case Sum(column, _, _):
                return self._clamped(f"s{self.bounding.numbers.index(column)}", measure)
            case UserMeans(column, low, high):
                # The sum is made positive, so that every engine rounds the quotient down.
                sums = f"s{self.bounding.numbers.index(column)}"
                lift = whole(str(LARGEST_VALUE))
                lifted = f"(2 * ({sums} + n * {lift}) + n)"
                mean = f"({self.dialect.quotient.format(lifted, '(2 * n)')} - {lift})"
                return f"(2 * {self._clamped(mean, measure)} - ({low + high}))"
        return None

    def _clamped(self, expression: str, measure: Clamped) -> str:
        whole = self.dialect.whole
        return f"least(greatest({expression}, {whole(str(measure.low))}), {whole(str(measure.high))})"

    def _value(self, column: str) -> str:
        return self.dialect.whole(f"v{self.bounding.numbers.index(column)}")

    def _hash(self, domain: str, *expressions: str) -> str:
        return self.dialect.hashed(self.secret, domain, *expressions)


def _bin_case(sums: str) -> str:
    """The bin of a sum (``bounding.bin_edges``); larger sums are in the last one."""
    cases = [f"when {sums} = 0 then 0"]
    cases += [f"when {sums} > 0 and {sums} <= {bin_edges(b)[1]} then {b}" for b in range(1, 65)]
    cases += [f"when {sums} < 0 and {sums} >= {bin_edges(-b)[0]} then {-b}" for b in range(1, 65)]
    return f"case {' '.join(cases)} when {sums} > 0 then 64 else -64 end"


NO_ROWS = "no row of the input is used: check --where and --days, and that there are rows that can be read"


def refuse_unnamed(reading: LogReading) -> None:
    """Refuse a condition on a column that no row has: ``!=`` would be true of all rows, for a slip of the hand.

    Raises:
        InputError: there is one.
    """
    for column in sorted(reading.unnamed or ()):
        raise InputError(f"no row has the column {column!r} of --where: correct its name, or leave it out")


def operator_report(counts: Sequence[int], reading: LogReading) -> dict[str, Any]:
    """Exact numbers for the operator alone; ``counts`` are ``SqlTexts.operator_counts``."""
    left_out = [
        {"column": fault.column, "reason": fault.reason, "rows": rows}
        for fault, rows in sorted(reading.left_out.items())
    ]
    numbers = dict(zip(OPERATOR_COUNTS, counts, strict=True))
    return {"rows": reading.rows, "rows_left_out": reading.left_out.total(), "left_out": left_out, **numbers}


def plan(bounding: Bounding, dialect: Dialect) -> Sequence[str]:
    """The SQL texts for an engine that the operator runs."""
    texts = SqlTexts(bounding, dialect, "source_table", "SAMPLING_SECRET")
    return [texts.table(), *texts.bins().values()]
