"""What readers get: the table, a description of its guarantee, a picture, and before that the expected accuracy.

The files hold no data but the released rows: no totals, no number of groups left out, no times.
"""

import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from kanon.noise.exact import round_up
from kanon.pictures import panels, saved
from kanon.release.aggregate_noise import LEVEL, half_width
from kanon.release.aggregates import AllUsers, AutomaticSum, Quantiles, scale_factor
from kanon.release.errors import SpecificationError
from kanon.release.mechanism import Mechanism
from kanon.release.selection import CountedSelection, GaussianSelection, OptimalSelection, PublicCount
from kanon.release.spec import Spec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 40
"""Groups shown in the picture."""


@dataclass(frozen=True)
class ReleasedRows:
    """The released rows, one for each released group. They may be published.

    Attributes:
        columns: names of the output columns after those of the group.
        rows: the group's values and its cells, sorted by the bytes of the values.
        bounds: the drawn bounds of each aggregate that has automatic ones.
        left_out: so many users of a group, at most, do not count in it; None if that was not asked for.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[tuple[str, ...], tuple[Fraction, ...]], ...]
    bounds: Mapping[str, tuple[Fraction, Fraction]]
    left_out: int | None = None


def number(cell: Fraction) -> int | float:
    """A cell as a number: an integer, or the nearest float."""
    return cell.numerator if cell.denominator == 1 else float(cell)


def csv_bytes(released: ReleasedRows, groups: Sequence[str]) -> bytes:
    """The table as CSV with a header."""
    rows = [[*groups, *released.columns]]
    for names, cells in released.rows:
        rows.append([*map(shown_as_text, names), *(repr(number(cell)) for cell in cells)])
    return "".join(f"{','.join(map(_quoted, row))}\n" for row in rows).encode()


def _quoted(text: str) -> str:
    """A cell of CSV, in quotes also if it has a lone return, or a character by which some programs separate cells."""
    return '"{}"'.format(text.replace('"', '""')) if re.search('[",;\t\r\n]', text) else text


_FORMULA = re.compile("'*[-=+@\uff0d\uff1d\uff0b\uff20\\x00-\\x1f\\x7f]")
"""How a text begins that a spreadsheet takes for a formula (OWASP, CSV injection), or such a text with quotes."""


def shown_as_text(name: str) -> str:
    """A name for CSV. One that a spreadsheet could run as a formula gets a single quote before it."""
    return f"'{name}" if _FORMULA.match(name) else name


def parquet_bytes(released: ReleasedRows, groups: Sequence[str]) -> bytes:
    """The table as Parquet: texts and numbers. A column of integers stays one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arrays = [pa.array([names[i] for names, _ in released.rows], pa.string()) for i in range(len(groups))]
    for i in range(len(released.columns)):
        cells = [number(cells[i]) for _, cells in released.rows]
        whole = all(isinstance(cell, int) and abs(cell) < 1 << 63 for cell in cells)
        arrays.append(pa.array(cells, pa.int64()) if whole else pa.array(map(float, cells), pa.float64()))
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays, names=[*groups, *released.columns]), sink)
    return sink.getvalue()


def described(mechanism: Mechanism, released: ReleasedRows, facts: Mapping[str, str]) -> dict[str, Any]:
    """The guarantee and the specification, for the readers of the released table.

    ``facts`` are id, name, dataset and version.
    """
    spec, rule = mechanism.spec, mechanism.rule
    selection: dict[str, Any] = {
        "rule": {CountedSelection: "counted", GaussianSelection: "gaussian"}.get(
            type(rule), "groups only" if spec.only_groups else "public groups"
        ),
        "floor": rule.floor,
        "surely_released_from": rule.sure_from,
    }
    if isinstance(rule, CountedSelection):
        selection["A"] = rule.law.truncation
    if isinstance(rule, GaussianSelection):
        selection["threshold"] = rule.threshold
    cautions = {text: asked.caution for text, asked in zip(spec.aggregates, spec.asked, strict=True) if asked.caution}
    return {
        **facts,
        "guarantee": {
            "protects": protects(mechanism),
            "epsilon": round_up(mechanism.claim.epsilon),
            "delta": round_up(mechanism.claim.delta),
            "charged": {"epsilon": round_up(spec.epsilon), "delta": round_up(spec.delta)},
            "parts": [
                {
                    "name": part.name, "epsilon": round_up(part.epsilon), "delta": round_up(part.delta),
                    "tables": list(part.tables),
                }
                for part in mechanism.parts
            ],
            "outside": OUTSIDE,
        },
        "selection": selection,
        "counts": {"column": None if spec.only_groups else spec.counted, "groups_per_user": spec.groups_per_user,
                   "left_out_at_most": released.left_out, "meaning": counted(spec, released)},
        "intervals": {"level": float(LEVEL), "meaning": INTERVALS},
        "cautions": cautions,
        "automatic_bounds": {text: [number(low), number(high)] for text, (low, high) in released.bounds.items()},
        "specification": {**spec.as_json(), "digest": spec.digest},
    }  # fmt: skip


INTERVALS = (
    "of the noise, for the users that count: without users that bounding leaves out (all_.. columns include them),"
    " clamping and selection"
)
OUTSIDE = (
    "Outside the guarantee: choosing the parameters by looking at the data, publishing a risk report or an operator"
    " report, and other releases of the same data, whose costs add up in the ledger."
)


def protects(mechanism: Mechanism) -> str:
    """The unit of privacy in words."""
    spec = mechanism.spec
    unit = {
        "user": "all rows of one user", "user-day": "all rows of one user on one UTC day",
        "user-month": "all rows of one user in one UTC month",
    }[spec.unit]  # fmt: skip
    return f"{unit} (column {spec.user}), who counts in at most {spec.groups_per_user} groups"


def counted(spec: Spec, released: ReleasedRows) -> str:
    """Whom the counts count, and by how much bounding may lower them, from public and released numbers."""
    units, kappa = f"{spec.unit}s", spec.groups_per_user
    if spec.only_groups:
        return "no counts are released"
    if not spec.drops_users:
        return f"{spec.counted} counts all {units} of a group"
    told = f"{spec.counted} counts a {spec.unit} in at most {kappa} group{'s' * (kappa > 1)}"
    if released.left_out is not None:
        return f"{told}: a group has at most {released.left_out} {units} more ({float(LEVEL):.0%}, with its interval)"
    if spec.listed is not None:
        return f"{told}: on average at least {kappa} of {len(spec.listed)} {units} of a group count in it"
    return f"{told}: a group may have far more {units}, for one with m groups counts in each with probability {kappa}/m"


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Readable JSON, always the same for the same value."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def picture(released: ReleasedRows, mechanism: Mechanism) -> bytes:
    """The released groups with the largest numbers of users, with their intervals, as a PNG."""
    rows = sorted(released.rows, key=lambda row: -row[1][0] if row[1] else 0)[:SHOWN]
    figure, ((axes,),) = panels(1, 1, (8, 1.6 + 0.24 * max(1, len(rows))))
    label = f"with intervals of {float(LEVEL):.0%}\n{counted(mechanism.spec, released)}"
    _draw(axes, [(", ".join(names), cells) for names, cells in reversed(rows)], label)
    hidden = len(released.rows) - len(rows)
    more = f" (the {len(rows)} largest; {hidden} more in the table)" if hidden else ""
    axes.set_title(f"Released groups{more}\n{mechanism.claim} for {mechanism.spec.unit}", fontsize=10, loc="left")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of missing glyphs would print group names on standard error
        figure.tight_layout()
        return saved(figure)


def _draw(axes: "Axes", rows: Sequence[tuple[str, tuple[Fraction, ...]]], label: str) -> None:
    places = list(range(len(rows)))
    if rows and rows[0][1]:
        values, lows, highs = ([float(cells[i]) for _, cells in rows] for i in range(3))
        below = [value - low for value, low in zip(values, lows, strict=True)]
        above = [high - value for value, high in zip(values, highs, strict=True)]
        axes.errorbar(values, places, xerr=[below, above], fmt="o", color="#0072B2", ecolor="#999999", capsize=2, ms=4)
        axes.set_xlabel(label, wrap=True)
    axes.set_yticks(places, [_short(name) for name, _ in rows], fontsize=8, parse_math=False)
    axes.set_ylim(-0.8, max(1, len(rows)) - 0.2)
    axes.grid(axis="x", alpha=0.3)


def _short(name: str) -> str:
    shown = "".join(sign if sign.isprintable() else "?" for sign in name)
    return shown if len(shown) <= 60 else shown[:57] + "..."


KAPPAS = (1, 2, 3, 5, 10, 20)


def utility(mechanism: Mechanism) -> Iterator[str]:
    """The expected accuracy, from the tables alone: sentences about the selection, the count and each aggregate."""
    yield count_line(mechanism)
    unit = scale_factor(mechanism.spec.places)
    for i, asked in enumerate(mechanism.spec.asked):
        text = mechanism.spec.aggregates[i]
        if isinstance(asked, Quantiles):
            share = mechanism.quantiles(i)[0].epsilon
            yield f"{text}: edges of {asked.measure.cells} cells, epsilon {_digits(share)} each"
        elif isinstance(asked, AllUsers):
            yield f"{text}: number of users in too many groups +- {half_width(mechanism.left_out(i).law, LEVEL)} (95%)"
        elif isinstance(asked, AutomaticSum):
            k = mechanism.bounds_of(i).threshold
            wide = mechanism.automatic_total(i, 1 << 20).half_width(LEVEL) / (1 << 20)
            yield f"{text}: bounds need more than {k} users in a bin; then +- {_digits(wide)} times the larger bound"
        else:
            widths = (total.half_width(LEVEL) / unit for total in mechanism.totals(i))
            yield f"{text}: noise of its totals +- {', '.join(map(_digits, widths))} (95%)"


def count_line(mechanism: Mechanism) -> str:
    """One sentence about which groups are released and the accuracy of their counts."""
    rule = mechanism.rule
    if isinstance(rule, OptimalSelection):
        half = next(m for m, weight in enumerate(rule.weights) if 2 * weight >= rule.weights[-1])
        return f"groups: half of those with {half + rule.floor - 1} users, all from {rule.sure_from} users on"
    width = f"counts +- {half_width(rule.law, LEVEL)} (95%)"
    if isinstance(rule, PublicCount):
        return f"all listed groups; {width}"
    threshold = rule.threshold if isinstance(rule, GaussianSelection) else rule.law.truncation
    shape = "Gaussian" if isinstance(rule, GaussianSelection) else "two-sided"
    return (
        f"groups: about half of those with {threshold + rule.floor} users, all from {rule.sure_from} users on;"
        f" {width}, {shape} noise"
    )


def advice(mechanism: Mechanism) -> Iterator[str]:
    """The same sentence for other numbers of groups per user."""
    for kappa in KAPPAS:
        try:
            yield f"{kappa:>4}: {count_line(Mechanism(replace(mechanism.spec, groups_per_user=kappa)))}"
        except SpecificationError:
            yield f"{kappa:>4}: no table is that exact"


def _digits(x: Fraction) -> str:
    return f"{float(x):.4g}"
