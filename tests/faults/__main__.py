"""`python -m tests.faults` writes docs/faults.md."""

from tests import faults

faults.DOCS.write_text(faults.page())
