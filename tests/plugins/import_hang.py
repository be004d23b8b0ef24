"""Hangs on import."""

import time

time.sleep(1000)
