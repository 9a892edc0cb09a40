"""The naive algorithm beside a running stack: the same joins, the same keys, every step of every set."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from kanon.client import Client, Join, encoded
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import LogGeneration, Tapes
from kanon.gate.names import client_token, set_key
from kanon.gate.types import read_types
from kanon.keys import fetch_noise_keys, fetch_secret
from kanon.local.stack import Stack
from tests.naive import Naive


def laws(shape: str, epsilon: str, threshold: int, query: int) -> dict[str, Any]:
    """The noise of a type's configuration, with these truncations."""
    return {
        "threshold": {"shape": shape, "epsilon": epsilon, "truncation": threshold},
        "query": {"shape": shape, "epsilon": epsilon, "truncation": query},
    }


class TapesByKey:
    """The tapes of one type: of a search, those of the last key whose first step is not after the search's."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        self.by_first_step: dict[int, Tapes] = {}

    def words(self, set_key: bytes, place: int, count: int, page: int = 0) -> bytes:
        window, first = self._parameters.window, place
        if self._parameters.restart is None:
            phase = int.from_bytes(set_key[-8:], "big") % window if self._parameters.phase == "hash" else 0
            first = place * window + phase
        start = max(at for at in self.by_first_step if at <= first)
        return self.by_first_step[start].words(set_key, place, count, page)


class Oracle:
    """Joins sets of a stack over HTTP and computes the right answers."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.client = Client(stack.request)
        secrets = stack.session.client("secretsmanager")
        join, evaluate = stack.functions["join"].environment, stack.functions["evaluate"].environment
        self.period = int(join["KANON_PERIOD"])
        self.publish_delay = int(evaluate["KANON_PUBLISH_DELAY"])
        self._pepper = fetch_secret(secrets, "set-pepper", join["KANON_SET_PEPPER_SECRET"])
        self._client_key = fetch_secret(secrets, "client-key", join["KANON_CLIENT_KEY_SECRET"])
        self.types = read_types(join["KANON_TYPES"], self.period)
        self._tapes = {name: TapesByKey(t.parameters) for name, t in self.types.items()}
        self._naive = {
            name: Naive(t.parameters, self._tapes[name])  # type: ignore[arg-type]
            for name, t in self.types.items()
        }
        self.begin_key("1", 0)
        self._keys: dict[tuple[str, bytes], bytes] = {}
        self.now_step = int(stack.clock.now() // self.period)
        self.answered: dict[tuple[str, bytes], bool] = {}

    def begin_key(self, key_id: str, first: int) -> None:
        """Searches that begin at step ``first`` or later draw from this noise key, as it is in the secret now."""
        environment = self.stack.functions["evaluate"].environment
        manager = self.stack.session.client("secretsmanager")
        key = fetch_noise_keys(manager, environment["KANON_NOISE_KEY_SECRET"], [key_id])[key_id]
        for name, type_ in self.types.items():
            tapes = Tapes(key, environment["KANON_DEPLOYMENT"], name, type_.parameters)
            self._tapes[name].by_first_step[first] = tapes

    def begin_generation(self, log: str, from_step: int) -> None:
        """From the next step on all noise is that of a log generation."""
        for name, naive in self._naive.items():
            tapes = self._tapes[name]
            tapes.by_first_step = {
                first: replace(each, generation=LogGeneration(log, from_step))
                for first, each in tapes.by_first_step.items()
            }
            naive.begin_generation(tapes, from_step)  # type: ignore[arg-type]

    def lose(self, steps: range, sets: Collection[bytes] | None = None) -> None:
        """Forget the joins of some steps, of all sets or of those with these keys."""
        for naive in self._naive.values():
            for key, by_step in naive.joins.items():
                if sets is None or key in sets:
                    for step in steps:
                        by_step.pop(step, None)

    def watch(self, type_name: str, set_id: bytes) -> None:
        """Compare this set from now on."""
        self._keys[type_name, set_id] = set_key(self._pepper, type_name, set_id)

    def forget(self) -> None:
        """Compare no set any more; later ones start afresh."""
        self._keys.clear()

    def join_all(self, joins: list[tuple[str, bytes, str]]) -> None:
        """Join (type, set id, client) now, over HTTP and in the naive log."""
        self.client.join_many(Join(type_name, encoded(set_id), client) for type_name, set_id, client in joins)
        self.hear(joins)

    def hear(self, joins: list[tuple[str, bytes, str]]) -> None:
        """Put current joins only into the naive log."""
        for type_name, set_id, client in joins:
            self.watch(type_name, set_id)
            key, bits = self._keys[type_name, set_id], self.types[type_name].parameters.client_bits
            token = client_token(self._client_key, key, "client", client.encode(), bits)
            self._naive[type_name].join(key, token, self.now_step)

    def finish_step(self) -> int:
        """Let the step end and its tick come; compare every set; return how many differ from the naive answer."""
        step = self.now_step
        self.stack.advance_to((step + 1) * self.period + self.publish_delay)
        self.answered = self.answers(step)
        expected = self.pass_step()
        return sum(self.answered[place] != expected[place] for place in expected)

    def pass_step(self) -> dict[tuple[str, bytes], bool]:
        """Let only the naive algorithm finish a step. Returns its answers."""
        step, self.now_step = self.now_step, self.now_step + 1
        return {place: self._naive[place[0]].step(key, step) for place, key in self._keys.items()}

    def answers(self, step: int | None = None) -> dict[tuple[str, bytes], bool]:
        """The status of every set over HTTP, now; all at ``step`` if one is given."""
        sent = {(type_name, encoded(set_id)): (type_name, set_id) for type_name, set_id in self._keys}
        answers = self.client.batch_query(sent)
        assert not sent or step is None or answers.step == step, (answers.step, step)
        return {place: name in answers.k_anonymous for name, place in sent.items()}
