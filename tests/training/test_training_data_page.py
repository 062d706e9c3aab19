"""The code of docs/data.md: each block is a whole task, and it trains."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, RunFolder

PAGE = ROOT / "docs" / "data.md"
# Where the package alone is tested, the docs are missing.
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text() if PAGE.exists() else "", re.M | re.S)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_each_task_of_the_page_trains(run: RunFolder, tmp_path: Path, number: int) -> None:
    code = BLOCKS[number]
    if "import numpy" in code:
        pytest.importorskip("numpy")
    name = f"page_{number}"
    (tmp_path / f"{name}.py").write_text(code)
    run.write(f"{tmp_path / name}.py:Task", batch_size=16, max_steps=6, epochs=2, log_every=1, lr=0.1)
    try:
        run.here()
    finally:
        sys.modules.pop(name, None)
    losses = run.losses()
    assert len(losses) == 6
    assert all(map(math.isfinite, losses))
