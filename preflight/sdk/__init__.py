"""What `preflight.check` offers beyond records: files, pickles of strangers, a process for calls that may hang (probe),
the user's own code, pairs of nodes (who meets whom, and what bad pairs have in common), sockets, how nodes reach each
other, the kernel's counters of links, the arithmetic of devices, the bits of tensors, types of file systems, what
cgroups leave to a process, free memory, why the clocks of GPUs are low, what keeps PCIe devices
apart, and what a batch makes of a learning rate.
prctl is for all processes: a child ends with its parent."""
