"""How long report.html takes to write, and how large it is, with all kinds of plots."""

import tempfile
import time
from pathlib import Path

from preflight.results import report_files
from preflight.results.page import whole
from tests import made, made_cluster


def main() -> None:
    whole.html(made.made_report())  # reads the templates
    with tempfile.TemporaryDirectory() as folder:
        for nodes in (64, 1024, 8192):
            sick = nodes // 3
            found = [made.finding("warn", f"it is {number}", node=made_cluster.name(number)) for number in range(60)]
            made_up = made_cluster.report(nodes, [*found, made.finding(node=made_cluster.name(sick))], sick)
            start = time.perf_counter()
            report_files.write(f"{folder}/report.html", whole.html(made_up))
            took = time.perf_counter() - start
            size = Path(f"{folder}/report.html").stat().st_size / 1e6
            print(f"  {nodes:,} nodes, {nodes * made_cluster.GPUS:,} GPUs: {size:.2f} MB in {took:.2f} s")


if __name__ == "__main__":
    main()
