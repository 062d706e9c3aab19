"""Names GPUs in every way that courses do, without asking whether there are any; a process for each is spawned."""

from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank, world_size, address):
    dist.init_process_group("nccl", init_method=address, rank=rank, world_size=world_size)
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(nn.Linear(4, 4).to(rank), device_ids=[rank])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    with torch.autocast("cuda", dtype=torch.float16), torch.cuda.device(rank):
        out = model(torch.randn(8, 4, device="cuda").to(torch.device("cuda", rank)))
        assert out.dtype is torch.float16
        loss = out.float().sum()
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    assert accelerator is None or torch.accelerator.device_count() == world_size
    assert torch.cuda.get_device_properties(rank).name == "CPU"
    torch.amp.GradScaler("cuda").scale(loss).backward()
    end.record()
    ahead = torch.cuda.Stream()
    with torch.cuda.stream(ahead):
        batch = torch.randn(8, 4).pin_memory().cuda(non_blocking=True)
    torch.cuda.current_stream().wait_stream(ahead)
    batch.record_stream(torch.cuda.current_stream())
    ahead.record_event().synchronize()
    torch.cuda.synchronize()
    dist.barrier(device_ids=[rank])
    assert begin.elapsed_time(end) > 0
    assert "no GPU" in torch.cuda.memory_summary()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
        torch.load("model.pt", map_location="cuda:0")
    halves = nn.Linear(4, 2).cuda(0)(torch.ones(1, 4).cuda()), nn.DataParallel(nn.Linear(4, 2)).cuda()
    print(
        f"rank {rank} of {world_size} trained on {torch.cuda.current_device()}", halves[0].device, flush=True
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(train, args=(count, f"file://{Path.cwd()}/meet"), nprocs=count)
