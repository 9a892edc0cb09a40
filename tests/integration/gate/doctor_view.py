"""A local stack for `kanon doctor`: directly, and behind CloudFormation like a deployed one."""

import io
import json
import zipfile
from typing import Any

from typer.testing import CliRunner

from kanon.cli.main import app
from kanon.findings import Finding, Verdict
from kanon.local import Stack
from kanon.operate.doctor import examine
from kanon.operate.stacks import RunningStack, described_stack


def seen(stack: Stack) -> RunningStack:
    """The stack through its own description."""
    return described_stack(stack.describe(), stack.session, None)


def findings(stack: Stack, *, secrets: bool = True) -> dict[str, list[Finding]]:
    """The current findings of the doctor, by check."""
    found: dict[str, list[Finding]] = {}
    for finding in examine(seen(stack), stack.clock.now(), secrets=secrets):
        found.setdefault(finding.check, []).append(finding)
    return found


def wrong(stack: Stack, *, secrets: bool = True) -> dict[str, tuple[Verdict, str]]:
    """The findings that are not good, by check: verdict and section of the runbook."""
    return {
        check: (finding.verdict, finding.section)
        for check, each in findings(stack, secrets=secrets).items()
        for finding in each
        if finding.wrong
    }


def doctor(stack: Stack, *arguments: str) -> tuple[int, str]:
    """`kanon doctor --stack` on the stack: exit code and output."""
    return run_on(stack, "doctor", *arguments)


def operate(stack: Stack, *arguments: str, answer: str = "") -> tuple[int, str]:
    """`kanon operate ... --stack` on the stack: exit code and output."""
    return run_on(stack, "operate", *arguments, answer=answer)


def run_on(stack: Stack, *arguments: str, answer: str = "") -> tuple[int, str]:
    """Run a command on the stack, after it is registered with CloudFormation and Lambda."""
    _register(stack)
    options = ("--stack", stack.template.stack_name, "--region", "us-east-1")
    environment = {"COLUMNS": "250", "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    result = CliRunner().invoke(app, [*arguments, *options], input=answer, env=environment)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def metrics(stack: Stack, name: str) -> list[float]:
    """Every value of a metric that a function emitted, in order."""
    lines = stack.logs.getvalue().splitlines()  # type: ignore[attr-defined]
    told = [json.loads(line) for line in lines if line.startswith("{") and '"CloudWatchMetrics"' in line]
    return [value for entry in told for value in entry.get(name, [])]


def _functions(stack: Stack) -> list[str]:
    """The functions that an output names and the doctor looks at."""
    return sorted(stack.functions.keys() - {"store"})


def _register(stack: Stack) -> None:
    """Let moto's CloudFormation and Lambda describe what the local stack runs by itself."""
    name, session = stack.template.stack_name, stack.session
    cloudformation, functions = session.client("cloudformation"), session.client("lambda")
    if name in [entry["StackName"] for entry in cloudformation.list_stacks()["StackSummaries"]]:
        for part in _functions(stack):
            variables = {"Variables": dict(stack.functions[part].environment)}
            functions.update_function_configuration(FunctionName=f"{name}-{part}", Environment=variables)
        return
    told = stack.describe()
    outputs = {
        "ApiUrl": "https://api.test",
        "DeadLettersUrl": told["dead_letters_url"],
        "LostEventsUrl": told["lost_events_url"],
    }
    trust = session.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("app.py", "")
    outputs |= {f"{name}Url": url for name, url in told["queues"].items()}
    for part in _functions(stack):
        functions.create_function(
            FunctionName=f"{name}-{part}", Runtime="python3.13", Role=trust, Handler="app.handler",
            Code={"ZipFile": code.getvalue()},
            Environment={"Variables": dict(stack.functions[part].environment)},
        )  # fmt: skip
        outputs[f"{part.title()}Function"] = f"{name}-{part}"
    schedules = {"EvaluateSchedule": f"{name}-schedule"}
    of_reports = {"SweepSchedule": f"{name}-sweep", "RotateSchedule": f"{name}-rotate"}
    for schedule in (schedules | of_reports).values():
        session.client("scheduler").create_schedule(
            Name=schedule, ScheduleExpression="cron(3 * * * ? *)", FlexibleTimeWindow={"Mode": "OFF"},
            Target={"Arn": "arn:aws:lambda:us-east-1:123456789012:function:f", "RoleArn": trust},
        )  # fmt: skip
    template: dict[str, Any] = {
        "Parameters": {
            "DeletionProtection": {"Type": "String", "Default": "ON"},
            "Reports": {"Type": "String", "Default": stack.template.parameters["Reports"]},
        },
        "Resources": _groups(schedules | {"ReportsStack": f"{name}-reports"}),
        "Outputs": {key: {"Value": value} for key, value in outputs.items()},
    }
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template))
    nested = {"Resources": _groups(of_reports)}
    cloudformation.create_stack(StackName=f"{name}-reports", TemplateBody=json.dumps(nested))


def _groups(names: dict[str, str]) -> dict[str, Any]:
    """Resources of these names. moto knows no schedule and nests no local file: groups stand for them."""
    return {
        logical_id: {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": name}}
        for logical_id, name in names.items()
    }
