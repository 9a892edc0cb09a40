"""The measurement of the hook of telemetry runs, and asks the service only before it measures."""

import re

import pytest

from bench import telemetry


def test_it_prints_a_ratio_and_what_was_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telemetry, "SPANS", 20)
    monkeypatch.setattr(telemetry, "TURNS", 2)
    monkeypatch.setattr(telemetry, "TERMS", 5)
    assert telemetry.main() == 0
    told = capsys.readouterr().out
    assert re.match(r"[\d.]+ \([\d.]+ to [\d.]+\) times the span without it, -?\d+ µs more; 20 spans of 5 terms", told)
    assert told.endswith("then 0 in 40 spans\n")
