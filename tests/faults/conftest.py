"""Counts the fault points of a run."""


def pytest_terminal_summary(terminalreporter) -> None:
    points = sum(
        value
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == "fault_points"
    )
    if points:
        terminalreporter.write_line(f"{points} fault points: at each a call failed, and nothing showed")
