"""Who is to blame when a check did not end.

collective_recorder reads torch's flight recorder in a worker, and asks NCCL's RAS; desync compares what the ranks
recorded; blame turns outcomes into the engine's findings; ras_evidence adds what RAS says to these.
"""
