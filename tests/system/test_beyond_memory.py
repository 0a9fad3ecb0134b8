import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

SCRIPT = """
import sys
from pathlib import Path
from benchmarks import beyond_memory
from pairstill.features import subset_selection
from pairstill.runtime import row_matrix
from pairstill.sets import distilled_set
beyond_memory.WIDTHS = {"images": 128, "texts": 32}
subset_selection.SAMPLED_ROWS, row_matrix.ROWS_AT_ONCE, distilled_set.CAPTIONS_AT_ONCE = 4096, 2048, 2048
beyond_memory.CHOSEN, subset_selection.ROWS_PER_CLUSTER = 8, 1
beyond_memory.measure(int(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_stage_holds_the_features_in_memory(tmp_path):
    """200,000 pairs are 122 MiB of features and 12 MiB of captions; links and their like are some 15."""
    command = [sys.executable, "-c", SCRIPT, "200000", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    stages = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(stages) == 9
    assert max(row["peak_mib"] for row in stages) - stages[0]["peak_mib"] < 61  # half of them
