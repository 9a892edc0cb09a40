"""The gateway and libraries of others agree: binary HTTP of bhttp-js, HPKE of @hpke/core."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kanon.gateway.binary_http import (
    BinaryRequest,
    BinaryResponse,
    padded,
    read_request,
    read_response,
    write_request,
    write_response,
)
from tests.integration.serving.machine import PERIOD, machine

pytestmark = pytest.mark.clients

HERE = Path(__file__).parent
MESSAGES = 500
NAMES = ("accept", "content-type", "kanon-step", "x-a", "x-b")


def _run(program: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    given = "".join(f"{json.dumps(line)}\n" for line in lines)
    ran = subprocess.run(
        ["node", program], cwd=HERE, input=given, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


def _fields(chance: random.Random) -> tuple[tuple[str, str], ...]:
    names = sorted(chance.sample(NAMES, chance.randrange(len(NAMES))))
    letters = [chr(code) for code in range(33, 127)]
    return tuple((name, "".join(chance.choices(letters, k=chance.choice([1, 20, 63, 64, 300])))) for name in names)


def _content(chance: random.Random) -> bytes:
    return chance.randbytes(chance.choice([1, 10, 63, 64, 16_383, 16_384, 40_000]))


def _messages(chance: random.Random) -> tuple[BinaryRequest, BinaryResponse]:
    path = "/" + "".join(chance.choices("abcxyz0189-_~:", k=chance.choice([0, 30, 62, 63, 64, 500])))
    request = BinaryRequest("POST", "https", "kanon.example", path, _fields(chance), _content(chance))
    return request, BinaryResponse(chance.choice([200, 400, 404, 503, 599]), _fields(chance), _content(chance))


def test_both_read_what_the_other_one_writes() -> None:
    chance = random.Random("binary http")
    made = [_messages(chance) for _ in range(MESSAGES)]
    found = _run("use_binary_http.js", [_line(*messages) for messages in made])
    for (request, response), line in zip(made, found, strict=True):
        written = [bytes.fromhex(text) for text in line["encoded"]]
        # A Request of fetch adds nothing here; its content type, if there is none, is not made up for bytes.
        assert read_request(written[0]) == request
        assert read_response(written[1]) == response
        assert line["request"] == {"method": "POST", "path": request.path, **_shown(request)}
        assert line["response"] == {"status": response.status, **_shown(response)}


def _line(request: BinaryRequest, response: BinaryResponse) -> dict[str, Any]:
    return {
        "request": {"method": "POST", "path": request.path, **_shown(request)},
        "response": {"status": response.status, **_shown(response)},
        "encoded": [padded(write_request(request)).hex(), padded(write_response(response)).hex()],
    }


def _shown(message: BinaryRequest | BinaryResponse) -> dict[str, Any]:
    return {"headers": [list(field) for field in message.fields], "body": message.content.hex()}


def test_a_client_made_of_other_libraries_joins_and_asks(tmp_path: Path) -> None:
    with machine(tmp_path / "data", gateway=True) as served:
        json_headers = {"content-type": "application/json"}
        signed = {**json_headers, "authorization": f"Bearer {served.key}", "kanon-step": str(int(served.now // PERIOD))}
        join = {"method": "POST", "path": "/v1/types/fledge/sets/aGVsbG8:join", "body": '{"client": "me"}'}
        query = {"setsForType": [{"type": "fledge", "hashes": ["aGVsbG8"]}]}
        requests = [
            {**join, "headers": signed},
            {**join, "headers": json_headers},
            {"method": "POST", "path": "/v1:query", "body": json.dumps(query), "headers": json_headers},
        ]
        found = _run("use_gateway.js", [{"url": served.server.url, "request": one} for one in requests])
        assert [one["status"] for one in found] == [200, 400, 200]
        assert found[0]["body"] == "{}"
        assert "kanon-step" in found[1]["body"]
        assert json.loads(found[2]["body"])["kAnonymousSets"] == [{"type": "fledge", "hashes": []}]
        assert found[2]["headers"]["content-type"] == "application/json"
        assert served.directory.log.count(int(served.now // PERIOD)) == 1
