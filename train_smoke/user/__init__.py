"""A user's model: from what their function returns to a task that is trained like the small transformer.

`completion` adds a batch and a loss where only a model was given (`lightning`, `transformers`), `validation` says
whether these can be trained, `traits` measures what bears on a comparison, and `task` cuts the batch. `tensor_parallel`
and `pipeline` are the strategies whose variants depend on the model; `schedule` picks the variants that there is time
for.
"""
