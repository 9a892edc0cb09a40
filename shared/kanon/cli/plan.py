"""``kanon plan``: noise distributions for a privacy target, and the behaviour of a type with them."""

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kanon.cli.files import Force, OutputFiles
from kanon.cli.options import Json, StepLength, refuse_unused
from kanon.cli.screen import new_table, screen, show_json, warn, working

if TYPE_CHECKING:
    from rich.table import Table

    from kanon.plan.planner import Plan, Target


def plan(
    context: typer.Context,
    k: Annotated[int, typer.Option(min=1, max=1_000_000, help="Threshold k, in clients.")] = 50,
    window: Annotated[int, typer.Option(min=2, max=65_535, help="Window, in steps.")] = 720,
    epsilon: Annotated[str, typer.Option(help="Largest epsilon of the --unit, a decimal.")] = "3",
    delta: Annotated[str, typer.Option(help="Largest delta of the --unit, a decimal.")] = "1e-5",
    period: StepLength = 3600,
    unit: Annotated[
        Literal["join", "year"],
        typer.Option(
            help="What epsilon is for: one join, or all joins of a client that joins one set for a year.",
        ),
    ] = "join",
    restart: Annotated[
        Literal["crossing", "grid"],
        typer.Option(
            help="Restart after the crossing, or on the paper's grid of instances.",
        ),
    ] = "crossing",
    profile: Annotated[
        str | None, typer.Option(help="Use the shape and epsilons of this profile; --delta sets the rest.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare the profiles and the noise that the planner finds.")
    ] = False,
    as_json: Json = False,
    plot: Annotated[
        Path | None, typer.Option(help="Write the status probability and the delay by count as a PNG.")
    ] = None,
    paper: Annotated[
        Path | None, typer.Option(help="Write the paper's Figure 1 as a PNG and print its numbers.")
    ] = None,
    force: Force = False,
) -> None:
    """Find noise distributions for a privacy target, and show how a type with them behaves.

    Example: kanon plan --k 100 --window 168 --epsilon 2 --delta 1e-6
    """
    from kanon.noise.bound import MOST_DELTA, Bound
    from kanon.plan import planner

    if paper is not None:
        refuse_unused(context, set(context.params) - {"paper", "force"}, "with --paper: leave it out")
    outputs = OutputFiles(context, force=force)
    outputs.picture(plot, "--plot")
    outputs.picture(paper, "--paper")
    if paper is not None:
        _paper(paper, outputs)
        return
    if compare and profile:
        raise typer.BadParameter("--compare shows every profile: leave --profile out")
    if profile:
        refuse_unused(context, {"restart"}, "with --profile, which has its own: leave it out")
    if unit == "year" and restart == "grid":
        raise typer.BadParameter("--unit year needs a hold: leave --restart grid out")
    target = planner.Target(
        k, window, period,
        _decimal(epsilon, "--epsilon", Fraction(1, 100), 20 if unit == "join" else 1000),
        _decimal(delta, "--delta", Fraction(1, 10**15), 1), unit,
        restart,
    )  # fmt: skip
    if target.bound.delta >= MOST_DELTA:
        raise typer.BadParameter(
            f"--delta must be below {float(MOST_DELTA)}, not {delta}: a larger one protects nobody"
        )
    with working("finding noise distributions"):
        if compare:
            plans = planner.compare(target)
        elif profile:
            plans = [planner.profile_plan(profile, target)]
        else:
            plans = [planner.best_plan(target)]
    bounds = [target.bound, *(target.reached(one.proved) for one in plans)]
    warn(*Bound(max(one.epsilon for one in bounds), max(one.delta for one in bounds)).cautions(k))
    if plot is not None:
        from kanon.plan.figures import draw_plans

        with working("drawing"):
            drawn = draw_plans(plans)
        outputs.write({plot: drawn})
    if as_json:
        show_json([p.as_json() for p in plans] if compare else plans[0].as_json())
    else:
        _show(plans, target)


def _decimal(text: str, option: str, least: Fraction, most: int) -> Fraction:
    try:
        number = Fraction(text)
    except (ValueError, ZeroDivisionError) as error:
        raise typer.BadParameter(f"{option} must be a decimal such as 2.25 or 1e-5, not {text!r}") from error
    if not least <= number <= most or 10**20 % number.denominator:
        raise typer.BadParameter(f"{option} must be a decimal between {float(least):g} and {most}, not {text}")
    return number


def _show(plans: "list[Plan]", target: "Target") -> None:
    console = screen()
    console.print(_facts(plans, target))
    if target.unit == "join":
        console.print(
            f"No mechanism has a 99% zone below {target.least_width} clients at {target.bound}.", highlight=False
        )
    if len(plans) == 1:
        console.print(_curve(plans[0]))
    for one in plans:
        console.print(f"\nTypes for {one.name}:", highlight=False)
        typer.echo(json.dumps(one.as_json()["types"]))


def _facts(plans: "list[Plan]", target: "Target") -> "Table":
    from kanon.gate.mechanism.bounds import PRIOR
    from kanon.gate.mechanism.parameters import WATCHED_SETS
    from kanon.noise.exact import written_up

    p = plans[0].parameters
    names = [one.name for one in plans]
    table = new_table("", *names, numbers=names, title=f"k = {p.k}, window = {p.window} steps of {p.period} s")
    facts = [one.as_json() for one in plans]
    restarts = [one.parameters.restart for one in plans]

    def law(role: str) -> list[str]:
        return ["{shape} {epsilon}, A={truncation}".format(**f["laws"][role]) for f in facts]

    row = table.add_row
    row("threshold noise (mu)", *law("threshold"))
    row("query noise (nu)", *law("query"))
    row("one join: paper's bound", *(str(one.proved.paper or "does not apply") for one in plans))
    row("one join: interval-aware bound", *(str(one.proved.interval_aware) for one in plans))
    row("one join, a set watched for a year", *(str(one.proved.watched) for one in plans))
    row(f"one join, {WATCHED_SETS:,} sets watched for a year", *(str(one.proved.watched_sets) for one in plans))
    if len(plans) > 1:
        row(f"within {target.bound}", *("yes" if target.covers(one.proved) else "no" for one in plans))
    for n, (days, _) in enumerate(plans[0].proved.rejoining):
        row(f"re-joining one set for {days} days", *(str(one.proved.rejoining[n][1]) for one in plans))
    row(
        f"a prior of {float(PRIOR):.0%} becomes at most",
        *(f"{written_up(100 * one.proved.posterior, 3)}%" for one in plans),
    )
    row("never true below", *(str(f["neverTrueBelow"]) for f in facts))
    row("99%: false for a whole window up to", *(str(f["zone99"][0]) for f in facts))
    row("99%: true immediately from", *(str(f["zone99"][1]) for f in facts))
    row("99% zone, clients", *(str(f["zone99"][1] - f["zone99"][0]) for f in facts))
    row("mean delay at its upper end, steps", *(f"{one.delay_at_zone:.2f}" for one in plans))
    row("steps that a status stays true", *("-" if r is None else str(r.hold) for r in restarts))
    row("steps of an epoch", *("-" if r is None else str(r.epoch) for r in restarts))
    row("steps a crossing is kept", *(str(one.parameters.memory) for one in plans))
    row("steps a noise key is needed", *(str(one.parameters.cycle) for one in plans))
    row("steps with a partial count, while false", *(f"{one.partial_share:.1%}" for one in plans))
    row("false at once after long silence", *(f"{one.late:.1%}" for one in plans))
    row("surely true from", *(str(f["surelyTrueFrom"]) for f in facts))
    row("members kept", *(str(f["membersKept"]) for f in facts))
    row("bytes of a full set", *(str(f["bytesPerSet"]) for f in facts))
    row("client bits", *(str(f["clientBits"]) for f in facts))
    row("distinct tokens of k clients", *(f"{f['distinctTokensAtK']:.3f}" for f in facts))
    return table


def _curve(one: "Plan") -> "Table":
    columns = "count", "true immediately", "true within a window", "expected delay, steps"
    table = new_table(*columns, numbers=columns, title="At a constant count")
    low, high = one.zone
    for point in one.as_json()["curve"]:
        if low - 2 <= point["count"] <= high + 2:
            delay = point["expectedDelay"]
            shown = "never" if delay is None else f"{delay:.2f}" if delay < 10**6 else f"{delay:.1e}"
            table.add_row(
                str(point["count"]), f"{point['trueAtOnce']:.4f}", f"{point['trueWithinInstance']:.4f}", shown
            )
    return table


def _paper(path: Path, outputs: OutputFiles) -> None:
    from kanon.plan.figures import draw_figure_1
    from kanon.plan.paper import READINGS

    with working("drawing Figure 1"):
        drawn = draw_figure_1()
    outputs.write({path: drawn})
    columns = "reading", "each noise", "bound (Cor. 4.4, 3.1)", "99% of Fig. 1a (15)", "1% of Fig. 1b (-8)"
    table = new_table(*columns, title='Readings of "eps = 3, delta < 1e-5, A = 25", w = 168')
    for reading in READINGS:
        epsilon, delta = reading.bound
        table.add_row(
            reading.meaning,
            f"{float(reading.epsilon):g}, A={reading.truncation:g}",
            f"({epsilon:g}, {delta:.3g})",
            f"{reading.false_positive_point:.2f}",
            f"{reading.false_negative_point:.2f}",
        )
    screen().print(table)
