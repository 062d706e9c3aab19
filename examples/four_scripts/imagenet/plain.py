"""Classifies images: ``torchrun --nproc-per-node 2 plain.py``, or ``python plain.py`` on one device."""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from images import Images, resnet
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, DistributedSampler


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--warmup-steps", type=int, default=30)
    parser.add_argument("--clip", type=float, default=5.0)
    parser.add_argument("--amp", choices=["none", "bf16", "fp16"], default="none")
    parser.add_argument("--channels-last", action="store_true")
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


def loader(dataset, args, world, shuffle):
    sampler = DistributedSampler(dataset, shuffle=shuffle, seed=args.seed) if dist.is_initialized() else None
    return DataLoader(
        dataset,
        batch_size=args.batch_size // world,
        sampler=sampler,
        shuffle=shuffle and sampler is None,
        num_workers=args.workers,
        pin_memory=torch.cuda.is_available(),
        drop_last=shuffle,
    )


def groups(model, weight_decay):
    """Norms and biases without weight decay."""
    matrices = [each for each in model.parameters() if each.dim() > 1]
    others = [each for each in model.parameters() if each.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def save(path, **state):
    """Written beside its place and moved there, so that a kill leaves the old one."""
    beside = path.with_suffix(".tmp")
    torch.save(state, beside)
    beside.replace(path)


def train_epoch(model, data, optimizer, scheduler, scaler, amp, epoch, args, device, rank):
    model.train()
    began, seen = time.perf_counter(), 0
    for step, (images, labels) in enumerate(data):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if args.channels_last:
            images = images.to(memory_format=torch.channels_last)
        with amp():
            loss = nn.functional.cross_entropy(model(images), labels, label_smoothing=args.label_smoothing)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scheduler.step()
        seen += len(labels)
        if rank == 0 and step % args.log_every == 0:
            rate = seen / (time.perf_counter() - began)
            print(f"epoch {epoch} step {step}: loss {loss.item():.4f}, {rate:.0f} images/s", flush=True)


@torch.no_grad()
def validate(model, data, amp, device):
    model.eval()
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    for images, labels in data:
        images, labels = images.to(device), labels.to(device)
        with amp():
            scores = model(images)
        found = scores.topk(min(5, scores.shape[1]), 1).indices == labels[:, None]
        loss = nn.functional.cross_entropy(scores.float(), labels, reduction="sum")
        sums += torch.stack([found[:, 0].sum(), found.sum(), loss, torch.tensor(len(labels), device=device)])
    if dist.is_initialized():
        dist.all_reduce(sums)  # DistributedSampler repeats samples to make shares equal: these count twice
    top1, top5, loss, count = sums.tolist()
    return top1 / count, top5 / count, loss / count


def main():
    args = parse()
    rank, world, device = set_up()
    torch.manual_seed(args.seed)
    kind = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.amp]

    def amp():
        return torch.autocast(device.type, kind, enabled=kind is not None)

    train = loader(Images(args.samples, args.classes, args.size, True), args, world, shuffle=True)
    test = loader(Images(args.samples // 5, args.classes, args.size, False), args, world, shuffle=False)
    model = resnet(args.width, args.classes).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(groups(model, args.weight_decay), lr=args.lr, momentum=args.momentum)
    total = args.epochs * len(train)
    warmup = LinearLR(optimizer, 0.01, total_iters=args.warmup_steps)
    cosine = CosineAnnealingLR(optimizer, max(1, total - args.warmup_steps))
    scheduler = SequentialLR(optimizer, [warmup, cosine], [args.warmup_steps])
    scaler = torch.amp.GradScaler(device.type, enabled=args.amp == "fp16")

    first, best = 0, 0.0
    args.out.mkdir(exist_ok=True)
    if (args.out / "last.pt").exists():
        saved = torch.load(args.out / "last.pt", map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        scaler.load_state_dict(saved["scaler"])
        first, best = saved["epoch"] + 1, saved["best"]
        if rank == 0:
            print(f"goes on with epoch {first}")
    wrapped = model
    if dist.is_initialized():
        wrapped = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)

    for epoch in range(first, args.epochs):
        if dist.is_initialized():
            train.sampler.set_epoch(epoch)
        train_epoch(wrapped, train, optimizer, scheduler, scaler, amp, epoch, args, device, rank)
        top1, top5, loss = validate(model, test, amp, device)
        if rank == 0:
            print(f"epoch {epoch}: top-1 {top1:.1%}, top-5 {top5:.1%}, loss {loss:.4f}", flush=True)
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"scheduler": scheduler.state_dict(), "scaler": scaler.state_dict()}
            best = max(best, top1)
            save(args.out / "last.pt", **state, epoch=epoch, best=best)
            if top1 == best:
                save(args.out / "best.pt", model=model.state_dict(), epoch=epoch, top1=top1)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
