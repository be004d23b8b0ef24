"""Commands around a run in a cluster: `preflight gate`, `hook`, `nodes` and `pick`.

gate runs a launcher's preflight and holds the job; reason is its verdict in one line, for a scheduler; hook prints the
files of hooks/; nodes lists a report's nodes in the formats of host_list; pick chooses N nodes of a larger Slurm job.
"""
