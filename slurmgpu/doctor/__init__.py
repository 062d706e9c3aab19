"""Whether a place is fit for jobs: what is measured there (probe.py travels, alone), and what is said of it.

Here: measuring, thresholds with their reasons, one judge for each subject.
Not here: repairs; the doctor only reports.
"""
