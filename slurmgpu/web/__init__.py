"""The pages of `slurmgpu web`: a form that shows its script, and the jobs with their logs and plots.

Here: routes, pages and who may ask for them; nothing else imports a web server.
Not here: any decision about a job: words and facts come from jobs/view.py and jobs/table.py.
"""
