"""Run ministack until its standard input closes. It closes when the parent ends for any reason.

Runs in ministack's own environment, so it imports nothing of this project.
"""

import os
import shutil
import sys
import tempfile
import threading

from ministack.app import main


def end_with_parent() -> None:
    """Wait for the end of standard input, then end."""
    sys.stdin.buffer.read()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)


scratch = tempfile.tempdir = tempfile.mkdtemp(prefix="kanon-ministack-")
threading.Thread(target=end_with_parent, daemon=True).start()
sys.argv = ["ministack"]
main()
