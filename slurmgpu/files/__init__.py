"""Users' files: YAML with line numbers, settings in layers, job files, profiles, templates, trust in owners.

Here: reading and writing users' files, and the sentences about mistakes in them.
Not here: run directories (runs/), the discovery of a cluster (clusters/).
"""
