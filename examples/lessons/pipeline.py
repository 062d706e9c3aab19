"""Pipeline parallel: each process has one stage of the network, and pieces of a batch travel from stage to stage.

A task for slurmgpu's own loop, which sends the activations on and their gradients back (``strategy: pipeline``). With 1F1B a
stage takes a piece forward and one backward in turns, so that all stages have work and few activations wait.
"""

from torch import nn
from toy import network, samples


class Sums:
    """The problem of all lessons, with a network in two stages or more."""

    def model(self, cfg):
        """The same first weights as in the other lessons."""
        return network()

    def stages(self, model, count):
        """As many pieces as there are processes, in their order; each takes what the one before returns."""
        layers = list(model)
        cuts = [len(layers) * place // count for place in range(count + 1)]
        return [nn.Sequential(*layers[cuts[place] : cuts[place + 1]]) for place in range(count)]

    def dataset(self, cfg, split):
        """What the network learns; each epoch ends with a look at how well it does on the same."""
        return samples()

    def loss(self, model, batch):
        """Only the last stage comes to the loss; on the others the call of the model ends it."""
        inputs, targets = batch
        return nn.functional.mse_loss(model(inputs), targets)
