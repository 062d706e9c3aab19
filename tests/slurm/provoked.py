"""Failures that are provoked for real: what a task does, and what is to be said of it.

Each is a shell script; ``python NAME`` in it runs the program of that name in `PROGRAMS`. None needs a network or a GPU.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAULTS", "PROGRAMS", "Fault"]


class Fault(NamedTuple):
    """One way to fail."""

    does: str
    kind: str
    says: str
    """What must stand in the sentence."""
    ranks: tuple[int | None, ...] = (None,)
    """Any of these is right."""
    root: bool = False
    """Whether it needs a file system of its own, which an ordinary user may not mount."""


# Two processes of one task, each with its rank, as a launcher starts them; the task ends as rank 0 does.
_RANKS = """
export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000)); export MASTER_PORT
RANK=0 LOCAL_RANK=0 python {program} & first=$!
RANK=1 LOCAL_RANK=1 python {program} & wait $first; code=$?; wait; exit $code
"""
_SMALL = 'unshare -m bash -c \'mount -t tmpfs -o "$0" none mnt && cd mnt && exec "$@"\' '
_NOBODY = """import os
def nobody():  # root may do everything
    if os.getuid() == 0:
        os.setuid(65534)
"""

FAULTS = {
    "no-command": Fault("nvidia-smj --query", "command-missing", "nvidia-smj"),
    "not-executable": Fault("echo 'echo hello' >tool; ./tool", "not-executable", "./tool"),
    "windows-script": Fault(
        "printf '#!/bin/bash\\r\\necho hello\\r\\n' >dos.sh; chmod +x dos.sh; ./dos.sh",
        "not-executable",
        "dos.sh",
    ),
    "no-script": Fault("exec python training.py", "script-missing", "training.py"),
    "syntax": Fault("exec python syntax.py", "syntax", "was never closed"),
    "arguments": Fault("exec python arguments.py --learning-rate 3", "arguments", "--learning-rate"),
    "no-module": Fault("exec python no_module.py", "module-missing", "lightning_fabric_x"),
    "shadowed": Fault("exec python shadowed/train.py", "import-error", "shadowed/random.py"),
    "shadowed-later": Fault("exec python shadowed_later/train.py", "import-error", "statistics has no fmean"),
    "no-file": Fault("exec python no_file.py", "file-missing", "data/train.bin"),
    "broken-link": Fault(
        "ln -sf /nowhere/weights.pt weights.pt; exec python broken_link.py", "file-missing", "weights.pt"
    ),
    "no-permission": Fault("exec python no_permission.py", "permission", "secret.bin"),
    "disk-full": Fault("exec python disk_full.py /dev/full", "disk-full", "no room left"),
    "small-disk": Fault(
        f'mkdir -p mnt; exec {_SMALL} size=64k python "$PWD/disk_full.py" big.bin',
        "disk-full",
        "no room left",
        root=True,
    ),
    "no-inode": Fault(
        f'mkdir -p mnt; exec {_SMALL} nr_inodes=8 python "$PWD/no_inode.py"',
        "disk-full",
        "no inode",
        root=True,
    ),
    "file-size": Fault("ulimit -f 64; exec python disk_full.py big.bin", "file-size", "larger than"),
    "open-files": Fault("ulimit -n 40; exec python open_files.py", "open-files", "open"),
    "no-process": Fault("exec python no_process.py", "processes", "process or thread"),
    "no-thread": Fault("exec python no_thread.py", "processes", "process or thread"),
    "memory-error": Fault("ulimit -v 400000; exec python memory_error.py", "cpu-memory", "memory was full"),
    "segfault": Fault("python segfault.py", "segfault", "segmentation fault"),
    "bus-error": Fault("python bus_error.py", "bus-error", "bus error"),
    "aborted": Fault("python aborted.py", "aborted", "SIGABRT"),
    "killed": Fault("exec python killed.py", "killed", "SIGKILL"),
    "exit-code": Fault("exec python exit_code.py", "not-known", "exit code 7"),
    "timed-out": Fault("exec timeout 1 sleep 60", "not-known", "exit code 124"),
    "port": Fault("exec python port.py", "port-in-use", "in use"),
    "refused": Fault("exec python refused.py", "connection-refused", "nobody answered"),
    "no-host": Fault("exec python no_host.py", "unknown-address", "could not be resolved"),
    "json": Fault("exec python config.py", "not-parsed", "JSON: Expecting property name"),
    "assertion": Fault("exec python assertion.py", "assertion", "batch size"),
    "exception": Fault(
        "exec python exception.py", "python-exception", "KeyError: 'labels' (exception.py, line 2)"
    ),
    "spawn": Fault("exec python spawn.py", "pickling", "lambda"),
    "cut-pickle": Fault("exec python cut_pickle.py", "checkpoint-broken", "not whole"),
    # With PyTorch, which takes a second to import.
    "cpu-build": Fault("exec python cpu_build.py", "cpu-build", "CPUs"),
    "cut-checkpoint": Fault("exec python cut_checkpoint.py", "checkpoint-broken", "not whole"),
    "other-model": Fault("exec python other_model.py", "state-dict", "size mismatch for weight"),
    "shapes": Fault("exec python shapes.py", "shape", "mat1 and mat2"),
    "dtypes": Fault("exec python dtypes.py", "dtype", "same dtype"),
    "not-finite": Fault("exec python not_finite.py", "not-finite", "SqrtBackward0"),
    "loader-killed": Fault("exec python loader.py kill", "loader-killed", "Killed"),
    "small-shm": Fault(
        "exec unshare -m bash -c 'mount -t tmpfs -o size=64k none /dev/shm && exec python loader.py shm'",
        "shm",
        "/dev/shm",
        root=True,
    ),
    "class-index": Fault("exec python class_index.py", "class-index", "7"),
    "not-started": Fault("exec python not_started.py", "not-initialised", "RANK"),
    "store": Fault("exec python store.py", "store-timeout", "1 of 2"),
    "barrier": Fault(_RANKS.format(program="barrier.py"), "monitored-barrier", "rank 1 did not come", (1,)),
    "collective": Fault(_RANKS.format(program="collective.py"), "gloo-timeout", "waited 20000 ms"),
    "unused": Fault(_RANKS.format(program="unused.py"), "unused-parameters", "no part in the loss", (0, 1)),
}

_DIST = "import datetime, os, time, torch, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
# Rank 1 does not come before the other has given up, however busy the machine is.
_LATE = (
    f"{_DIST}dist.init_process_group('gloo', timeout=datetime.timedelta(seconds=20))\n\n\ndef until_told(wait):\n"
    "    if rank == 1:\n        while not os.path.exists('told'):\n            time.sleep(0.1)\n        raise SystemExit(0)\n"
    "    try:\n        wait()\n    finally:\n        open('told', 'w').close()\n\n\n"
)
PROGRAMS = {
    "syntax.py": "def train(model:\n    pass\n",
    "arguments.py": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr')\nparser.parse_args()\n"
    ),
    "no_module.py": "import lightning_fabric_x\n",
    "shadowed/random.py": "SEED = 3\n",
    "shadowed/train.py": "import tempfile\n",
    "shadowed_later/statistics.py": "MEANS = {}\n",
    "shadowed_later/train.py": "import statistics\nprint(statistics.fmean([1, 2]))\n",
    "no_file.py": "open('data/train.bin')\n",
    "broken_link.py": "open('weights.pt', 'rb')\n",
    "no_permission.py": f"{_NOBODY}open('secret.bin', 'w').close()\nos.chmod('secret.bin', 0)\nnobody()\nopen('secret.bin')\n",
    "disk_full.py": (
        "import sys\nwith open(sys.argv[1], 'wb') as file:\n    for _ in range(64):\n        file.write(bytes(65536))\n"
    ),
    "no_inode.py": "for number in range(99):\n    open(f'sample-{number}.bin', 'w').close()\n",
    "open_files.py": "files = [open('/dev/null') for _ in range(99)]\n",
    "no_process.py": (
        f"{_NOBODY}import resource, subprocess\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\nnobody()\n"
        "subprocess.run(['true'])\n"
    ),
    "no_thread.py": (
        f"{_NOBODY}import resource, threading\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\nnobody()\n"
        "threading.Thread(target=print).start()\n"
    ),
    "memory_error.py": "data = bytearray(1 << 30)\n",
    "segfault.py": "import ctypes\nctypes.string_at(0)\n",
    "bus_error.py": (
        "import mmap, os\nfile = open('mapped.bin', 'w+b')\nfile.truncate(8192)\nview = mmap.mmap(file.fileno(), 8192)\n"
        "file.truncate(0)\nprint(view[4096])\n"
    ),
    "aborted.py": "import os\nos.abort()\n",
    "killed.py": (
        "import os, subprocess, time\nprint('step 1', flush=True)\nsubprocess.run(['kill', '-KILL', str(os.getpid())])\n"
        "time.sleep(60)\n"
    ),
    "exit_code.py": "import sys\nprint('step 1: loss 0.5')\nsys.exit(7)\n",
    "port.py": "import socket\none, other = socket.socket(), socket.socket()\none.bind(('127.0.0.1', 0))\none.listen()\n"
    "other.bind(one.getsockname())\n",
    "refused.py": "import socket\nbusy = socket.socket()\nbusy.bind(('127.0.0.1', 0))\n"
    "socket.create_connection(busy.getsockname())\n",
    "no_host.py": "import socket\nsocket.create_connection(('node-of-nobody.invalid', 22))\n",
    "config.py": "import json\nopen('config.json', 'w').write('{\"lr\": 0.1,}')\njson.load(open('config.json'))\n",
    "assertion.py": "batch = 7\nassert batch % 2 == 0, f'batch size {batch} is odd'\n",
    "exception.py": "sample = {'image': 1}\nsample['labels']\n",
    "spawn.py": (
        "import multiprocessing\nif __name__ == '__main__':\n"
        "    multiprocessing.get_context('spawn').Process(target=lambda: None).start()\n"
    ),
    "cut_pickle.py": "import pickle\nopen('state.pkl', 'w').close()\npickle.load(open('state.pkl', 'rb'))\n",
    "cpu_build.py": "import torch\ntorch.zeros(1, device='cuda')\n",
    "cut_checkpoint.py": (
        "import os, torch\ntorch.save({'w': torch.zeros(9999)}, 'a.pt')\nos.truncate('a.pt', 5000)\ntorch.load('a.pt')\n"
    ),
    "other_model.py": (
        "import torch\nsaved = torch.nn.Linear(4, 2).state_dict()\ntorch.nn.Linear(4, 3).load_state_dict(saved)\n"
    ),
    "shapes.py": "import torch\ntorch.nn.Linear(4, 2)(torch.zeros(3, 5))\n",
    "dtypes.py": "import torch\ntorch.nn.Linear(4, 2)(torch.zeros(3, 4, dtype=torch.float64))\n",
    "not_finite.py": (
        "import torch\ntorch.autograd.set_detect_anomaly(True)\nx = torch.zeros(1, requires_grad=True)\n"
        "(torch.sqrt(x) * 0).backward()\n"
    ),
    "loader.py": (
        "import os, signal, sys, torch\n\n\nclass Data(torch.utils.data.Dataset):\n    def __len__(self):\n        return 4\n"
        "\n    def __getitem__(self, at):\n        if sys.argv[1] == 'kill':\n            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return torch.ones(99999)\n\n\n"
        "for batch in torch.utils.data.DataLoader(Data(), num_workers=1):\n    print(batch.sum())\n"
    ),
    "class_index.py": (
        "import torch\ntorch.nn.functional.cross_entropy(torch.zeros(2, 3), torch.tensor([1, 7]))\n"
    ),
    "not_started.py": "import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    "store.py": (
        "import datetime, torch.distributed as dist\n"
        "dist.TCPStore('127.0.0.1', 0, 2, True, timeout=datetime.timedelta(seconds=2))\n"
    ),
    "barrier.py": f"{_LATE}until_told(lambda: dist.monitored_barrier(timeout=datetime.timedelta(seconds=2)))\n",
    "collective.py": f"{_LATE}until_told(lambda: dist.all_reduce(torch.ones(2)))\n",
    "unused.py": (
        f"{_DIST}dist.init_process_group('gloo')\n\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.a, self.b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)\n\n"
        "    def forward(self, x):\n        return self.a(x)\n\n\nmodel = torch.nn.parallel.DistributedDataParallel(Model())\n"
        "for _ in range(2):\n    model(torch.ones(1, 2)).sum().backward()\n"
    ),
}
