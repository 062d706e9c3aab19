"""The methods that a task may have, and what is meant by others that are called nearly so, or as in another library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["OPTIONAL", "REQUIRED", "misnamed"]

REQUIRED = {"model": "(cfg)", "dataset": "(cfg, split)", "loss": "(model, batch)"}
OPTIONAL = {
    "blocks": "(model)",
    "shards": "(model)",
    "stages": "(model, count)",
    "init_weights": "(model)",
    "optimizer": "(model, cfg)",
    "optimizers": "(model, cfg)",
    "parameter_groups": "(model, cfg)",
    "schedule": "(optimizer, cfg, total_steps)",
    "schedules": "(optimizers, cfg, total_steps)",
    "epoch_schedule": "(optimizer, cfg)",
    "step": "(model, batches, update)",
    "evaluate": "(model, batch)",
    "collate": "(samples)",
    "weights": "(dataset, cfg)",
    "lengths": "(dataset, cfg)",
    "order": "(dataset, cfg, epoch)",
    "finish": "(outputs)",
    "sample": "(model, cfg)",
    "prepare": "(cfg)",
    "flops": "(cfg)",
    "state_dict": "()",
    "load_state_dict": "(state)",
    "on_start": "(model, cfg)",
    "on_step_end": "(model, step)",
    "on_epoch_end": "(model, epoch, results)",
    "on_save": "(path)",
    "on_end": "(model, results)",
}

# Of Lightning, of Transformers' Trainer, and of many a script.
_ELSEWHERE = {
    "training_step": "loss",
    "compute_loss": "loss",
    "criterion": "loss",
    "validation_step": "evaluate",
    "test_step": "evaluate",
    "validate": "evaluate",
    "compute_metrics": "evaluate",
    "configure_optimizers": "optimizer",
    "train_dataloader": "dataset",
    "val_dataloader": "dataset",
    "collate_fn": "collate",
    "scheduler": "schedule",
    "lr_scheduler": "schedule",
    "prepare_data": "prepare",
    "on_train_start": "on_start",
    "on_train_batch_end": "on_step_end",
    "on_train_epoch_end": "on_epoch_end",
    "on_validation_epoch_end": "on_epoch_end",
    "on_save_checkpoint": "on_save",
    "on_train_end": "on_end",
}


def misnamed(names: Iterable[str], used: Iterable[str]) -> dict[str, str]:
    """Return the public methods of a task that nothing calls, each with the one that it was most likely meant to be.

    Args:
        names: All of its methods.
        used: Names that its own code uses: such a method is a helper.
    """
    own = set(names)
    free = [name for name in (*REQUIRED, *OPTIONAL) if name not in own]
    found: dict[str, str] = {}
    for name in sorted(own - {*REQUIRED, *OPTIONAL} - set(used)):
        near = difflib.get_close_matches(name, free, n=1, cutoff=0.8)
        elsewhere = _ELSEWHERE.get(name)
        meant = elsewhere or next(iter(near), None)
        # Of a method that is called so in another library, the task may have ours, too: the other one is not called all the same.
        if (meant in free or elsewhere) and meant and not name.startswith("_"):
            found[name] = meant
    return found
