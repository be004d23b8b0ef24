"""The codes that are the engine's own."""

RUN = "preflight.run"
"""Under this id stands what is no check's: ranks that never came, the store, interruptions."""
RUN_SLUGS = {
    "deadline": "Checks were left out, since the run's deadline left no time for them.",
    "stood_still": "A supervisor stood still (stopped, or starved of CPU), so that others gave up on it.",
    "lost": "A rank never came to the run, or nothing more was heard of it.",
    "store_lost": "The store over which the ranks talk could not be served or reached, or does not answer.",
    "rendezvous": "MASTER_ADDR does not resolve, or another process has MASTER_PORT.",
    "interrupted": "A signal or the launcher's death ended the run before its verdict.",
    "launch": "A process was started with variables that do not let it join.",
    "backend": "The GPUs of rank 0's node cannot be used by its torch.",
    "torch": "torch cannot be imported on a node.",
    "baseline": "The run of --baseline had another backend or another number of ranks: nothing was compared with it.",
    "fault": "A fault of preflight itself.",
}
"""All codes of `preflight.run`."""
OWN_SLUGS = {
    "timed_out": "It did not end within its deadline, and was killed.",
    "crashed": "Its process ended while it measured.",
    "lost": "Nothing more was heard of the rank.",
    "raised": "It raised an exception.",
    "bad_facts": "What `measure` returned is not JSON, holds NaN or is too large.",
    "out_of_step": "A rank left out a collective that the others entered, or entered another one.",
}
"""The engine's codes, under every check."""
