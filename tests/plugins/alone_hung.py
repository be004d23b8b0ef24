from alone import PLAN, judging, measuring

__all__ = ["PLAN", "judge", "measure"]
measure, judge = measuring("hung"), judging("")
