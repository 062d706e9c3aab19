"""The full-screen terminal: `slurmgpu top`. Nothing else imports Textual."""
