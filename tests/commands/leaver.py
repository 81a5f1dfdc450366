"""A rank that leaves a daemon behind which carries the run's mark, then sleeps.

usage: leaver.py READY    touches READY.<rank> when all is there
"""

import os
import sys
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)", "left-behind"])
    os._exit(0)
os.wait()
with open(f"{sys.argv[1]}.{os.environ['RANK']}", "w"):
    pass
time.sleep(600)
