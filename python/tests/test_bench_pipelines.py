"""benches/pipelines: the operators' comparisons are right, each in its shortest form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parents[2] / "benches/pipelines/run.py"

pytestmark = pytest.mark.skipif(not RUN.exists(), reason="SKIP: needs a checkout")


@pytest.mark.slow
def test_operators_beside_others(torch, tmp_path):
    if not hasattr(torch.library, "custom_op"):
        pytest.skip("SKIP: operators need PyTorch 2.4")
    command = [sys.executable, RUN, "--only", "operators", "--quick", "--json", tmp_path / "r.json", "--commit", "none"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["group"] == "operators" and report["machine"]["torch"] == torch.__version__
    contenders = {name for line in report["lines"] for name in line["quartiles"]}
    assert {"torch.stack", "torch.cat", "pad_sequence", "torch.nested", "torch.embedding", "windrow.pad, eager, and an identity operator"} <= contenders
    assert {"ops.stack", "ops.ragged", "ops.pad", "ops.repad", "ops.ragged, ops.repad", "ops.take"} <= contenders
    for line in report["lines"]:
        assert line["title"] in done.stdout and len(line["quartiles"]) >= 2
        assert all(0 < low <= middle <= high for low, middle, high in line["quartiles"].values())
