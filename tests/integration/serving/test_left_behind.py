"""What a process that was killed leaves behind does not stop the next one."""

from pathlib import Path

from tests.integration.serving.test_directory import FIRST, PERIOD, end, opened


def test_a_file_of_the_log_without_its_table_is_a_step_without_joins(tmp_path: Path) -> None:
    """A process that is killed may leave it."""
    directory = opened(tmp_path / "d", FIRST * PERIOD)
    (directory.path / "log" / f"{FIRST}.db").touch()
    assert directory.evaluate(end(FIRST)).steps == 1
    directory.close()
