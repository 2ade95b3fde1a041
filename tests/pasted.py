"""What people paste: tracebacks, log lines and fragments, each with its entry's anchor; and texts that have none."""

from __future__ import annotations


PASTED = {
    "traceback of a first step": (
        """Traceback (most recent call last):
  File "/home/li/finetune/train.py", line 212, in <module>
    main()
  File "/home/li/finetune/train.py", line 187, in main
    scaler.step(optimizer)
  File "/opt/conda/lib/python3.10/site-packages/torch/cuda/amp/grad_scaler.py", line 370, in step
    assert len(optimizer_state["found_inf_per_device"]) > 0, "No inf checks were recorded for this optimizer."
AssertionError: No inf checks were recorded for this optimizer.
""",
        "no-inf-checks-were-recorded-for-this-optimizer",
    ),
    "beginning of a message": (
        "No inf checks were recorded prior",
        "no-inf-checks-were-recorded-prior-to-update",
    ),
    "other method": (
        "AssertionError: Attempted step but _scale is None.  This may indicate your script did not use "
        "scaler.scale(loss or outputs) earlier in the iteration.",
        "_scale-is-none",
    ),
    "three words": ("_scale is None", "_scale-is-none"),
    "upper case": (
        "RUNTIMEERROR: UNSCALE_() HAS ALREADY BEEN CALLED ON THIS OPTIMIZER SINCE THE LAST UPDATE()",
        "unscale_-has-already-been-called",
    ),
    "rich traceback in colour": (
        "\x1b[31m╭──── \x1b[0m\x1b[1;31mTraceback \x1b[0m\x1b[1;2;31m(most recent call last)\x1b[0m"
        "\x1b[31m ────╮\x1b[0m\n"
        "\x1b[31m│\x1b[0m /src/diffusers/examples/train_text_to_image_lora.py:818 in main \x1b[31m│\x1b[0m\n"
        "\x1b[31m╰──────────────────────────────────────────────────╯\x1b[0m\n"
        "\x1b[1;91mValueError: \x1b[0mAttempting to unscale FP16 gradients.\n",
        "attempting-to-unscale-fp16-gradients",
    ),
    "warning with its place": (
        "/usr/lib/python3/dist-packages/torch/optim/lr_scheduler.py:136: UserWarning: Detected call of "
        "`lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 and later, you should call them in the "
        "opposite order\n  warnings.warn(",
        "lr_schedulerstep-before-optimizerstep",
    ),
    "quotes of another kind": (
        "train.py:31: FutureWarning: ‘torch.cuda.amp.autocast(args...)’ is deprecated. Please use "
        "‘torch.amp.autocast('cuda', args...)’ instead.\n  with torch.cuda.amp.autocast():",
        "torchcudaamp-is-deprecated",
    ),
    "other function and output": (
        "RuntimeError: Function 'NativeLayerNormBackward0' returned nan values in its 2th output.",
        "function-returned-nan-values-in-its-0th-output",
    ),
    "broken by a terminal": (
        "RuntimeError: The total norm of order inf for gradi\n"
        "ents from `parameters` is non-finite, so it cannot \n"
        "be clipped. To disable this error and scale the gra\n"
        "dients by the non-finite norm anyway, set `error_if_\n"
        "nonfinite=False`",
        "the-total-norm-of-gradients-is-non-finite",
    ),
    "an error below warnings": (
        "train.py:9: FutureWarning: `torch.cuda.amp.GradScaler(args...)` is deprecated. Please use "
        "`torch.amp.GradScaler('cuda', args...)` instead.\n  scaler = torch.cuda.amp.GradScaler()\n"
        "train.py:31: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`. In PyTorch 1.1.0 "
        "and later, you should call them in the opposite order: `optimizer.step()` before `lr_scheduler.step()`.\n"
        'Traceback (most recent call last):\n  File "train.py", line 44, in <module>\n'
        "RuntimeError: value cannot be converted to type at::Half without overflow",
        "value-cannot-be-converted-to-type-half-without-overflow",
    ),
    "half and float the other way": (
        "RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half",
        "mat1-and-mat2-must-have-the-same-dtype",
    ),
    "types as a GPU says them": (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and bias type (torch.cuda.HalfTensor) should be the same",
        "input-type-and-bias-type-should-be-the-same",
    ),
    "one line among many": (
        "{'loss': 2.81, 'grad_norm': 14.2, 'learning_rate': 2e-05, 'epoch': 0.01}\n"
        "{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 1.98e-05, 'epoch': 0.02}\n"
        "  2%|▏         | 20/1000 [00:31<25:12,  1.54s/it]",
        "grad_norm-is-nan",
    ),
    "two words of a log": ("grad_norm: nan", "grad_norm-is-nan"),
    "deepspeed's log line": (
        "[2026-03-02 14:01:07,532] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping "
        "step. Attempted loss scale: 16384, reducing to 8192",
        "overflow-skipping-step-attempted-loss-scale",
    ),
    "an exception at the end of a log": (
        '[rank3]:   File "/opt/venv/lib/python3.11/site-packages/deepspeed/runtime/fp16/loss_scaler.py", line 188\n'
        "[rank3]: Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
        "E0302 14:02:11.402 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3",
        "current-loss-scale-already-at-minimum",
    ),
    "megatron's progress": (
        " [2026-02-11 09:44:55] iteration        1/  500000 | consumed samples:           32 | elapsed time per "
        "iteration (ms): 3902.7 | learning rate: 6.000000E-05 | global batch size:    32 | loss scale: 65536.0 | "
        "number of skipped iterations:   1 | number of nan iterations:   0 |",
        "number-of-skipped-iterations",
    ),
    "apex's line with one blank": (
        "Gradient overflow. Skipping step, loss scaler 1 reducing loss scale to 5e-324",
        "gradient-overflow-skipping-step-loss-scaler-0-reducing-loss-scale",
    ),
    "fairseq's end": (
        "FloatingPointError: Minimum loss scale reached (0.01). Your loss is probably exploding. Try lowering the "
        "learning rate, using gradient clipping or increasing the batch size.",
        "minimum-loss-scale-reached",
    ),
    "ours, with the code": (
        "train.py:58: AmpmonWarning: ampmon: Gradients are clipped while they are still scaled: their norm is 0.9998 "
        "each time. The threshold is compared with gradients that are 65536 times too large, so every update is "
        "clipped to it, and the step that is left of it is that much too small. Write:\nscaler.unscale_(optimizer)\n"
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)\nscaler.step(optimizer)",
        "gradients-are-clipped-while-they-are-still-scaled",
    ),
    "ours, about another server": (
        "AmpmonWarning: ampmon: https://amp.lab.example:8443 cannot be reached (HTTP 401: the token was not accepted). "
        "Training goes on; records wait in /data/u/ampmon and are sent when it is back.",
        "the-server-cannot-be-reached",
    ),
    "ours, another port": (
        "ampmon serve: port 80 of 0.0.0.0 cannot be used (Permission denied): stop what uses it, or name another",
        "port-cannot-be-used",
    ),
    "lightning with another optimizer": (
        "RuntimeError: The current optimizer, FusedAdam, does not allow for gradient clipping because it performs "
        "unscaling of gradients internally. HINT: Are you using a 'fused' optimizer?",
        "the-current-optimizer-does-not-allow-for-gradient-clipping",
    ),
}

UNRELATED = {
    "out of memory": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 "
        "GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.07 GiB memory in use."
    ),
    "a key": "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\nKeyError: 'loss'",
    "a module": "ModuleNotFoundError: No module named 'flash_attn'",
    "a shape": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (32x512 and 768x768)",
    "a device": (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    ),
    "a rank": "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, unhandled system error",
    "a file": "FileNotFoundError: [Errno 2] No such file or directory: 'checkpoints/last.pt'",
    "the graph": "RuntimeError: Trying to backward through the graph a second time (or directly access saved tensors)",
    "a state": (
        "RuntimeError: Error(s) in loading state_dict for ResNet: size mismatch for fc.weight: copying a param with "
        "shape torch.Size([1000, 2048]) from checkpoint, the shape in current model is torch.Size([10, 2048])."
    ),
    "an assertion": "RuntimeError: CUDA error: device-side assert triggered",
    "a name": "baseline",
    "a longer name": "GPT reads Python",
    "a name of our field": "fp16 run with loss scale 1024",
    "an id": "01a20e27-4622-79e1-9238-0ab542079db2",
    "nothing": "  \n",
}
