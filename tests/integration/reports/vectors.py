"""The public data of other projects beside the checkout; tests that need it are skipped without."""

import base64
import json
from typing import NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.paths import SHARED

VECTORS = SHARED / "vectors" / "reports"
needs_vectors = pytest.mark.skipif(not VECTORS.exists(), reason="the public test vectors are not beside this checkout")


class Golden(NamedTuple):
    """One payload as a browser sent it, with its cleartext."""

    name: str
    shared_info: str
    wire: bytes
    cleartext: bytes
    debug_cleartext: bytes | None
    version: str


def goldens():
    """Every payload of every golden report, in the order of the names."""
    found = []
    for path in sorted(VECTORS.glob("goldens/*/*/report_*.json")):
        if path.stem.endswith("cleartext_payloads"):
            continue
        report = json.loads(path.read_text())
        cleartexts = json.loads(path.with_name(f"{path.stem}_cleartext_payloads.json").read_text())
        for payload, cleartext in zip(report["aggregation_service_payloads"], cleartexts, strict=True):
            debug = payload.get("debug_cleartext_payload")
            found.append(
                Golden(
                    "/".join(path.parts[-3:]),
                    report["shared_info"],
                    base64.b64decode(payload["payload"]),
                    base64.b64decode(cleartext),
                    base64.b64decode(debug) if debug else None,
                    path.parent.name,
                )
            )
    return found


def golden_key():
    """The public test key that opens every golden payload."""
    text = (VECTORS / "goldens/private_key.txt").read_text()
    return X25519PrivateKey.from_private_bytes(base64.b64decode(text))
