"""The smoke trainer: a small transformer, trained for a few steps alone and under a strategy of torch.

`trainer` trains and compares, `strategies` wraps a model for it. `checkpoint` saves and loads in the middle of a
training, `speed` times steps, and `user` makes a task of a user's model. A room imports from those before it in this
list; checkpoint, speed and user do not import each other. Importing a room, its `names` or `trainer.compare` imports no
torch.
"""
