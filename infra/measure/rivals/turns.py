"""Releases a log with a library several times: ``python turns.py LIBRARY LOG TURNS``, in the library's environment.

``LIBRARY`` is a module of this folder. Prints the processor time, the wall time and the number of released sets of each
turn, after one turn to warm up.
"""

import importlib
import json
import sys
import time
from pathlib import Path


def main(library: str, log: str, turns: str) -> None:
    """Release and print."""
    release = importlib.import_module(library).release
    for number in range(int(turns) + 1):
        processor, wall = time.process_time(), time.perf_counter()
        sets = release(Path(log))
        if number:
            print(json.dumps([time.process_time() - processor, time.perf_counter() - wall, sets]))


if __name__ == "__main__":
    main(*sys.argv[1:])
