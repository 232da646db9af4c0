import subprocess
import sys


def test_the_tests_of_audits_need_no_torch():
    code = (
        "import sys\n"
        "from discreet.audit import curves, exposure, guessing, many_run, membership, one_run\n"
        "guessing.counts_for(50, *guessing.rehearsed(1.0, 1.0, 1), delta=1e-5)\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
