"""What stands around a run in a cluster: `preflight gate`, `hook`, `nodes` and `pick`.

gate runs a launcher's preflight and holds the job; reason is its verdict in a line, for a scheduler; hook prints the
files of hooks/; nodes lists a report's nodes in the words of host_list; pick chooses N of more nodes of a Slurm job.
"""
