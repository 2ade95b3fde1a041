"""`Trainer` with ampmon's callback. Takes the folder; `resume` starts again from its checkpoint.

With `wandb` it reports to an offline W&B run, and prints the run's rows. With `again` a training that raises comes
first, as in a search for hyperparameters. With `nested` another training takes place within it, and with `twice` it is
followed by a second one of the same Trainer. With `find` the Trainer retries a smaller batch after an update, and with
`double` it has two callbacks.
"""

from __future__ import annotations

import contextlib
import os
import sys

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from ampmon.integrations.transformers import AmpmonCallback


class Line(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x, labels):
        self.calls += 1
        if "find" in sys.argv and self.calls == 2:
            raise RuntimeError("CUDA out of memory.")
        out = self.head(x)
        return {"loss": (out.float() - labels).square().mean(), "logits": out}


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 6
        return control


folder, resume, tracked = sys.argv[1], "resume" in sys.argv, "wandb" in sys.argv
os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": folder}
if tracked:
    import wandb
    from wandb_rows import print_rows
torch.manual_seed(0)
data = [{"x": torch.randn(4), "labels": torch.ones(1)} for _ in range(24)]
arguments = TrainingArguments(
    output_dir=folder,
    run_name="named by run_name",
    max_steps=12,
    per_device_train_batch_size=4,
    logging_steps=2,
    save_steps=6,
    fp16=True,
    use_cpu=True,
    report_to="wandb" if tracked else "none",
    disable_tqdm=True,
    auto_find_batch_size="find" in sys.argv,
)
callbacks = [AmpmonCallback(tracker=wandb if tracked else None), *([] if resume else [Stop()])]
if "double" in sys.argv:
    callbacks.append(AmpmonCallback())
if "again" in sys.argv:

    class Fail(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise RuntimeError("out of memory")

    failing = [AmpmonCallback(), Fail()]
    with contextlib.suppress(RuntimeError):
        Trainer(model=Line(), args=arguments, train_dataset=data, callbacks=failing).train()
if "nested" in sys.argv:

    class Nest(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                own = [AmpmonCallback(), Stop()]
                Trainer(model=Line(), args=arguments, train_dataset=data, callbacks=own).train()

    callbacks.append(Nest())
trainer = Trainer(model=Line(), args=arguments, train_dataset=data, callbacks=callbacks)
if not resume:
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024)  # as a fix says
trainer.train(resume_from_checkpoint=resume or None)
if "twice" in sys.argv:
    trainer.train()
if tracked:
    wandb.finish()
    print_rows(folder)
