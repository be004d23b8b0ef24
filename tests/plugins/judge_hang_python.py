from alone import PLAN, judging, measure

__all__ = ["PLAN", "judge", "measure"]
judge = judging("hang_python")
