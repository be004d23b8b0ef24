"""What every room of train_smoke uses: what is trained, how, and what is kept of it for comparison.

`model` is what is trained and `batch` how its data is cut; `task` puts both together. `train` trains a task, and
`wrapped` is what a strategy makes of its model. `reference` is the training alone, `compare` says where two trainings
diverge.
"""
