"""`preflight checkpoint`: whether a saved checkpoint is whole, finite, and fits a model.

contents has the records; find says what a path holds; torch_file, safetensors_file, dcp and folder read what each
format says about its tensors, pickles through sdk/pickles; pickled_names knows what these may name; finite reads the
tensors themselves; reader does all that in a process that may hang, and compares tied tensors; model makes the user's
model; names and fit compare it with the checkpoint; judge makes the findings, codes has their codes; console and
command show them.
"""
