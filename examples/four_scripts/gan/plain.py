"""Learns to draw rings: ``torchrun --nproc-per-node 2 plain.py``, or ``python plain.py`` on one device."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from rings import NOISE, Rings, discriminator, generator, write_picture
from torch.nn.functional import softplus
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.0005)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("out"))
    return parser.parse_args()


def set_up():
    """Returns the rank, the number of processes and the device."""
    if "RANK" not in os.environ:
        return 0, 1, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if not torch.cuda.is_available():
        return dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    return dist.get_rank(), dist.get_world_size(), device


def main():
    args = parse()
    rank, world, device = set_up()
    torch.manual_seed(args.seed)
    kind = torch.float16 if args.fp16 else torch.bfloat16

    def amp():
        return torch.autocast(device.type, kind, enabled=args.fp16 or args.bf16)

    def wrap(model):
        if not dist.is_initialized():
            return model
        return DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)

    data = Rings(args.samples)
    sampler = DistributedSampler(data, seed=args.seed) if dist.is_initialized() else None
    batches = DataLoader(
        data,
        args.batch_size // world,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
    )
    nets = {"generator": generator(args.width).to(device), "critic": discriminator(args.width).to(device)}
    adams = {name: torch.optim.Adam(net.parameters(), args.lr, (0.5, 0.999)) for name, net in nets.items()}
    scalers = {name: torch.amp.GradScaler(device.type, enabled=args.fp16) for name in nets}
    first = 0
    args.out.mkdir(exist_ok=True)
    if (args.out / "last.pt").exists():
        saved = torch.load(args.out / "last.pt", map_location=device, weights_only=True)
        for part, owners in (("nets", nets), ("adams", adams), ("scalers", scalers)):
            for name, owner in owners.items():
                owner.load_state_dict(saved[part][name])
        first = saved["epoch"] + 1
        if rank == 0:
            print(f"goes on with epoch {first}")
    wrapped = {name: wrap(net) for name, net in nets.items()}
    torch.manual_seed(args.seed + 1000 * first + rank)  # other noise on each rank
    fixed = torch.randn(8, NOISE, generator=torch.Generator().manual_seed(0)).to(device)

    def update(name, loss):
        scalers[name].scale(loss).backward()
        scalers[name].step(adams[name])
        scalers[name].update()
        adams[name].zero_grad(set_to_none=True)

    for epoch in range(first, args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for step, real in enumerate(batches):
            real = real.to(device, non_blocking=True)
            noise = torch.randn(len(real), NOISE, device=device)

            with amp():
                fake = wrapped["generator"](noise)
                # One pass over both: DDP refuses a second forward before the backward.
                scores = wrapped["critic"](torch.cat([real, fake.detach()]))
                on_real, on_fake = scores.chunk(2)
                critic_loss = softplus(-on_real).mean() + softplus(on_fake).mean()
            update("critic", critic_loss)

            for parameter in nets["critic"].parameters():
                parameter.requires_grad_(False)
            with amp():
                generator_loss = softplus(-nets["critic"](fake)).mean()
            update("generator", generator_loss)
            for parameter in nets["critic"].parameters():
                parameter.requires_grad_(True)

            if rank == 0 and step % args.log_every == 0:
                losses = f"critic {critic_loss.item():.4f}, generator {generator_loss.item():.4f}"
                print(f"epoch {epoch} step {step}: {losses}", flush=True)
        if rank == 0:
            with torch.no_grad():
                write_picture(args.out / f"epoch-{epoch}.pgm", nets["generator"](fixed).float().cpu())
            state = {"epoch": epoch}
            for part, owners in (("nets", nets), ("adams", adams), ("scalers", scalers)):
                state[part] = {name: owner.state_dict() for name, owner in owners.items()}
            torch.save(state, args.out / "last.tmp")
            (args.out / "last.tmp").replace(args.out / "last.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
