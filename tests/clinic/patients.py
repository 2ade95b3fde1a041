"""The patients that are the same every time: who is sick of what, and who is healthy."""

from __future__ import annotations

from clinic import healthy, sick_code, sick_numbers, sick_runs
from clinic.patient import Patient, Plan
from clinic.training import Training


NUMBERS = (
    Patient(
        name="learning rate too large",
        about="SGD at a rate of 1000: weights and activations leave fp16 within a few updates",
        attempts=(Training,),
        plan=Plan(optimizer="sgd", lr=1000.0, activations=1, updates=100),
        rules=("forward_overflow",),
    ),
    Patient(
        name="overflow in backward only",
        about="an autograd function of one's own, whose gradient is now and then too large at any scale",
        attempts=(sick_numbers.BackwardGain,),
        plan=Plan(strength=1e30, activations=1, updates=160),
        rules=("backward_overflow",),
        layer="mine",
    ),
    Patient(
        name="overflow in forward",
        about="a fourth power of inputs that are now and then not normalised",
        attempts=(sick_numbers.ForwardPower,),
        plan=Plan(strength=100.0, activations=1, updates=160),
        rules=("forward_overflow",),
        layer="power",
    ),
    Patient(
        name="culprit layer",
        about="a feature of the last layer that is not normalised: its weights' gradient alone overflows",
        attempts=(sick_numbers.WideFeature,),
        plan=Plan(strength=1e4, updates=400),
        rules=("culprit_layer",),
        layer="head.weight",
    ),
    Patient(
        name="NaN in one batch",
        about="one missing value in the data",
        attempts=(sick_numbers.NaNData,),
        plan=Plan(strength=1e6),
        rules=("nan_not_overflow",),
    ),
    Patient(
        name="NaN in every tenth batch",
        about="missing values in the data",
        attempts=(sick_numbers.NaNData,),
        plan=Plan(strength=10),
        rules=("nan_not_overflow",),
    ),
    Patient(
        name="NaN in every batch",
        about="a feature becomes NaN and stays it: the scale falls without end",
        attempts=(sick_numbers.NaNForever,),
        plan=Plan(updates=150),
        rules=("nan_not_overflow",),
    ),
    Patient(
        name="scale frozen too low",
        about="a scale of 1 that never grows, under a small loss",
        attempts=(Training,),
        plan=Plan(init_scale=1.0, growth_interval=10**9, loss=1e-2),
        rules=("slow_growth",),
    ),
    Patient(
        name="growth too slow",
        about="a scale of 1 that would take tens of thousands of updates to fit",
        attempts=(Training,),
        plan=Plan(init_scale=1.0, growth_interval=2000, loss=1e-2),
        rules=("slow_growth",),
    ),
    Patient(
        name="static scale too low",
        about="set to 8 after every update, under a small loss",
        attempts=(sick_numbers.ManualScale,),
        plan=Plan(init_scale=8.0, loss=1e-2, strength=8.0),
        rules=("subnormal", "flushed"),
    ),
    Patient(
        name="static scale far too low",
        about="set to 8 after every update, under a loss so small that much of the gradient is zero in fp16",
        attempts=(sick_numbers.ManualScale,),
        plan=Plan(init_scale=8.0, loss=1e-4, strength=8.0),
        rules=("flushed", "subnormal"),
    ),
    Patient(
        name="static scale too high",
        about="set to 2^24 after every update: each one overflows",
        attempts=(sick_numbers.ManualScale,),
        plan=Plan(init_scale=2.0**24, strength=2.0**24),
        rules=("scale_floor",),
    ),
    Patient(
        name="scale with a floor",
        about="never below 2^16, where a heavy loss overflows more often than not",
        attempts=(sick_numbers.Floored,),
        plan=Plan(strength=2.0**16, loss=12.0),
        rules=("scale_floor",),
    ),
    Patient(
        name="growth too eager",
        about="a larger scale is tried after every third update",
        attempts=(Training,),
        plan=Plan(growth_interval=3),
        rules=("sawtooth",),
    ),
    Patient(
        name="growth eager from 1 on",
        about="doubled each 10 updates from 1 on, and at the ceiling taken back again and again",
        attempts=(Training,),
        plan=Plan(init_scale=1.0, growth_interval=10, updates=500),
        rules=("sawtooth",),
    ),
    Patient(
        name="scale held",
        about="put back whenever it has grown, though nothing overflows",
        attempts=(sick_numbers.Held,),
        plan=Plan(init_scale=2.0**13, growth_interval=20),
        rules=("stuck_scale",),
    ),
    Patient(
        name="scale below 1",
        about="a loss so heavy that only a scale below 1 fits",
        attempts=(Training,),
        plan=Plan(loss=1e8, updates=300),
        rules=("low_scale",),
    ),
    Patient(
        name="scale at its cap",
        about="a loss of 0: nothing ever overflows, and the scale grows to 2^127",
        attempts=(Training,),
        plan=Plan(loss=0.0, growth_interval=1, updates=150),
        rules=("scale_cap",),
    ),
    Patient(
        name="scale about to die",
        about="overflow in every update, at any scale: 120 skips in a row",
        attempts=(sick_numbers.EndlessGain,),
        plan=Plan(strength=float("inf"), updates=120),
        rules=("collapse_forecast",),
    ),
    Patient(
        name="dead scale",
        about="overflow in every update, at any scale: 200 skips in a row",
        attempts=(sick_numbers.EndlessGain,),
        plan=Plan(strength=float("inf"), updates=200),
        rules=("dead_scale",),
    ),
    Patient(
        name="heavy batches",
        about="about one batch in 25 weighs a thousandfold",
        attempts=(sick_numbers.Spikes,),
        plan=Plan(strength=25, growth_interval=10, updates=400),
        rules=("skip_rate",),
    ),
    Patient(
        name="a burst of heavy batches",
        about="ten batches one after another weigh a millionfold",
        attempts=(sick_numbers.Burst,),
        plan=Plan(strength=10),
        rules=("consecutive_skips",),
    ),
    Patient(
        name="one small layer",
        about="an adapter's share is so small that its gradients are subnormal, and no other's",
        attempts=(sick_numbers.SmallLayer,),
        plan=Plan(strength=1e-8),
        rules=("subnormal_parameter",),
        layer="middle.adapter",
    ),
    Patient(
        name="search not over",
        about="a first scale of 2^60: all updates so far went into finding one that fits",
        attempts=(Training,),
        plan=Plan(init_scale=2.0**60, updates=30),
        rules=("calibration",),
    ),
    Patient(
        name="poisoned optimizer",
        about="a NaN in Adam's momentum after 60 updates",
        attempts=(sick_numbers.PoisonedState,),
        plan=Plan(strength=60, updates=150),
        rules=("poisoned_state",),
        layer="2.weight",
    ),
)

CODE = (
    Patient(
        name="gradients never cleared",
        about="zero_grad() is forgotten",
        attempts=(sick_code.NeverCleared,),
        rules=("uncleared_gradients",),
    ),
    Patient(
        name="fused SGD",
        about="with momentum, and an overflow in the first update",
        attempts=(Training,),
        plan=Plan(optimizer="fused sgd", init_scale=2.0**24, lr=0.05),
        rules=("fused_sgd",),
    ),
    Patient(
        name="clipped while scaled",
        about="clip_grad_norm_ without unscale_ before it",
        attempts=(sick_code.ClippedScaled,),
        rules=("clip_before_unscale",),
    ),
    Patient(
        name="unscaled within a batch",
        about="unscale_ after the first of two backward passes",
        attempts=(sick_code.UnscaledWithin,),
        rules=("unscale_in_accumulation",),
    ),
    Patient(
        name="rescaled within a batch",
        about="the scale is set between the two backward passes of each batch",
        attempts=(sick_code.ScaledWithin,),
        plan=Plan(strength=4.0, init_scale=2.0**10),
        rules=("scale_within_batch",),
    ),
    Patient(
        name="fp16 parameters",
        about="model.half()",
        attempts=(sick_code.HalfParameters,),
        rules=("fp16_parameters",),
    ),
    Patient(
        name="scaler under bf16",
        about="autocast in bf16, with a scaler that is enabled",
        attempts=(Training,),
        plan=Plan(dtype="bfloat16"),
        rules=("scaler_under_bf16",),
    ),
    Patient(
        name="fp16 without a scaler",
        about="autocast in fp16, with a scaler that is not enabled",
        attempts=(Training,),
        plan=Plan(enabled=False),
        rules=("fp16_without_scaler",),
    ),
    Patient(
        name="shared parameter",
        about="two optimizers of one scaler have the last layer in common",
        attempts=(sick_code.SharedParameter,),
        rules=("shared_parameter",),
    ),
    Patient(
        name="backward under autocast",
        about="the backward pass runs within autocast",
        attempts=(sick_code.BackwardUnderAutocast,),
        rules=("backward_under_autocast",),
    ),
    Patient(
        name="update() forgotten",
        about="torch ends it at the second step",
        attempts=(sick_code.NeverUpdated,),
        rules=("no_update",),
    ),
    Patient(
        name="step() forgotten",
        about="optimizer.step() in its place, with gradients that are still scaled",
        attempts=(sick_code.StepsItself,),
        plan=Plan(updates=1100, batch=4),
        rules=("no_step",),
    ),
    Patient(
        name="scheduler ahead",
        about="stepped on skipped updates too, of which a high first scale makes twelve",
        attempts=(sick_code.ScheduledOnSkips,),
        plan=Plan(init_scale=2.0**30),
        rules=("scheduler_on_skip", "scheduler_ahead"),
    ),
    Patient(
        name="scheduler frozen",
        about="made, and never stepped",
        attempts=(sick_code.ScheduledNever,),
        plan=Plan(updates=1100, batch=4),
        rules=("scheduler_frozen",),
    ),
)

RUNS = (
    Patient(
        name="hung",
        about="waits for ever after its last update",
        attempts=(sick_runs.Hanging,),
        plan=Plan(updates=150),
        rules=("silent",),
        ends="hung",
    ),
    Patient(
        name="scaler not restored",
        about="resumed without the scaler's state: the scale begins anew, and eight updates are lost",
        attempts=(sick_runs.SavingNoScaler, sick_runs.Resumed),
        plan=Plan(updates=150, init_scale=2.0**24),
        rules=("forgotten_state",),
    ),
    Patient(
        name="killed",
        about="by SIGKILL",
        attempts=(sick_runs.Killed,),
        plan=Plan(updates=150),
        rules=("crashed",),
        ends="killed",
    ),
    Patient(
        name="ended by an exception",
        about="of its own",
        attempts=(sick_runs.Raising,),
        plan=Plan(updates=150),
        rules=("crashed",),
    ),
    Patient(
        name="records lost",
        about="a tenth of what waited for delivery is damaged",
        attempts=(Training,),
        rules=("telemetry_gaps",),
        spoil=sick_runs.lose_some,
    ),
    Patient(
        name="gradients not averaged",
        about="two ranks that train apart, of which one overflows alone",
        attempts=(sick_runs.NotAveraged,),
        plan=Plan(updates=150, strength=1e5),
        rules=("ranks_disagree",),
        ranks=2,
    ),
    Patient(
        name="sharded and fused",
        about="FSDP's scaler with a fused optimizer, under which nobody asks the other ranks for overflows",
        attempts=(sick_runs.ShardedFused,),
        plan=Plan(updates=60, optimizer="fused adam", init_scale=2.0**12),
        rules=("sharded_fused",),
        ranks=2,
    ),
)

SICK = (*NUMBERS, *CODE, *RUNS)


def _healthy(name: str, about: str, kind: type[Training] = Training, **plan: object) -> Patient:
    return Patient(name=name, about=about, attempts=(kind,), plan=Plan(**plan))  # type: ignore[arg-type]


HEALTHY = (
    _healthy("typical", "a perceptron with Adam, everything by default", every="auto"),
    _healthy("tanh", "SGD with momentum", model="mlp tanh", optimizer="momentum", lr=0.05),
    _healthy("layer norm", "AdamW", model="mlp layernorm", optimizer="adamw"),
    _healthy("batch norm", "SGD", model="mlp batchnorm", optimizer="sgd", lr=0.1),
    _healthy("convolutions", "Adam, with batch norm", model="cnn", updates=200),
    _healthy("GRU", "fused Adam", model="gru", optimizer="fused adam", updates=150),
    _healthy("LSTM", "clipped by norm", model="lstm", clip=1.0, updates=150),
    _healthy("transformer", "AdamW, clipped", model="transformer", optimizer="adamw", clip=1.0),
    _healthy("embedding", "Adagrad", model="embedding", optimizer="adagrad", lr=0.05),
    _healthy("sparse embedding", "SGD", model="sparse embedding", optimizer="sgd", lr=0.3),
    _healthy("tied weights", "Adam", model="tied"),
    _healthy("accumulation", "four backward passes an update", accumulate=4, batch=8, updates=150),
    _healthy("accumulation, clipped", "and a GELU", model="mlp gelu", accumulate=2, clip=0.5),
    _healthy("clipped by value", "unscaled before", healthy.ClippedByValue),
    _healthy("gradient penalty", "torch's recipe", healthy.Penalised),
    _healthy("two optimizers", "an adversarial pair", healthy.Adversarial),
    _healthy("evaluated", "all digits now and then", healthy.Evaluating),
    _healthy("high first scale", "2^24: a dozen skips to begin with", init_scale=2.0**24),
    _healthy(
        "climbing",
        "from 1, doubled each 12 updates",
        init_scale=1.0,
        growth_interval=12,
        updates=180,
    ),
    _healthy("activations sampled", "every tenth update", activations=10, init_scale=2.0**20),
    _healthy("bf16", "the scaler is disabled", dtype="bfloat16", enabled=False),
    _healthy("scheduler gated", "not stepped on skips", sick_code.Scheduled, init_scale=2.0**24),
    Patient(
        name="resumed",
        about="with the scaler's state",
        attempts=(sick_runs.Saving, sick_runs.Resumed),
        plan=Plan(updates=150, init_scale=2.0**24),
    ),
    Patient(
        name="two ranks",
        about="that average their gradients",
        attempts=(sick_runs.Parallel,),
        plan=Plan(updates=100, init_scale=2.0**20),
        ranks=2,
    ),
)

PATIENTS = (*SICK, *HEALTHY)
