"""Checks whether a place is fit for jobs: measurements there (probe.py travels, alone), and their verdict.

Here: measuring, thresholds with their reasons, one judge for each subject.
Not here: repairs; the doctor only reports.
"""
