"""The relational half in plain Python: slow, and written without a look at the SQL."""

import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from fractions import Fraction
from hashlib import sha256

from kanon.release.bounding import Bins, Cells, Centred, CountedRows, Distinct, Sum, UserMeans, encoded


def keyed(secret, domain, *texts):
    """The hash that orders groups, values and texts."""
    return sha256((f"{secret}/{domain}" + "".join(f"{len(t.encode())}:{t}" for t in texts)).encode()).hexdigest()


def day_of(text):
    """The UTC day of a time, or None."""
    if re.fullmatch(r"[0-9]{1,12}([.][0-9]{1,9})?", text):
        return int(text.split(".")[0]) // 86400
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp() // 86400)


def bin_of(x):
    """The bin of an integer: 0 for 0, ``i + 1`` or ``-(i + 1)`` for a size in ``2^(i-1) + 1 .. 2^i``, i = 0..63."""
    if x == 0:
        return 0
    size = min(abs(x), 1 << 63)
    i = (size - 1).bit_length()
    return i + 1 if x > 0 else -(i + 1)


def number_of(text, scale):
    """A scaled integer, rounded half to even, or None."""
    if not re.fullmatch(r" *[+-]?[0-9]+([.][0-9]*)?(e[0-9]+)? *", text):
        return None
    number = round(Fraction(text.strip()) * 10**scale)
    return number if abs(number) <= 1 << 62 else None


def valid_rows(rows, b):
    """(unit, group, numbers, texts) of each row that counts."""
    for row in rows:
        if any("\n" in cell for cell in row.values()) or not all(row[c] for c in [b.user, *b.groups, *b.texts]):
            continue
        if any((row[w.column] == w.text) != w.equal for w in b.where):
            continue
        numbers = {c: number_of(row[c] or "", b.scale) for c in b.numbers}
        if None in numbers.values():
            continue
        unit = row[b.user]
        if b.needs_time:
            day = day_of(row[b.time] or "")
            if day is None or day < 0:
                continue
            if b.period is not None and not any(start <= day < end for start, end in b.period):
                continue
            when = datetime.fromtimestamp(86400 * day, UTC)
            unit = {"user": unit, "user-day": (day, unit), "user-month": ((when.year, when.month), unit)}[b.unit]
            if b.unit != "user":
                prefix = day if b.unit == "user-day" else 12 * when.year + when.month
                unit = f"{prefix}:{unit[1]}"
        yield unit, encoded([row[g] for g in b.groups]), numbers, {c: row[c] for c in b.texts}


def kept_pairs(rows, b, secret):
    """The rows of each kept (user, group) pair."""
    pairs = defaultdict(list)
    for unit, group, numbers, texts in valid_rows(rows, b):
        if b.listed is None or group in b.listed:
            pairs[unit, group].append((numbers, texts))
    groups = defaultdict(list)
    for unit, group in pairs:
        groups[unit].append(group)
    kept = {}
    for unit, names in groups.items():
        names.sort(key=lambda name: keyed(secret, "groups", unit, name))
        kept.update({(unit, name): pairs[unit, name] for name in names[: b.kappa]})
    return kept


def left_out(rows, b):
    """The number of users with more than kappa groups."""
    pairs = {(unit, group) for unit, group, *_ in valid_rows(rows, b) if b.listed is None or group in b.listed}
    return sum(number > b.kappa for number in Counter(unit for unit, _ in pairs).values())


def sampled(unit, group, rows, b, secret):
    """The pair's rows in the order in which they are sampled."""
    seen, keys = Counter(), []
    for numbers, _ in sorted(rows, key=lambda row: [row[0][c] for c in b.numbers]):
        content = tuple(numbers[c] for c in b.numbers)
        seen[content] += 1
        keys.append((keyed(secret, "values", unit, group, *map(str, content), str(seen[content])), numbers))
    return [numbers for _, numbers in sorted(keys, key=lambda key: key[0])]


def clamp(x, m):
    return max(m.low, min(m.high, x))


def measured(m, pairs, b, secret):
    """One measure over the kept pairs of one group."""
    if isinstance(m, CountedRows):
        return sum(min(len(rows), m.most) for rows in pairs.values())
    if isinstance(m, Distinct):
        found = set()
        for (unit, group), rows in pairs.items():
            texts = sorted(
                {texts[m.column] for _, texts in rows}, key=lambda t: keyed(secret, "distinct", unit, group, t)
            )
            found |= set(texts[: m.values])
        return len(found)
    sums = {pair: sum(numbers[m.column] for numbers, _ in rows) for pair, rows in pairs.items()}
    if isinstance(m, Sum):
        return sum(clamp(s, m) for s in sums.values())
    if isinstance(m, UserMeans):
        means = ((2 * s + len(pairs[pair])) // (2 * len(pairs[pair])) for pair, s in sums.items())
        return sum(2 * clamp(mean, m) - m.low - m.high for mean in means)
    if isinstance(m, Bins):
        bins = defaultdict(lambda: [0, 0])
        for s in sums.values():
            bins[bin_of(s)][0] += 1
            bins[bin_of(s)][1] += max(-(1 << 63), min(1 << 63, s))
        return tuple(sorted((bin_, *pair) for bin_, pair in bins.items()))
    values = {pair: [n[m.column] for n in sampled(*pair, rows, b, secret)] for pair, rows in pairs.items()}
    if isinstance(m, Cells):
        cells = Counter()
        for column in values.values():
            x = clamp(column[0], m)
            cells[min(m.cells - 1, (x - m.low) * m.cells // (m.high - m.low))] += 1
        return tuple(sorted(cells.items()))
    ws = [2 * clamp(x, m) - m.low - m.high for column in values.values() for x in column[: m.values]]
    return sum(ws) if isinstance(m, Centred) else sum(2 * w * w - (m.high - m.low) ** 2 for w in ws)


def bounded(rows, b, secret):
    """(group, users, measures) of each group, sorted by the bytes of its name."""
    groups = defaultdict(dict)
    for (unit, group), pair_rows in kept_pairs(rows, b, secret).items():
        groups[group][unit, group] = pair_rows
    return [
        (name, len(pairs), tuple(measured(m, pairs, b, secret) for m in b.measures))
        for name, pairs in sorted(groups.items(), key=lambda item: item[0].encode())
    ]


def entries(rows, b, column, secret):
    """The number of users in each bin: each user counts for one kept pair."""
    sums = defaultdict(list)
    for (unit, group), pair_rows in kept_pairs(rows, b, secret).items():
        order = keyed(secret, f"bins/{column}", unit, group)
        sums[unit].append((order, sum(numbers[column] for numbers, _ in pair_rows)))
    return dict(Counter(bin_of(min(found)[1]) for found in sums.values()))
