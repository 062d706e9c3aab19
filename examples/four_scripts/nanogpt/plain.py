"""Trains a GPT on token files: ``torchrun --nproc-per-node 2 plain.py``, or ``python plain.py`` on one device."""

import argparse
import contextlib
import math
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from gpt import Gpt, prepare, tokens
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=Path, default=Path("data"))
parser.add_argument("--lines", type=int, default=20000)
parser.add_argument("--out", type=Path, default=Path("out"))
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--context", type=int, default=64)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--batch-size", type=int, default=32, help="windows of a micro-batch")
parser.add_argument("--accumulate", type=int, default=2, help="micro-batches of a step, over all processes")
parser.add_argument("--max-steps", type=int, default=1000)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--min-lr", type=float, default=1e-4)
parser.add_argument("--warmup-steps", type=int, default=50)
parser.add_argument("--weight-decay", type=float, default=0.1)
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--eval-every", type=int, default=200)
parser.add_argument("--eval-batches", type=int, default=10)
parser.add_argument("--log-every", type=int, default=20)
parser.add_argument("--seed", type=int, default=1337)
args = parser.parse_args()

# Processes and device

ddp = "RANK" in os.environ
cuda = torch.cuda.is_available()
rank, world, local = 0, 1, 0
if ddp:
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, world, local = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    assert args.accumulate % world == 0
    args.accumulate //= world
first = rank == 0
device = torch.device("cuda", local) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)
    torch.backends.cuda.matmul.allow_tf32 = True
torch.manual_seed(args.seed + rank)
kind = getattr(torch, args.dtype)


def amp():
    return torch.autocast(device.type, kind) if kind != torch.float32 else contextlib.nullcontext()


# Data

if first:
    args.out.mkdir(exist_ok=True)
    if not (args.data / "train.bin").exists():
        prepare(args.data, args.lines)
if ddp:
    dist.barrier()
data = {name: tokens(args.data, name) for name in ("train", "val")}


def get_batch(split):
    """Windows from anywhere; a resumed run draws others."""
    found = data[split]
    starts = torch.randint(len(found) - args.context, (args.batch_size,)).tolist()
    x = torch.stack([found[start : start + args.context].long() for start in starts])
    y = torch.stack([found[start + 1 : start + 1 + args.context].long() for start in starts])
    if cuda:
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


# Model, optimizer, checkpoint

model = Gpt(args.layers, args.heads, args.width, args.context, args.dropout).to(device)
decayed = [each for each in model.parameters() if each.dim() > 1]
others = [each for each in model.parameters() if each.dim() < 2]
groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), fused=cuda)
scaler = torch.amp.GradScaler(device.type, enabled=args.dtype == "float16")
step, best = 0, math.inf
if (args.out / "ckpt.pt").exists():
    saved = torch.load(args.out / "ckpt.pt", map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    scaler.load_state_dict(saved["scaler"])
    step, best = saved["step"], saved["best"]
    if first:
        print(f"goes on at step {step}")
wrapped = torch.compile(model) if args.compile else model
if ddp:
    wrapped = DistributedDataParallel(wrapped, [local] if cuda else None)


def rate(step):
    """Warm-up, then a cosine down to min_lr."""
    if step < args.warmup_steps:
        return args.lr * (step + 1) / (args.warmup_steps + 1)
    share = (step - args.warmup_steps) / max(1, args.max_steps - args.warmup_steps)
    return args.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (args.lr - args.min_lr)


@torch.no_grad()
def estimate():
    """The mean loss over some batches of each split."""
    found = {}
    model.eval()
    for split in ("train", "val"):
        losses = torch.zeros(args.eval_batches)
        for number in range(args.eval_batches):
            x, y = get_batch(split)
            with amp():
                losses[number] = cross_entropy(model(x).flatten(0, 1), y.flatten()).item()
        found[split] = losses.mean().item()
    model.train()
    return found


# Training

x, y = get_batch("train")
began = time.perf_counter()
while True:
    lr = rate(step)
    for group in optimizer.param_groups:
        group["lr"] = lr
    if (step % args.eval_every == 0 or step == args.max_steps) and first:
        losses = estimate()
        print(f"step {step}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}", flush=True)
        print(model.generate("1+1=", 20))
        if step > 0:
            best = min(best, losses["val"])
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state.update(scaler=scaler.state_dict(), step=step, best=best)
            torch.save(state, args.out / "ckpt.tmp")
            (args.out / "ckpt.tmp").replace(args.out / "ckpt.pt")
            if losses["val"] == best:
                torch.save(state, args.out / "best.pt")
    if step >= args.max_steps:
        break
    for micro in range(args.accumulate):
        if ddp:
            wrapped.require_backward_grad_sync = micro == args.accumulate - 1
        with amp():
            loss = cross_entropy(wrapped(x).flatten(0, 1), y.flatten()) / args.accumulate
        x, y = get_batch("train")
        scaler.scale(loss).backward()
    if args.clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % args.log_every == 0 and first:
        took, began = time.perf_counter() - began, time.perf_counter()
        print(f"step {step}: loss {loss.item() * args.accumulate:.4f}, {1000 * took:.0f} ms", flush=True)
    step += 1
if ddp:
    dist.destroy_process_group()
