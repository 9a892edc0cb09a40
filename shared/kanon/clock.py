"""The server's clock: the one place where time enters. Everything below a handler takes time as a value."""

import time

now = time.time
sleep = time.sleep
