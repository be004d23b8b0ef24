"""How long the steps of a training take, and where the time goes.

`timed_task` is what is trained; `training` runs its steps, `step_clock` times their phases and `trace` reads what
torch's profiler saw.
"""
