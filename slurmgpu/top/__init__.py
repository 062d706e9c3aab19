"""The full-screen terminal, `slurmgpu top`.

Here: screens over jobs/live.py; nothing else imports Textual.
Not here: any decision about a job: words, colours and facts come from jobs/view.py.
"""

from __future__ import annotations
