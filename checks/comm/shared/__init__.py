"""How collectives are run, checked and judged.

sweep times one collective over sizes (timing), on the payloads that payload_sum, payload_copy and payload_pattern make,
so that wrong_elements can tell whose contribution is wrong; judge_collective judges it, against what expected takes
from the hardware. transfers, meetings, localize, heatmap and messages find and name slow links between ranks.
"""
