"""How `sacct_history.json` and `scontrol_sampling.json` were made: `python -m tests.slurm.recorded.record_history RELEASE`.

Jobs with known loads, one of them requeued, run on a throwaway Slurm of that release.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from slurmgpu.slurm import sacct as history
from slurmgpu.slurm import show
from tests.slurm.recorded.record import Recorder, settle
from tests.slurm.releases import first_on_path, root_for
from tests.slurm.throwaway import ThrowawaySlurm

# 100 MiB, written so that they count, held for some samples.
EAT = "#!/bin/bash\nsrun python3 -c 'import time; held = b\"x\" * (100 << 20); time.sleep(12)'\n"
BURN = "#!/bin/bash\nsrun timeout 10 python3 -c 'while True: pass'\nexit 0\n"
WAIT = '#!/bin/bash\nif [ "${SLURM_RESTART_COUNT:-0}" = 0 ]; then sleep 600; fi\nsleep 3\n'


def main(release: str) -> None:
    """Record what accounting says of the loads, and how often it samples."""
    root = root_for(release)
    with tempfile.TemporaryDirectory() as work, first_on_path(root), ThrowawaySlurm() as running:
        recorder = Recorder(running, root, Path(work), Path(__file__).parent / release)
        again = recorder.submit(WAIT, "--job-name=two\nlines", "--requeue")
        settle(recorder, f"{again} RUNNING")
        eats = recorder.submit(EAT, "--job-name=eats", "--mem=2G", "--gres=gpu:a100:2")
        burns = recorder.submit(BURN, "--job-name=a|b", "--cpus-per-task=2", "--mem-per-cpu=500M")
        time.sleep(4)
        running.run(["scontrol", "requeue", str(again)])
        for job in (eats, burns, again):
            running.wait_for(job, timeout=300, complete_row=True)
        time.sleep(2)
        recorder.record("sacct_history", history.histories_command(ids=[again, eats, burns]))
        recorder.record("scontrol_sampling", list(show.CONFIG))


if __name__ == "__main__":
    main(sys.argv[1])
