"""What the checks of training share.

`parity` compares training under a strategy with training alone, and judges each strategy; `model_parallel` adds what
strategies mean that split a model. `curves` and `plotted` draw the trainings. `setting` tells a strategy of the ranks.
The rest is for the user's model and for what ranks agree on.
"""
