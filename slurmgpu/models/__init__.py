"""The nouns of the project: Job, Cluster, Plan, Run.

Here: Pydantic models, their units and the rules of single values; the docstring below a field is its help everywhere.
Not here: anything that needs two models at once (planning/), a file (files/) or Slurm (slurm/).
A model is checked where a value enters, and trusted after that.
"""
