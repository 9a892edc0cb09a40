"""``make tpch``: the data of TPC-H at scale factor 1, and the group counts that the reference tables use.

The thesis measures its mechanism on five queries of TPC-H (Desfontaines 2020, tables 4.4 and 4.5). This module makes
the data with ``tpchgen-cli``, counts the users of every group with DuckDB, and compares the counts with the recorded
ones in ``tests/vectors/tpch.json``. The tables need only the counts, so ``make test`` computes them without the data
(``tests/unit/release/test_reference_tables.py``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

if TYPE_CHECKING:
    from collections.abc import Iterable

TABLES = ("customer", "orders", "lineitem", "supplier", "partsupp", "part", "nation")
GENERATOR = Path(".venv-rivals/bin/tpchgen-cli")
COUNTS = Path(__file__).with_name("tpch.json")

PRICING = """
    select l_suppkey usr, l_extendedprice price from lineitem
    where l_shipdate <= date '1998-09-02' and l_returnflag = 'A' and l_linestatus = 'F'
"""
"""Query 1, its first group: one row a line item."""
CELLS = 4096
HIGHEST_PRICE = 100_000
MEDIANS = f"""
    select least({CELLS - 1}, floor(price * {CELLS} / {HIGHEST_PRICE}))::int cell, count(*) from (
        select median(price) price from ({PRICING}) group by usr) group by cell
"""
"""Query 1: the number of suppliers with their median price in each cell of the grid of quantiles."""
SUPPLIER_ROWS = """
    select max(n) from (
        select count(*) n from lineitem where l_shipdate <= date '1998-09-02'
        group by l_suppkey, l_returnflag, l_linestatus)
"""
ORDERS = """
    select o_custkey usr, o_orderpriority grp from orders
    where o_orderdate >= date '1993-07-01' and o_orderdate < date '1993-10-01' and exists (
        select 1 from lineitem where l_orderkey = o_orderkey and l_commitdate < l_receiptdate)
"""
"""Query 4: late orders by priority."""
ORDERS_A_CUSTOMER = """
    select c_custkey usr, count(o_orderkey) grp
    from customer left join orders on c_custkey = o_custkey and o_comment not like '%special%requests%'
    group by c_custkey
"""
"""Query 13: customers by their number of orders."""
PARTS = """
    select ps_suppkey usr, p_brand || '|' || p_type || '|' || p_size grp
    from partsupp join part on p_partkey = ps_partkey
    where p_brand <> 'Brand#45' and p_type not like 'MEDIUM POLISHED%' and p_size in (49, 14, 23, 45, 19, 3, 36, 9)
    and ps_suppkey not in (select s_suppkey from supplier where s_comment like '%Customer%Complaints%')
"""
"""Query 16: suppliers by brand, type and size of a part."""
USERS_A_PART = f"select count(distinct usr) n from ({PARTS}) group by grp"
GROUPS_A_SUPPLIER = 5
EPSILON_A_GROUP = 0.01
SAMPLED = f"""
    with pairs as (select distinct usr, grp from ({PARTS})),
    kept as (select grp, least(1, {GROUPS_A_SUPPLIER} / count(*) over (partition by usr)) q from pairs)
    select round(avg(none), 9), round(avg(moment), 9) from (
        select exp(sum(ln(1 - q))) none, exp(sum(ln(1 - q + q * exp({EPSILON_A_GROUP})))) moment from (
            select grp, least(q, 1 - 1e-12) q from kept) group by grp)
"""
"""Query 16 with 5 groups per supplier, chosen at random: the mean over the groups of P(X = 0) and of E[exp(0.01 X)],
where X is the number of suppliers left in a group."""
WAITING = """
    select s_suppkey usr, s_name grp
    from supplier, lineitem late, orders, nation
    where s_suppkey = late.l_suppkey and o_orderkey = late.l_orderkey and o_orderstatus = 'F'
    and late.l_receiptdate > late.l_commitdate and s_nationkey = n_nationkey and n_name = 'SAUDI ARABIA'
    and exists (select 1 from lineitem other
        where other.l_orderkey = late.l_orderkey and other.l_suppkey <> late.l_suppkey)
    and not exists (select 1 from lineitem other
        where other.l_orderkey = late.l_orderkey and other.l_suppkey <> late.l_suppkey
        and other.l_receiptdate > other.l_commitdate)
"""
"""Query 21: suppliers who kept orders waiting."""


def main(arguments: list[str] | None = None) -> int:
    """Make the data where it is missing, count, and compare; 1 if a count differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.vectors.tpch", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("build/tpch"), help="where the data are or are made")
    parser.add_argument("--write", action="store_true", help="record the counts")
    asked = parser.parse_args(arguments)
    make(asked.folder)
    found = counts(asked.folder)
    if asked.write:
        COUNTS.write_text(json.dumps(found, separators=(",", ": ")) + "\n")
    recorded = json.loads(COUNTS.read_text())
    different = [query for query in recorded if found[query] != recorded[query]]
    for query in recorded:
        print(f"{query:<4} {'DIFFERS from the recorded counts' if query in different else 'as recorded'}")
    return 1 if different else 0


def make(folder: Path) -> None:
    """Generate the tables that are missing (350 MB in all)."""
    if missing := [table for table in TABLES if not (folder / f"{table}.parquet").exists()]:
        folder.mkdir(parents=True, exist_ok=True)
        tables = f"--tables={','.join(missing)}"
        subprocess.run([GENERATOR, "parquet", "-s", "1", tables, "--output-dir", folder], check=True)


def counts(folder: Path) -> dict[str, Any]:
    """The counts of the five queries, as JSON holds them."""
    connection = duckdb.connect()
    for table in TABLES:
        connection.execute(f"create view {table} as select * from '{folder / table}.parquet'")

    def rows(query: str) -> list[tuple[Any, ...]]:
        return connection.execute(query).fetchall()

    ((lines, suppliers, average),) = rows(f"select count(*), count(distinct usr), avg(price) from ({PRICING})")
    ((most_rows,),) = rows(SUPPLIER_ROWS)
    waits = rows(f"select count(*) from ({WAITING}) group by grp")
    return {
        "Q1": {
            "rows": lines,
            "users": suppliers,
            "average": average,
            "most_rows_a_user": most_rows,
            "medians": _lists(rows(MEDIANS)),
        },
        "Q4": {"users": _lists(rows(f"select grp, count(distinct usr) from ({ORDERS}) group by grp"))},
        "Q13": {"users": _lists(rows(f"select grp, count(*) from ({ORDERS_A_CUSTOMER}) group by grp"))},
        "Q16": {
            "groups_by_users": _lists(rows(f"select n, count(*) from ({USERS_A_PART}) group by n")),
            "sampled": dict(zip(("none_left", "moment"), rows(SAMPLED)[0], strict=True)),
        },
        "Q21": {"groups": len(waits), "rows": sorted(n for (n,) in waits)},
    }


def _lists(rows: Iterable[tuple[Any, int]]) -> list[list[Any]]:
    """Rows as sorted lists, as JSON reads them."""
    return [list(row) for row in sorted(rows)]


if __name__ == "__main__":
    sys.exit(main())
