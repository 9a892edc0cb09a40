"""A service that is killed at random moments under load loses no join and gives no other answer.

``make faults`` kills it a hundred times.
"""

import base64
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from kanon.gate.joining import Join
from kanon.gate.mechanism.above_threshold import is_above
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.names import set_key
from kanon.gate.publishing import clock_step
from kanon.gate.storage.disk.control import ControlFile
from kanon.serving.api_keys import ApiKeys
from kanon.serving.directory import PLACE, Directory, Given, open_directory, place_of
from tests.faults.gate import fast_service
from tests.integration.serving.test_directory import TYPES

KILLS = 100 if os.environ.get("FAULTS") else 5
PERIOD, START = 60, 1_800_000_000.0
SETS = [bytes([n]) * 16 for n in range(12)]
PLACES = [(name, set_id) for name in TYPES for set_id in SETS]
CLIENTS, THREADS = 9, 4
MOST_ANSWERS = 200
"""The service is killed after up to this many answers."""


class Answered(NamedTuple):
    """An answer: the set, the step that was visible, the last one that could be, and the status."""

    place: tuple[str, bytes]
    visible: int | None
    at: int
    above: bool


@dataclass
class Told:
    """What clients were told."""

    joins: list[tuple[Join, float, float]] = field(default_factory=list)
    """Acknowledged joins, with the times (Unix s) before and after the request."""
    answers: list[Answered] = field(default_factory=list)
    arrived: threading.Condition = field(default_factory=threading.Condition)
    requests: int = 0

    def wait_for(self, more: int, *, true: bool) -> None:
        """Wait until clients got ``more`` answers, and perhaps until one has said that a set is true."""
        wanted = self.requests + more

        def arrived() -> bool:
            return self.requests >= wanted and (not true or any(answer.above for answer in self.answers))

        with self.arrived:
            assert self.arrived.wait_for(arrived, 60)

    def note(self) -> None:
        with self.arrived:
            self.requests += 1
            self.arrived.notify_all()


class Client:
    """Joins and queries until the service is gone."""

    def __init__(self, told: Told, port: int, key: str, now: Callable[[], float], seed: int) -> None:
        self._told, self._key, self._now, self._rng = told, key, now, random.Random(seed)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def run(self) -> None:
        with closing(self._connection), suppress(OSError, http.client.HTTPException):
            while True:
                self._rng.choice((self._query, self._join, self._join_many))()
                self._told.note()

    def _send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        return answer.status, json.loads(answer.read())

    def _some_join(self) -> Join:
        """Which sets are popular changes with time, so that sets become true and false."""
        at = int(self._now() // PERIOD // 7)
        name, set_id = self._rng.choice([place for n, place in enumerate(PLACES) if (n + at) % 3])
        return Join(name, set_id, "client", str(self._rng.randrange(CLIENTS)).encode())

    def _query(self) -> None:
        asked = [{"type": name, "hashes": [_id(set_id) for set_id in SETS]} for name in TYPES]
        code, body = self._send("POST", "/v1:batchQuery", {"setsForType": asked})
        if code != 200:
            assert code == 503  # with restart after the crossing: the answers were too old for a moment
            return
        tick = datetime.fromisoformat(body["nextUpdate"]).timestamp()
        at = clock_step(tick - 1, PERIOD, PERIOD // 2)
        true = {(entry["type"], text) for entry in body["kAnonymousSets"] for text in entry["hashes"]}
        self._told.answers.extend(
            Answered(place, body["step"], at, (place[0], _id(place[1])) in true) for place in PLACES
        )

    def _join(self) -> None:
        join, before = self._some_join(), self._now()
        code, _ = self._send("POST", f"{_path((join.type_name, join.set_id))}:join", {"client": join.client.decode()})
        assert code in (200, 503)
        if code == 200:
            self._told.joins.append((join, before, self._now()))

    def _join_many(self) -> None:
        joins, before = [self._some_join() for _ in range(self._rng.randrange(1, 20))], self._now()
        entries = [{"type": j.type_name, "set": _id(j.set_id), "client": j.client.decode()} for j in joins]
        code, body = self._send("POST", "/v1:batchJoin", {"joins": entries})
        assert code == 200
        stored = [join for join, result in zip(joins, body["results"], strict=True) if not result]
        self._told.joins.extend((join, before, self._now()) for join in stored)


def _id(set_id: bytes) -> str:
    return base64.urlsafe_b64encode(set_id).decode().rstrip("=")


def _path(place: tuple[str, bytes]) -> str:
    return f"/v1/types/{place[0]}/sets/{_id(place[1])}"


class Process:
    """A process of the service, with the end of its log."""

    def __init__(self, path: Path, began: float) -> None:
        arguments = ["-m", fast_service.__name__, str(START), str(began), str(path)]
        self._process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert self._process.stdout is not None
        self.lines: list[dict[str, Any]] = []
        self._read_until("started")
        self.port = int(self.lines[-1]["url"].rpartition(":")[2])
        self._reader = threading.Thread(target=self._read_until, args=(None,), daemon=True)
        self._reader.start()

    def _read_until(self, message: str | None) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            assert text.startswith(b"{"), text + self._process.stdout.read()
            self.lines.append(json.loads(text))
            if self.lines[-1]["message"] == message:
                return
        assert message is None, self.lines

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        code = self._process.wait(60)
        self._reader.join(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


def undisturbed(path: Path, copy: Path) -> Directory:
    """A directory with the same secrets and joins in which nothing was evaluated."""
    shutil.copytree(path, copy)
    shutil.rmtree(copy / "parts")
    with closing(ControlFile(copy)) as control:
        for table in ("progress", "manifests", "statuses"):
            control.database.execute(f"DELETE FROM {table}")
        control.put_text(PLACE, place_of(copy))
    return open_directory(copy, None, START)


def crossings_of(directory: Directory, last: int) -> dict[tuple[str, bytes], set[int]]:
    """All crossings up to a step, evaluated one after the other."""
    keys = {place: set_key(directory.joining.pepper, *place) for place in PLACES}
    found: dict[tuple[str, bytes], set[int]] = defaultdict(set)
    for step in range(int(START // PERIOD), last + 1):
        directory.evaluate(end_of(step, PERIOD) + directory.settings.grace)
        stored, _ = directory.control.read(keys.values(), ())
        for place, key in keys.items():
            found[place].update(stored.get(key, ()))
    return found


def logged(directory: Directory) -> dict[int, set[bytes]]:
    """The entries of each step: set key, token, type."""
    everything = bytes(16), None
    return {step: {bytes(entry) for entry in directory.log.joins(step, *everything)} for step in directory.log.steps()}


def test_a_service_that_is_killed_loses_no_join_and_gives_no_other_answer(tmp_path: Path) -> None:
    rng, told, path = random.Random(30), Told(), tmp_path / "data"
    with open_directory(path, Given(PERIOD, json.dumps(TYPES)), START) as directory:
        key = ApiKeys(lambda: directory.control.database).make(None, START)[1]
    began = time.time()

    def now() -> float:
        return START + (time.time() - began) * fast_service.SPEED

    for kill in range(KILLS + 1):
        process = Process(path, began)
        clients = [Client(told, process.port, key, now, kill * THREADS + n) for n in range(THREADS)]
        threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
        for thread in threads:
            thread.start()
        told.wait_for(rng.choice((0, rng.randrange(MOST_ANSWERS))), true=kill == KILLS)
        ended = process.end(signal.SIGKILL if kill < KILLS else signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert ended == (-signal.SIGKILL if kill < KILLS else 0)
        assert [json.dumps(line) for line in process.lines if line["level"] != "INFO"] == []

    with closing(undisturbed(path, tmp_path / "copy")) as directory:
        found = logged(directory)
        for join, before, after in told.joins:
            steps = range(step_at(before, PERIOD), step_at(after, PERIOD) + 1)
            row = directory.joining.row(join, START)
            entry = directory.log._entry(row)
            assert any(entry in found.get(step, ()) for step in steps), f"{join} was acknowledged and is not in the log"
        crossings = crossings_of(directory, step_at(now(), PERIOD) - 1)
        types = directory.types
        for place, visible, at, above in told.answers:
            searches = Searches.of(types[place[0]].parameters, set_key(directory.joining.pepper, *place))
            expected = visible is not None and is_above(searches, crossings[place], visible, at)
            assert above == expected, f"{place} at step {visible}, clock step {at}"
        with closing(ControlFile(path)) as control:
            mark = control.evaluated_through()
            assert mark is not None
            keys = [set_key(directory.joining.pepper, *place) for place in PLACES]
            assert control.read(keys, ())[0].keys() <= directory.control.read(keys, ())[0].keys()
    print(f"{KILLS} kills, {len(told.joins)} joins, {len(told.answers)} answers, {mark - START // PERIOD} steps")
    assert {answer.above for answer in told.answers} == {True, False}
