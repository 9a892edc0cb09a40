"""``kanon audit``: tests whether the answers of the service have the claimed distribution."""

import secrets
from typing import TYPE_CHECKING, Annotated

import typer

from kanon.cli.errors import one_line
from kanon.cli.options import Json, OneType, TypesFile, own_types
from kanon.cli.screen import new_table, screen, show_json, working

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kanon.audit.mechanism import AuditReport, Check, Fit
    from kanon.gate.mechanism.parameters import Parameters


def audit(
    trials: Annotated[int, typer.Option(min=200, help="Sets per type, evaluated in this process.")] = 10_000,
    service_trials: Annotated[
        int, typer.Option(min=0, help="Sets per type, evaluated by the local service; 0 skips the service.")
    ] = 100,
    type_: OneType = None,
    types_file: TypesFile = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Repeat the audit with this seed.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the crossing steps of many sets with the exact distribution; exit with 1 if they differ.

    Example: kanon audit --type '{"k": 50, "window": 720, "profile": "published"}' --service-trials 0
    """
    from kanon.audit.mechanism import AFTER_CROSSINGS, AUDITED, audit_in_process, judge

    seed = secrets.randbelow(2**32) if seed is None else seed
    own = own_types(type_, types_file, period=3600, name="type")
    types = AUDITED | AFTER_CROSSINGS if own is None else {name: type_.parameters for name, type_ in own.types.items()}
    if service_trials:
        import kanon.audit.service  # noqa: F401, fail now and not after the first audit
    with working("auditing the mechanism in this process"):
        fits, checks = audit_in_process(types, trials, seed)
    if service_trials:
        with working("auditing the local service"):
            service_fits, service_checks = _service(types, service_trials, seed)
        fits, checks = fits + service_fits, checks + service_checks
    report = judge(fits, checks)
    if as_json:
        show_json({"seed": seed, **report.as_json()})
    else:
        _show(report, seed)
    if not report.passed:
        raise typer.Exit(1)


def _service(types: "Mapping[str, Parameters]", trials: int, seed: int) -> "tuple[list[Fit], list[Check]]":
    from kanon.audit.service import LateError, audit_service
    from kanon.client import ApiError
    from kanon.local import EngineError

    with one_line(ApiError, EngineError, LateError, status=1):
        return audit_service(types, trials, seed)


def _show(report: "AuditReport", seed: int) -> None:
    table = new_table("what", "of", "decided by", "trials", "cells", "statistic", "p", "verdict")
    for check in report.checks:
        figures = ["", "", ""]
        if check.statistic is not None and check.p_value is not None:
            cells = "" if check.cells is None else str(check.cells)
            figures = [cells, f"{check.statistic:.1f}", f"{check.p_value:.2g}"]
        detail = f": {check.detail}" if check.detail else ""
        table.add_row(
            check.name, check.subject, check.path, str(check.trials), *figures, f"{check.verdict}{detail}",
            style=None if check.passed else "bold red",
        )  # fmt: skip
    console = screen()
    console.print(table)
    verdict = "passed: every check agrees with the claim" if report.passed else "REJECTED"
    console.print(
        f"{verdict}. A correct service fails with probability {report.alpha:g} at most"
        f" (each statistical test is rejected at p < {report.alpha_each:.1e}). Repeat with --seed {seed}."
    )
