"""The smoke trainer's place: it comes with the first check of the family `train`."""
