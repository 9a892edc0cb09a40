import pytest

from infra.measure import risk


def test_the_measurement_prints_a_ratio_and_a_peak_of_memory(capsys: pytest.CaptureFixture[str]) -> None:
    risk.main(["--turns", "1", "--large", "--rows", "700000"])
    ratio, memory = capsys.readouterr().out.splitlines()
    assert "ratio" in ratio
    assert memory.startswith("700,000 rows")
    peak = float(memory.split("peak ")[1].split()[0])
    assert 50 < peak <= risk.MOST_MIB
