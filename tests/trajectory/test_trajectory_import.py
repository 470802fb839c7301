import subprocess
import sys

BLOCKED = """
import sys
for name in ("verl", "ray", "vllm", "torch", "numpy", "transformers", "tokenizers"):
    sys.modules[name] = None
from verl_mintrl.trajectory import spans, splice, steps, text
"""


def test_needs_the_standard_library_only():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
