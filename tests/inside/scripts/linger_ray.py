"""Has a task of Ray's on each node say that it is there, and wait."""

import os
import sys
import time

import ray


@ray.remote(num_cpus=1, scheduling_strategy="SPREAD")
def linger(rank):
    time.sleep(1000)


ray.init()
print(f"{len(ray.nodes())} nodes", flush=True)
waiting = [linger.remote(rank) for rank in range(4)]
time.sleep(5)
for rank in range(4):
    print(f"ready {rank}", flush=True)
if os.environ.get("FAILING"):
    sys.exit(3)
ray.get(waiting)
