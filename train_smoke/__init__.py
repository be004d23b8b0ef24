"""The smoke trainer: a small transformer, trained for a few steps alone and under a strategy of torch.

`model.py` is what is trained, `train.py` trains it, `compare.py` says where two trainings diverge. Importing this
package or `compare` imports no torch.
"""
