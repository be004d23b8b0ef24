"""How the GPUs of a node are asked, and compared.

nvml and links call NVML (readings are their answers), in a Probe; nvml_survey asks all GPUs of a node and tells which
do not answer (nvml_errors says so). cards joins and compares what the ranks of a node saw;
unused_gpus makes findings on GPUs that the job does not use milder.
"""
