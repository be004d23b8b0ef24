"""How a training under a strategy is held against a training alone.

parity is the judge of each strategy: divergence finds the first value that differs, diagnosis and gradient_exchange say
what that means, curves draws the losses.
"""
