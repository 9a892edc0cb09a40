"""The vectors that the clients of all languages share."""

import json
from typing import Any

from tests.paths import ROOT

VECTORS: dict[str, Any] = json.loads((ROOT / "clients" / "vectors.json").read_text())
