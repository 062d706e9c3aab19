"""Says that it is there, and waits; the rank that FAILING names ends with code 3."""

import os
import sys
import time

rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID")
print(f"ready {rank}", flush=True)
if rank == os.environ.get("FAILING"):
    time.sleep(2)
    sys.exit(3)
time.sleep(1000)
