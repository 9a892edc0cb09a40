"""A function under SnapStart, in a process of its own: a fork is a copy of its memory, as a restore is.

Argument: ``hooks`` or ``none``. Prints what is found as JSON.
"""

import gc
import json
import os
import random
import socket
import sys
from unittest import mock

import app
import snapshot_restore_py as hooks
from botocore.client import BaseClient
from botocore.loaders import JSONFileLoader

from kanon import aws
from kanon.keys import Secret

WITH_HOOKS = sys.argv[1] == "hooks"


def run(registered):
    """Call hooks as the runtime does."""
    for function, arguments, options in registered:
        function(*arguments, **options)


def restored(number):
    """What an environment finds after a restore."""
    os.environ["AWS_ACCESS_KEY_ID"] = f"after-{number}"
    os.environ["AWS_SECRET_ACCESS_KEY"] = "secret"
    if WITH_HOOKS:
        run(hooks.get_after_restore())
    original = JSONFileLoader.load_file
    with mock.patch.object(JSONFileLoader, "load_file", autospec=True, side_effect=original) as read:
        client = aws.dynamodb()
    return {
        "random": random.random(),
        "credentials": client._get_credentials().access_key,
        "models_read": sum("dynamodb" in str(call.args[1]) for call in read.call_args_list),
    }


if WITH_HOOKS:
    run(hooks.get_before_snapshot())
gc.collect()
alive = gc.get_objects()
snapshot = {
    "clients": [client.meta.service_model.service_name for client in alive if isinstance(client, BaseClient)],
    "secrets": len([secret for secret in alive if isinstance(secret, Secret)]),
    "sockets": len([thing for thing in alive if isinstance(thing, socket.socket)]),
    "begun": [name for name, value in vars(app).items() if getattr(value, "_made", None)],
}
random_state = random.getstate()
environments = []
for number in range(2):
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        random.setstate(random_state)  # Python draws a new one after a fork, and cannot notice a restore
        os.write(writer, json.dumps(restored(number)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    environments.append(json.loads(os.read(reader, 65536)))
print(json.dumps({"snapshot": snapshot, "environments": environments}))
