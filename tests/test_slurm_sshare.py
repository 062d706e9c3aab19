"""What an account has left is what was granted, less what was used and what runs."""

from __future__ import annotations

from slurmgpu.slurm.show import Balance, parse_balance

# sshare -n -P -A mygroup -o Account,User,GrpTRESMins,GrpTRESRaw,TRESRunMins (22.05)
SAID = """mygroup||cpu=100000,gres/gpu=6000|cpu=40,mem=83,energy=0,billing=0,gres/gpu=10|cpu=60,mem=0,gres/gpu=90
 mygroup|root||cpu=0,mem=83,energy=0,gres/gpu=0|cpu=0,mem=0,gres/gpu=0
"""


def test_what_is_left_is_granted_less_used_less_running() -> None:
    assert parse_balance(SAID, "mygroup") == Balance(
        "mygroup", {"cpu": 100000, "gres/gpu": 6000}, {"cpu": 99900, "gres/gpu": 5900}
    )


def test_an_account_without_a_limit_has_no_figure() -> None:
    assert parse_balance("other|||cpu=0|cpu=0\n", "other") == Balance("other")


def test_what_is_not_there_is_not_invented() -> None:
    assert parse_balance(SAID, "nosuch") is None
    assert parse_balance("", "mygroup") is None
    assert parse_balance("sshare: error: something\n", "mygroup") is None
