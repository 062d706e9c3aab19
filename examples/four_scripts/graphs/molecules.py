"""What both scripts share: made-up molecules, batches of graphs, a graph network, and the area under a ROC curve."""

from dataclasses import dataclass

import torch
from torch import nn

ATOMS, TARGETS = 5, 3


@dataclass
class Graph:
    atoms: torch.Tensor  # (N,): the kind of each atom
    bonds: torch.Tensor  # (2, M): from and to, both ways
    targets: torch.Tensor  # (TARGETS,): 0 or 1, or NaN where it was not measured


class Batch:
    """Several graphs as one: atoms numbered through, and for each the number of its graph."""

    def __init__(self, graphs):
        sizes = torch.tensor([len(graph.atoms) for graph in graphs])
        starts = (sizes.cumsum(0) - sizes).tolist()
        self.atoms = torch.cat([graph.atoms for graph in graphs])
        self.bonds = torch.cat([graph.bonds + start for graph, start in zip(graphs, starts, strict=True)], 1)
        self.graph = torch.arange(len(graphs)).repeat_interleave(sizes)
        self.targets = torch.stack([graph.targets for graph in graphs])

    def __len__(self):
        return len(self.targets)

    def to(self, device, non_blocking=False):
        for name, value in vars(self).items():
            setattr(self, name, value.to(device, non_blocking=non_blocking))
        return self

    def pin_memory(self):
        for name, value in vars(self).items():
            setattr(self, name, value.pin_memory())
        return self


class Molecules(torch.utils.data.Dataset):
    """Random trees of atoms; the targets ask which bonds there are."""

    def __init__(self, count, train):
        self.graphs = [molecule(number if train else 1_000_000 + number) for number in range(count)]

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def molecule(seed):
    drawn = torch.Generator().manual_seed(seed)
    size = int(torch.randint(4, 12, (), generator=drawn))
    atoms = torch.randint(ATOMS, (size,), generator=drawn)
    parents = (torch.rand(size - 1, generator=drawn) * torch.arange(1, size)).long()
    one, other = torch.arange(1, size), parents
    pairs = atoms[one] * atoms[other]
    targets = torch.stack([(pairs == wanted).any() for wanted in (2, 6, 12)]).float()
    targets[torch.rand(TARGETS, generator=drawn) < 0.1] = torch.nan
    return Graph(atoms, torch.stack([torch.cat([one, other]), torch.cat([other, one])]), targets)


class GraphNet(nn.Module):
    """A graph isomorphism network: each layer adds up the neighbours of an atom."""

    def __init__(self, layers, width):
        super().__init__()
        self.atoms = nn.Embedding(ATOMS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.scores = nn.Linear(width, TARGETS)

    def forward(self, batch):
        x = self.atoms(batch.atoms)
        start, end = batch.bonds
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(norm(x.index_add(0, end, x[start])))
        whole = x.new_zeros(len(batch), x.shape[1]).index_add(0, batch.graph, x)
        return self.scores(whole)


def loss_sum(scores, targets):
    """The loss over all measured targets, and how many these are."""
    measured = ~targets.isnan()
    loss = nn.functional.binary_cross_entropy_with_logits(scores, targets.nan_to_num(), reduction="none")
    return (loss * measured).sum(), measured.sum()


def roc_auc(scores, targets):
    """The mean over the targets of the area under the ROC curve, by ranks; ties count half."""
    areas = []
    for column in range(targets.shape[1]):
        measured = ~targets[:, column].isnan()
        score, target = scores[measured, column], targets[measured, column]
        positive, negative = score[target == 1], score[target == 0]
        if len(positive) and len(negative):
            wins = (positive[:, None] > negative).double() + (positive[:, None] == negative).double() / 2
            areas.append(wins.mean())
    return float(torch.stack(areas).mean()) if areas else float("nan")
