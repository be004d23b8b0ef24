"""How training under a strategy is compared with training alone.

parity judges each strategy: divergence finds the first value that differs, diagnosis and gradient_exchange say what it
means, curves draws the losses.
"""
