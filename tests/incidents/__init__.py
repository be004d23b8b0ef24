"""The yardstick from outside: what interrupted large jobs, by published tables, and what preflight says of each.

incidents.toml has reproducible incidents: the logs that one leaves, and the row of the fault table in which the same
part fails when preflight runs before the job, or in front of its restart. tables.toml has the published shares, and
which incidents a row stands for. `python -m tests.incidents` reads each incident's logs with `preflight explain`,
prints the coverage of each table and writes docs/incidents.md; `make incidents` also makes those faults for real.
"""
