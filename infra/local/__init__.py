"""The service on one machine: template.yaml on an embedded AWS emulator, behind real HTTP."""

from infra.local.engines import EngineError
from infra.local.functions import FunctionError
from infra.local.gateway import Request, Response
from infra.local.stack import Stack
from infra.local.template import TemplateError

__all__ = ["EngineError", "FunctionError", "Request", "Response", "Stack", "TemplateError"]
