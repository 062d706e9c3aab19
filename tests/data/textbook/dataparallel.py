"""One process, nn.DataParallel over the GPUs that are there."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

INPUTS, OUTPUTS, BATCH, SAMPLES = 5, 2, 30, 100
device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


class Dummy(Dataset):
    def __init__(self, size, length):
        self.data = torch.randn(length, size)

    def __getitem__(self, index):
        return self.data[index]

    def __len__(self):
        return len(self.data)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(INPUTS, OUTPUTS)

    def forward(self, batch):
        output = self.layer(batch)
        print("  in the model: input", tuple(batch.shape), "output", tuple(output.shape))
        return output


model = Model()
if torch.cuda.device_count() > 1:
    print("using", torch.cuda.device_count(), "GPUs")
    model = nn.DataParallel(model)
model.to(device)
for batch in DataLoader(Dummy(INPUTS, SAMPLES), batch_size=BATCH, shuffle=True):
    output = model(batch.to(device))
    print("outside: output", tuple(output.shape))
