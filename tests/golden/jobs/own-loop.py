import torch

from slurmgpu.training import Run

torch.distributed.init_process_group()
run = Run()
