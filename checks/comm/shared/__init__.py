"""How collectives are run, checked and judged.

sweep times a collective over sizes (timing), on payloads made by payload_sum, payload_copy and payload_pattern, so that
wrong_elements can tell whose contribution is wrong; judge_collective judges it against what expected derives from the
hardware. transfers, meetings, localize and messages find and name slow links between ranks.
"""
