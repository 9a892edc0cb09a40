"""``kanon operate forget``: forgets that a client joined sets. No count moves, so no answer changes.

In the states and in the log the token of the client becomes a random one (:mod:`kanon.gate.forgetting`). Control
records the new tokens before anything is changed, and until everything is: meanwhile no slot is evaluated, because a
set that has the old token in its states and the new one in the log would count the client twice. Only the new states
are kept: no recovery starts before a client was forgotten. The others are deleted.

It is safe to interrupt the command anywhere. When it is run again, it first does what is recorded.
"""

from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from kanon.dynamo.batches import chunks
from kanon.gate.fingerprints import FORGETTING
from kanon.gate.forgetting import Replacements, Token, members, tokens_of, with_tokens
from kanon.gate.mechanism.steps import step_at
from kanon.gate.mechanism.tape import SET_KEY_BYTES, following
from kanon.gate.merging import UNKNOWN
from kanon.gate.parts import Part
from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.gate.storage.aws.parts import PartList
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.storage.aws.step_log import TOKEN_BYTES
from kanon.gate.storage.aws.true_objects import step_of
from kanon.gate.sweeping import referenced
from kanon.keys import fetch_secret
from kanon.operate.changes import ChangeRefusedError, leased, places_at_work, refuse_rolled_back
from kanon.operate.stacks import RunningStack
from kanon.operate.states import has, keys_of_place, pieces_of

MOST_TOKENS = 4000
"""The tokens that are replaced at once: their record and the other attributes of its item fit into 400 KB."""
Rows = dict[Place, SlotRow]


def forget(stack: RunningStack, client: str, sets: Iterable[bytes], now: float) -> int:
    """Forget a client in these sets, of every type. Returns the number of its tokens in states and joins.

    Args:
        stack: the stack.
        client: the client as it joined.
        sets: the ids of the sets.
        now: Unix seconds.

    Raises:
        ChangeRefusedError: a worker holds a slot or has begun a step, or a deployment was rolled back.
        ConfigurationError: an entry of Slots was removed, under which joins may lie.
        LeaseLostError: the lease has expired, and a worker has taken a slot. Run again.
        UndecodableMembersError: a part is missing or damaged.
    """
    refuse_rolled_back(stack)
    steps, types, secrets = _steps(stack, now), stack.evaluate.read_types(), stack.client("secretsmanager")
    pepper = fetch_secret(secrets, "set-pepper", stack.join.set_pepper_secret)
    client_key = fetch_secret(secrets, "client-key", stack.join.client_key_secret)
    bits = {name: type_.parameters.client_bits for name, type_ in types.items()}
    found = set[Token]()
    with leased(stack.control, places_at_work(stack, now), now) as rows:
        if (recorded := stack.control.recorded("evaluate").get(FORGETTING)) is not None:
            found |= _replace(stack, rows, steps, _decoded(recorded))
        _refuse_begun(rows)
        for some in chunks(tokens_of(types, pepper, client_key, client, sets), MOST_TOKENS):
            replaced = _new_tokens(stack, rows, steps, [(token, bits[name]) for name, token in some])
            stack.control.check("evaluate", {FORGETTING: _encoded(replaced)})
            found |= _replace(stack, rows, steps, replaced)
    return len(found)


def _steps(stack: RunningStack, now: float) -> range:
    """The steps whose joins may be in the log. A clock may be a step ahead."""
    steps = range(stack.schedule.oldest_in_log(now), step_at(now, stack.evaluate.period) + 2)
    for step in steps:
        stack.log.partitions(step, 0)  # refuses if they may lie under an entry that is not configured
    return steps


def _refuse_begun(rows: Rows) -> None:
    """Refuse if a step is begun: some of its parts are decided or joins read, from which its next run continues."""
    for place, row in rows.items():
        begun = max(row.begun or 0, 0 if row.gathered is None else step_of(row.gathered))
        if begun > (row.evaluated_through or 0):
            raise ChangeRefusedError(
                f"slot {place.slot}: step {begun} is begun and not complete: run the command again after the next"
                f" evaluation"
            )


def _new_tokens(stack: RunningStack, rows: Rows, steps: range, tokens: Sequence[tuple[Token, int]]) -> dict[Token, int]:
    """Another token for each, which nobody has in the states of its set, or in joins that are not evaluated yet."""
    taken: dict[bytes, set[int]] = {token.key: set() for token, _ in tokens}
    for place, row in rows.items():
        for _, part, keys in _parts(stack, place, row, taken):
            for key in keys:
                taken[key].update(members(part, key).tolist())
    mark = min((row.evaluated_through for row in rows.values() if row.evaluated_through is not None), default=0)
    numbers = dict.fromkeys(stack.evaluate.read_types(), UNKNOWN) | stack.control.type_numbers(())
    for step in steps[max(0, mark + 1 - steps.start) :]:
        for slot, keys in _by_slot(stack, step, taken):
            with StepJoins(stack.log, slot, numbers) as joins:
                for key in keys:
                    taken[key].update(joins.joins(step, key, following(key))["token"].tolist())
    chosen = Replacements(token for token, _ in tokens)
    for token, bits in tokens:
        chosen.add(token, bits, taken[token.key])
    return chosen.new


def _replace(stack: RunningStack, rows: Rows, steps: range, replaced: Mapping[Token, int]) -> set[Token]:
    """Replace tokens in states and joins, and erase the record. Returns those that were found."""
    found = set[Token]()
    by_key: dict[bytes, dict[Token, int]] = {}
    for token, new in replaced.items():
        by_key.setdefault(token.key, {})[token] = new
    for place, row in rows.items():
        if row.manifest is not None:
            rows[place] = _put_states(stack, place, row, by_key, found)
    for step in steps:
        for slot, keys in _by_slot(stack, step, by_key):
            entries = {_entry(token): new for key in keys for token, new in by_key[key].items()}
            found.update(map(_token, stack.log.replace(step, slot, entries)))
    stack.control.erase("evaluate", FORGETTING)
    return found


def _put_states(
    stack: RunningStack, place: Place, row: SlotRow, by_key: Mapping[bytes, Mapping[Token, int]], found: set[Token]
) -> SlotRow:
    """Put the states of a slot with other tokens in the place of all its states. Returns its row."""
    parts, mark = stack.parts(place), row.evaluated_through or 0
    pieces = list(parts.list_of(row.manifest or "").pieces)
    for at, part, keys in _parts(stack, place, row, by_key):
        changed, there = with_tokens(part, {token: new for key in keys for token, new in by_key[key].items()})
        if there:
            found |= there
            pieces[at] = parts.put(changed, mark, row.run, pieces[at].first)
    manifest = parts.put_list(PartList(mark, tuple(pieces)), row.run)
    stack.control.restate(place, row.run, mark, [manifest])
    row = replace(row, manifest=manifest, kept=(manifest,), progress=None)
    parts.sweep(referenced(row, parts), row.run)
    return row


def _parts(
    stack: RunningStack, place: Place, row: SlotRow, keys: Iterable[bytes]
) -> Iterator[tuple[int, Part, list[bytes]]]:
    """The parts of a slot in which sets with these keys may be: the place of each in the manifest, and the keys."""
    pieces = pieces_of(stack, place, row) if row.manifest is not None else ()
    firsts = [bytes.fromhex(piece.first) for piece in pieces]
    there: dict[int, list[bytes]] = {}
    for key in keys:
        at = bisect_right(firsts, key) - 1
        if at >= 0 and has(keys_of_place(stack, place), key):
            there.setdefault(at, []).append(key)
    for at, own in there.items():
        yield at, stack.parts(place).read(pieces[at]), own


def _by_slot(stack: RunningStack, step: int, keys: Iterable[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """The slots of the layout at a step that have sets with these keys, and the keys."""
    slot_of = stack.evaluate.layouts.at(step).slot_of
    for slot, own in groupby(sorted(keys), key=slot_of):
        yield slot, list(own)


def _encoded(replaced: Mapping[Token, int]) -> str:
    return b64encode(
        b"".join(_entry(token) + new.to_bytes(TOKEN_BYTES, "big") for token, new in replaced.items())
    ).decode()


def _decoded(text: str) -> dict[Token, int]:
    stored, size = b64decode(text), SET_KEY_BYTES + 2 * TOKEN_BYTES
    entries = [stored[at : at + size] for at in range(0, len(stored), size)]
    return {_token(each[:-TOKEN_BYTES]): int.from_bytes(each[-TOKEN_BYTES:], "big") for each in entries}


def _entry(token: Token) -> bytes:
    """Set key and token, as in the log."""
    return token.key + token.token.to_bytes(TOKEN_BYTES, "big")


def _token(entry: bytes) -> Token:
    return Token(entry[:SET_KEY_BYTES], int.from_bytes(entry[SET_KEY_BYTES:], "big"))
