"""A small language model on noise, in the style of the examples of Transformers' Trainer."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Noise(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=4,
        num_train_epochs=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Noise())
    trainer.train()
    print(
        f"rank {arguments.process_index} of {arguments.world_size}, {trainer.state.global_step} steps",
        flush=True,
    )


if __name__ == "__main__":
    main()
