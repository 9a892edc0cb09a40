"""`kanon serve` rehearses what docs/guides/operate.md describes: a new type, a suppression, a rotation."""

import json
import time
from datetime import datetime
from pathlib import Path
from urllib.request import Request, urlopen

from kanon.client import ApiError, Client, Join, SetId, value_id
from kanon.console.answering import MOVE, TOKEN
from kanon.gate.fingerprints import NOISE_KEY
from kanon.operate.stacks import local_stack
from tests.e2e.test_cli import console, run, serving, until

LAW = {"shape": "two-sided", "epsilon": "0.7", "truncation": 3}
TYPE = {"k": 8, "window": 30, "laws": {"threshold": LAW, "query": LAW}}


def test_a_new_type_a_suppression_and_a_rotation_are_deployed_while_the_service_runs(tmp_path: Path) -> None:
    types, parameters = tmp_path / "types.json", tmp_path / "parameters.json"
    types.write_text(json.dumps({"fledge": TYPE}))
    parameters.write_text("{}")
    options = ("--period", "2", "--types", str(types), "--parameters", str(parameters))
    with serving(*options) as address, Client(address) as client:
        popular = value_id("popular")
        until(lambda: _crowded(client, popular))

        assert run("operate", "suppress", f"fledge/{popular}", "--yes", "--url", address)[0] == 0
        until(lambda: not client.status("fledge", popular).k_anonymous)
        assert run("operate", "unsuppress", f"fledge/{popular}", "--yes", "--url", address)[0] == 0

        types.write_text("{")  # is refused, and the service continues
        types.write_text(json.dumps({"fledge": TYPE, "search": {**TYPE, "k": 9}}))
        until(lambda: _knows(client, "search"))
        with Client(address) as later:  # a client asks for new types once a minute
            later.join("search", popular, "client 1")
        assert client.type("fledge")["k"] == 8

        stack = local_stack(address)
        secret = stack.evaluate.noise_key_secret
        manager = stack.client("secretsmanager")
        kept = json.loads(manager.get_secret_value(SecretId=secret)["SecretString"])
        manager.put_secret_value(SecretId=secret, SecretString=json.dumps({**kept, "2": "x" * 64}))
        first = int(time.time()) // 2 + 100
        entries = [{"id": "1", "from_step": 0}, {"id": "2", "from_step": first}]
        parameters.write_text(json.dumps({"NoiseKeys": entries}))
        until(lambda: f"{NOISE_KEY}2" in local_stack(address).control.recorded("evaluate"))
        assert "1, 2: as recorded" in _noise_keys(address)
        assert "key 1 is needed until every slot is evaluated through step" in _noise_keys(address)


def test_a_day_of_hourly_steps_passes_in_a_rehearsal_and_its_operator_sees_the_moved_clock(tmp_path: Path) -> None:
    types = tmp_path / "types.json"
    types.write_text(json.dumps({"fledge": {**TYPE, "window": 3}}))
    with console("--period", "3600", "--types", str(types)) as (address, token), Client(address) as client:
        popular = value_id("popular")
        client.join_many(Join("fledge", popular, f"client {n}") for n in range(30))
        before = time.time()
        moved = [_moved(address, client, token, popular) for _ in range(24)]
        assert moved == sorted(moved)
        assert moved[-1] > before + 23 * 3600 > time.time()
        found = client.status("fledge", popular)
        assert found.step == moved[-1] // 3600 - 1
        code, output = run("doctor", "--url", address)
        assert code == 0, output
        assert "published too far ahead" not in output


def _moved(address: str, client: Client, token: str, value: SetId) -> float:
    """Move the clock to the next update of a value, as the console does; the time then."""
    moment = datetime.fromisoformat(client.status("fledge", value).next_update).timestamp()
    headers = {TOKEN: token, "Content-Type": "application/json"}
    with urlopen(Request(address + MOVE, json.dumps({"to": moment}).encode(), headers)) as answer:
        return float(json.load(answer)["now"])


def _crowded(client: Client, popular: str) -> bool:
    """Whether a set is true; 30 clients join it at each question, so that no evaluation comes too late for them."""
    client.join_many(Join("fledge", popular, f"client {n}") for n in range(30))
    return client.status("fledge", popular).k_anonymous


def _knows(client: Client, name: str) -> bool:
    try:
        return client.type(name)["k"] == 9
    except ApiError:
        return False


def _noise_keys(address: str) -> str:
    """The doctor's finding about the noise keys."""
    _, output = run("doctor", "--url", address, "--secrets", "--json")
    found = json.loads(output)["findings"]
    return " ".join(finding["seen"] for finding in found if finding["check"] == "noise keys")
