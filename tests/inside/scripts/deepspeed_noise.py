"""A regression of noise, in the style of DeepSpeed's examples: --local_rank, and a ds_config beside it."""

import argparse

import deepspeed
import torch


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    deepspeed.init_distributed("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    engine, _, _, _ = deepspeed.initialize(args=args, model=model, model_parameters=model.parameters())
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(8):
        x = torch.randn(4, 16, device=engine.device)
        loss = engine(x).pow(2).mean()
        engine.backward(loss)
        engine.step()
    one = torch.ones(1)
    torch.distributed.all_reduce(one)
    print(f"rank {torch.distributed.get_rank()} of {int(one)}, local rank {args.local_rank}", flush=True)


if __name__ == "__main__":
    main()
