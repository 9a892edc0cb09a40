"""The reference for evaluation: a good plain loop over sets, which reads each tape once.

It is short, has no numpy, and uses only the tapes and noise distributions of the service. Its items are byte for byte
those of the service.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

from kanon.dynamo.units import item_size
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes

Item = dict[str, Any]
TOKEN_BYTES = 2
"""Client tokens of 16 bits, the default."""


def evaluate_set(  # noqa: C901, one loop, as it would be written first
    parameters: Parameters, tapes: Tapes, step: int, set_key: bytes, old: Item, joined: Iterable[int], allowance: int
) -> Item:
    """The Members item of a set of type ``fledge`` after ``step``; ``old`` is the item before it, or empty."""
    window, lowest = parameters.window, parameters.query_law.lowest
    packed = old["members"]["B"] if old else b""
    evaluated = int.from_bytes(packed[2:10], "big")
    last = {token: evaluated - age for token, age in struct.iter_unpack(">HH", packed[10:])}
    last = {token: at for token, at in last.items() if at > step - window}
    last.update(dict.fromkeys(joined, step))
    members = sorted([(-at, token) for token, at in last.items()])[: parameters.members_kept]
    crossings = [int(number["N"]) for number in old["crossings"]["L"]] if "crossings" in old else []

    phase = int.from_bytes(set_key[-8:], "big") % window
    first = (step - phase) // window * window + phase
    wake_up = None
    for begin in (first, first + window):
        at, count = max(step, begin), len(members)
        if begin == first and crossings and crossings[-1] >= first:
            continue  # true until the end of this instance
        while count and window - members[count - 1][0] <= at:
            count -= 1
        if count < parameters.never_true_below:
            continue
        words = struct.unpack(f">{1 + window}Q", tapes.words(set_key, (begin - phase) // window, 1 + window))
        threshold = parameters.k + parameters.threshold_law.draw(words[0]) - lowest
        cumulative = parameters.query_law.cumulative
        while at < begin + window and count + len(cumulative) - 1 >= threshold:
            if count + bisect_right(cumulative, words[1 + at - begin]) >= threshold:
                break
            at += 1
            while count and window - members[count - 1][0] <= at:
                count -= 1
        else:
            continue
        if at > step:
            wake_up = at
            break
        crossings = [*crossings[-1:], step]

    needed = [step]
    ages = b"".join([struct.pack(">HH", token, step + negative) for negative, token in members])
    item: Item = {
        "set_key": {"B": set_key},
        "type": {"S": "fledge"},
        "members": {"B": struct.pack(">BBq", 1, TOKEN_BYTES, step) + ages},
        "evaluated": {"N": str(step)},
    }
    if members:
        needed.append(window - members[0][0])
    if crossings:
        item["crossings"] = {"L": [{"N": str(at)} for at in crossings]}
        needed.append((crossings[-1] - phase) // window * window + phase + window - 1)
    if wake_up is not None:
        item["wake_up"] = {"N": str(wake_up)}
        needed.append(wake_up)
    item["ttl"] = {"N": str((max(needed) + 1) * parameters.period + allowance)}
    if gap := -item_size(item) % 1024:
        item["p"] = {"B": bytes(gap - 1)}
    return item
