"""YAML on disk to models and back; where templates, jobs and profiles live."""
