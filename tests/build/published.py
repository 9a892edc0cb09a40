"""Translates template.yaml as CloudFormation's SAM transform does: run by the Python of .venv-sam.

Standard input: a list of cases, each with ``parameters`` and ``contents`` (logical id: where its code is). Standard
output: for each case the resources, without SAM's intrinsic functions.
"""

import json
import sys
from pathlib import Path

from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse

TEMPLATE = Path(__file__).parents[2] / "template.yaml"


def translated(parameters: dict[str, str], contents: dict[str, str]) -> dict[str, object]:
    """The resources that CloudFormation gets."""
    document = yaml_parse(TEMPLATE.read_text())
    for name, resource in document["Resources"].items():
        word = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}.get(
            resource["Type"]
        )
        if word:
            resource["Properties"][word] = contents.get(name, f"s3://code/{name}")
    resources: dict[str, object] = Translator({}, Parser()).translate(document, parameter_values=parameters)[
        "Resources"
    ]
    return resources


print(json.dumps([translated(case["parameters"], case["contents"]) for case in json.load(sys.stdin)]))
