"""Foretells properties of molecules: ``torchrun --nproc-per-node 2 plain.py``, or ``python plain.py`` on one device."""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from molecules import Batch, GraphNet, Molecules, loss_sum, roc_auc
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def loader(dataset, batch_size, shuffle, workers):
    sampler = DistributedSampler(dataset, shuffle=shuffle) if dist.is_initialized() else None
    return DataLoader(
        dataset,
        batch_size,
        shuffle=shuffle and sampler is None,
        sampler=sampler,
        collate_fn=Batch,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
    )


def train_epoch(model, data, optimizer, scaler, amp, device):
    model.train()
    total, count = 0.0, 0
    for batch in data:
        batch = batch.to(device, non_blocking=True)
        with amp():
            loss, measured = loss_sum(model(batch), batch.targets)
        optimizer.zero_grad(set_to_none=True)
        # A mean over this rank's targets: ranks with fewer of them weigh as much as the others.
        scaler.scale(loss / measured.clamp(min=1)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        total, count = total + loss.item(), count + measured.item()
    return total / count


@torch.no_grad()
def test(model, data, amp, device, samples):
    """The ROC-AUC over the outputs of all ranks."""
    model.eval()
    scores, targets = [], []
    for batch in data:
        batch = batch.to(device)
        with amp():
            scores.append(model(batch).float())
        targets.append(batch.targets)
    scores, targets = torch.cat(scores).cpu(), torch.cat(targets).cpu()
    if dist.is_initialized():
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (scores, targets))
        # DistributedSampler deals the samples out in turn, and repeats the first ones at the end.
        scores, targets = (
            torch.stack([part[each] for part in everyone], 1).flatten(0, 1)[:samples] for each in (0, 1)
        )
    return roc_auc(scores, targets)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--patience", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=50, help="of all processes together")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
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

    train, held_out = Molecules(args.samples, train=True), Molecules(args.samples // 5, train=False)
    batches = loader(train, args.batch_size // world, True, args.workers)
    held_out_batches = loader(held_out, args.batch_size // world, False, args.workers)
    model = GraphNet(args.layers, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(device.type, enabled=args.fp16)
    first, best, waited = 0, 0.0, 0
    args.out.mkdir(exist_ok=True)
    if (args.out / "last.pt").exists():
        saved = torch.load(args.out / "last.pt", map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
        first, best, waited = saved["epoch"] + 1, saved["best"], saved["waited"]
        if rank == 0:
            print(f"goes on with epoch {first}")
    wrapped = model
    if dist.is_initialized():
        wrapped = DistributedDataParallel(model, [device.index] if device.type == "cuda" else None)

    for epoch in range(first, args.epochs):
        if waited >= args.patience:
            break
        if dist.is_initialized():
            batches.sampler.set_epoch(epoch)
        loss = train_epoch(wrapped, batches, optimizer, scaler, amp, device)
        area = test(model, held_out_batches, amp, device, len(held_out))
        waited = 0 if area > best else waited + 1
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}, ROC-AUC {area:.4f}", flush=True)
            if area > best:
                torch.save(model.state_dict(), args.out / "best.pt")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state.update(scaler=scaler.state_dict(), epoch=epoch, best=max(best, area), waited=waited)
            torch.save(state, args.out / "last.tmp")
            (args.out / "last.tmp").replace(args.out / "last.pt")
        best = max(best, area)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
