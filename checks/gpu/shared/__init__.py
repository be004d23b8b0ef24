"""How a node's GPUs are queried and compared.

nvml and links call NVML in a Probe (readings has the types of their answers); nvml_survey queries all GPUs of a node
and determines which do not answer (nvml_errors reports them). cards merges and compares what the ranks of a node saw;
unused_gpus makes findings milder for GPUs that the job does not use.
"""
