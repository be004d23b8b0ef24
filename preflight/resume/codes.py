"""The codes of `preflight resume`: what each means, and what to do."""

from preflight.check import Code

FAMILY = "preflight.resume"
PURPOSE = "What `preflight resume` finds in a training that was stopped and resumed."

NOT_RESUMED = Code(
    "The resumed training began anew: no checkpoint was loaded.",
    fix="Does the command find the checkpoint by itself, or does it need a word for it (--resume-with '--resume "
    "{dir}/last.pt')? Was one saved before the stop (--at, the script's save interval, its SIGTERM handler)?",
)
RESUME_FAILED = Code(
    "The resumed training ended before its first step.",
    fix="See its output below, or with --report DIR in DIR/resumed; preflight debug -- COMMAND explains it.",
)
WEIGHTS_DIFFER = Code(
    "Parameters of the resumed training are not those of the stopped one.",
    fix="Load all of model.state_dict() before the wrapper (DDP, FSDP, compile) and the optimizer are built, with "
    "strict=True, in the type of the training; see what it prints of missing and unexpected keys.",
)
MOMENTS_LOST = Code(
    "The optimizer was resumed without its state, and begins with none.",
    fix="Save optimizer.state_dict() beside the model and load it after the optimizer is built over the same "
    "parameters in the same order (FSDP, DTensor: torch.distributed.checkpoint.state_dict).",
)
MOMENTS_DIFFER = Code(
    "The optimizer's state is not that of the stopped training.",
    fix="Load it after the optimizer is built, over the same parameters in the same order, and look at what may "
    "change it on the way: a cast, a second optimizer, a state of another step.",
)
OPTIONS_DIFFER = Code(
    "An option of the optimizer's groups is another one after the resume.",
    fix="Build the same groups before load_state_dict, which restores weight_decay, betas and the like from the "
    "checkpoint: what the script then sets again wins.",
)
LEARNING_RATE = Code(
    "The learning rate after the resume is not that of a training that never stopped.",
    fix="Save scheduler.state_dict() and load it after the optimizer's; a LambdaLR's own objects and a step count "
    "from which a script computes the rate must be saved, too.",
)
DATA_REPEATS = Code(
    "Batches that were trained before the stop are trained again, in the place of new ones.",
    fix="Save the position in the data (the epoch for sampler.set_epoch, batches done; StatefulDataLoader of "
    "torchdata has both) and skip to it; preflight run --data checks the loader alone.",
)
DATA_SKIPS = Code(
    "Batches are left out after the resume.",
    fix="Save the position of what was trained, not of what the loader has prefetched.",
)
DATA_DIFFERS = Code(
    "The resumed training has other batches than one that never stopped.",
    fix="Give the sampler a generator with a fixed seed and the epoch, and skip to the position; a shuffle that no "
    "seed decides cannot go on.",
)
BUFFERS_DIFFER = Code(
    "Buffers or frozen parameters of the model are not those of the stopped training.",
    fix="Save model.state_dict(), not only parameters(); a buffer with persistent=False is not in it.",
)
LOSS_SCALE = Code(
    "The gradient scaler began anew: the loss is scaled by another power of two.",
    fix="Save scaler.state_dict() and load it; without it some steps are skipped until the scale is found again.",
)
LOSS_DIFFERS = Code(
    "Loss or gradient depart after the resume, though weights, optimizer, learning rate and data are equal.",
    fix="What else is part of the training and not in the checkpoint: a loss's own state, a counter, model.train(), "
    "gradients of a half accumulated step, a mixed-precision mode?",
)
RANDOM_STATE = Code(
    "Random numbers (dropout) are others after the resume: harmless, but not the same training.",
    fix="To make it exact: save torch.get_rng_state() and torch.cuda.get_rng_state() of each rank, and set them last.",
)
NOT_REPEATABLE = Code(
    "The training does not repeat itself without a stop, so nothing can be said of a resume.",
    fix="Seed it (torch.manual_seed before the model is built, the sampler's generator, NumPy) for this test.",
)
TRAINING_FAILED = Code(
    "The training ended by itself before it could be stopped.",
    fix="Give it more steps than --at and --steps need; where it fails, preflight debug -- COMMAND explains it.",
)
NO_STEPS = Code(
    "No optimizer step was seen.",
    fix="Watched is torch.optim.Optimizer.step in each Python process of the command; Python must not ignore "
    "PYTHONPATH (-I, -E, -S). Is the first step later than --deadline?",
)
DEADLINE = Code(
    "The time of --deadline was over.",
    fix="Give it more time, an earlier --at, a shorter save interval, or a smaller model.",
)
NOT_SEEN = Code(
    "A part of the training was not seen, and not compared.",
    fix="Batches are seen as what torch modules are called with, losses where backward is called on them.",
)
SEVERITIES = {
    **dict.fromkeys((LOSS_SCALE, RANDOM_STATE), "warn"),
    **dict.fromkeys((NOT_REPEATABLE, TRAINING_FAILED, NO_STEPS, DEADLINE), "error"),
    NOT_SEEN: "info",
}
"""Severities; all others are fail."""


def by_slug() -> dict[str, Code]:
    return {name.lower(): value for name, value in globals().items() if isinstance(value, Code)}
