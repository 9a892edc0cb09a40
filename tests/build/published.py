"""Translates a template as CloudFormation's SAM transform does: run by the Python of .venv-sam.

Standard input: a list of cases, each with ``template`` (a path), ``parameters`` and ``contents`` (logical id: where its
code is). Standard output: for each case the template, without SAM's intrinsic functions.
"""

import json
import sys
from pathlib import Path

from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator
from samtranslator.yaml_helper import yaml_parse


def translated(template: str, parameters: dict[str, str], contents: dict[str, str]) -> dict[str, object]:
    """The template that CloudFormation gets."""
    document = yaml_parse(Path(template).read_text())
    for name, resource in document["Resources"].items():
        word = {"AWS::Serverless::Function": "CodeUri", "AWS::Serverless::LayerVersion": "ContentUri"}.get(
            resource["Type"]
        )
        if word:
            resource["Properties"][word] = contents.get(name, f"s3://code/{name}")
    made: dict[str, object] = Translator({}, Parser()).translate(document, parameter_values=parameters)
    return made


print(json.dumps([translated(**case) for case in json.load(sys.stdin)]))
