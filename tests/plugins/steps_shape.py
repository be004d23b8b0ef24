from steps import PLAN, judge, measuring

__all__ = ["PLAN", "judge", "measure"]
measure = measuring("shape")
