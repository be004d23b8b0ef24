"""Prints the rows of the fault table that the incidents lean on, as pytest's -k takes them."""

from tests.incidents import coverage

if __name__ == "__main__":
    rows = {row for each in coverage.incidents().values() for row in (each.before, each.restart) if row}
    print(" or ".join(sorted(rows)))
