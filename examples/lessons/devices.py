"""Devices and tensors: when `.to` copies and when it does not, and what happens to tensors on different devices."""

import torch
from toy import device, network

place = device()
here = torch.zeros(3)
moved = here.to(place)
here[0] = 1  # seen in what is the same memory, and not in a copy
print(f".to({place}): {'the same tensor' if moved is here else 'a copy'}, {moved.tolist()}")

copied = here.to(place, copy=True)
here[1] = 1
print(f".to({place}, copy=True): a copy, {copied.tolist()}")

halves = here.to(torch.float16)
print(f".to(torch.float16): a copy, since the type is another; {halves.dtype} beside {here.dtype}")

# A module is moved in place and keeps its parameters, so that an optimizer made before still has them; a tensor is not.
model = network()
first = next(model.parameters())
print(f"model.to: {'the same parameters' if next(model.to(place).parameters()) is first else 'others'}")

# The numbers of one operation must be on one device. `meta` has shapes and no numbers, and stands for a second device
# where there is no GPU.
other = torch.device("meta") if place.type == "cpu" else torch.device("cpu")
try:
    model(torch.ones(1, 10, device=other)).sum().item()
except RuntimeError as error:
    print(f"on {place} and {other}: {str(error).splitlines()[0]}", flush=True)
