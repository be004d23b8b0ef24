"""Codes that no row has, because no test can make their fault: what it would take, and where the facts of their
tests come from."""

NOT_HERE: dict[str, str] = {
    # code id: reason, and the recorded machine or log, with its source
    "train.expert.not_exchanged": "An expert's gradient comes from the tokens of all ranks: no rank can step with its "
    "own alone. The same judge finds it under DDP, FSDP and torch.compile.",
    "train.expert.wrong_clip": "No variant clips, and what a rank has clipped by itself cannot be told where no rank "
    "has a gradient of its own. The same judge finds it under DDP, FSDP and torch.compile.",
}
