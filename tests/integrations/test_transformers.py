"""The Trainer's adapter: what runs is what is accounted, whatever the Trainer is asked to do beside."""

import functools
import json
import math

import numpy as np
import pytest
import torch
import transformers
from discreet.methods import dp_sgd
from discreet.transformers import STATE, PrivateTrainer, Units, losses_for
from tiny_transformers import FAMILIES, WORDS, bert, gpt2, llama, lora, losses_of, masked_bert, t5, tokenizer
from transformers import Trainer, TrainerCallback, TrainingArguments

import discreet
from discreet import BudgetExhausted, ConfigError, PrivacyError

ROWS = 24


def sequences(rows=ROWS):
    """Rows of unequal lengths, as a tokenizer gives them."""
    made = [torch.randint(3, WORDS, (3 + i % 4,)).tolist() for i in range(rows)]
    return [{"input_ids": ids, "attention_mask": [1] * len(ids), "labels": ids} for ids in made]


def pad(rows):
    """A collator that pads to the longest row of the batch."""
    longest = max(len(row["input_ids"]) for row in rows)
    filled = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    return {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows])
        for name, value in filled.items()
        if name in rows[0]
    }


@functools.cache
def plan_of(steps=4, rows=ROWS, batch_size=6, **more):
    return dp_sgd(examples=rows, batch_size=batch_size, steps=steps, delta=1e-3, **(more or {"noise": 2.0}))


def arguments(folder, **more):
    options = {"per_device_train_batch_size": 4, "save_strategy": "no", "logging_strategy": "no", "learning_rate": 0.01}
    return TrainingArguments(str(folder), report_to=[], disable_tqdm=True, use_cpu=True, **(options | more))


def trainer_of(folder, model=None, plan=None, *, data=None, kind=PrivateTrainer, collate=pad, given=None, **more):
    model = gpt2() if model is None else model
    data, plan = sequences() if data is None else data, plan_of() if plan is None else plan
    return kind(
        model,
        arguments(folder, **more),
        plan,
        train_dataset=data,
        data_collator=collate,
        **({} if given is None else given),
    )


# --- what is trained, and what is told -------------------------------------------------------------------------------


def test_a_run_spends_its_plan_and_says_so(tmp_path):
    trainer = trainer_of(tmp_path, plan=plan_of(steps=6, epsilon=6), logging_strategy="steps", logging_steps=1)
    before = [p.detach().clone() for p in trainer.model.parameters()]
    output = trainer.train()
    assert any(not torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert (output.global_step, trainer.private.released, trainer.private.remaining) == (6, 6, 0)
    told = [log["epsilon"] for log in trainer.state.log_history]
    assert told == sorted(told)
    assert told[0] < told[-1] == pytest.approx(trainer.private.guarantee().epsilon, rel=1e-2)
    assert trainer.private.guarantee().epsilon <= 6
    assert trainer.state.epoch == pytest.approx(6 * 6 / ROWS)
    assert discreet.verify(tmp_path / "ledger.jsonl").runs[0].guarantee.epsilon == trainer.private.guarantee().epsilon


def test_nothing_is_told_about_the_private_rows(tmp_path):
    """The training loss and counts of tokens are functions of the drawn rows, without noise."""
    trainer = trainer_of(tmp_path, save_strategy="steps", save_steps=4, logging_strategy="steps", logging_steps=1)
    output = trainer.train()
    assert math.isnan(output.training_loss)
    state = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())
    for log in [*trainer.state.log_history, *state["log_history"], output.metrics]:
        assert not {"loss", "train_loss"} & log.keys()
    assert state["total_flos"] == trainer.state.total_flos == 0
    assert state["num_input_tokens_seen"] == 0


def test_the_gradient_of_an_update_is_the_mean_of_bounded_gradients(tmp_path):
    """Every row takes part, and there is next to no noise: then it can be compared with autograd, row by row."""
    seen = {}

    class Look(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.update({name: p.grad.clone() for name, p in model.named_parameters()})

    model, data = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), sequences()
    parameters, total = dict(model.named_parameters()), {}
    for row in data:
        inputs = pad([row])
        labels = inputs.pop("labels")
        found = torch.autograd.grad(losses_of(model, inputs, labels)[0], list(parameters.values()))
        factor = min(1.0, 1 / math.sqrt(sum(float(g.square().sum()) for g in found)))
        for name, g in zip(parameters, found, strict=True):
            total[name] = total.get(name, 0) + factor * g / len(data)
    plan = plan_of(1, batch_size=ROWS, noise=1e-4)
    trainer_of(tmp_path, model, plan, data=data, given={"callbacks": [Look()]}).train()
    for name, expected in total.items():
        torch.testing.assert_close(seen[name], expected, atol=5e-5, rtol=1e-3)


@pytest.mark.parametrize("chunk", [1, 5, 100])
def test_chunks_do_not_change_the_number_of_updates(tmp_path, chunk):
    trainer = trainer_of(tmp_path, per_device_train_batch_size=chunk)
    assert trainer.train().global_step == trainer.private.released == 4


def test_empty_draws_are_updates_too(tmp_path):
    trainer = trainer_of(tmp_path, plan=plan_of(8, batch_size=1, noise=1.0))
    trainer.train()
    assert trainer.private.released == trainer.state.global_step == 8


def test_the_schedule_goes_by_updates(tmp_path):
    trainer = trainer_of(tmp_path, lr_scheduler_type="linear", logging_strategy="steps", logging_steps=1)
    trainer.train()
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    assert rates == pytest.approx([0.01 * (1 - i / 4) for i in range(4)])


def test_dropout_is_drawn_in_secret(tmp_path):
    """The Trainer seeds everything with a number anybody can guess; who knows it knows whose dropout was whose."""
    numbers = []

    class Draw(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            numbers.append(torch.rand(1).item())

    for turn in range(2):
        trainer_of(tmp_path / str(turn), plan=plan_of(2), given={"callbacks": [Draw()]}, seed=7).train()
        numbers.append(torch.rand(1).item())
    assert len(set(numbers)) == 2 * (2 + 1)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains(tmp_path, family):
    model = lora(FAMILIES[family](), family, lora_dropout=0.1)
    data, collate = sequences(), pad
    if family == "ViT":
        data = [{"pixel_values": torch.randn(1, 8, 8), "labels": i % 3} for i in range(ROWS)]
    if family == "BERT":
        data = [row | {"labels": i % 3} for i, row in enumerate(data)]
    if family in ("ViT", "BERT"):

        def collate(rows):
            labels = torch.tensor([row["labels"] for row in rows])
            if family == "ViT":
                return {"pixel_values": torch.stack([row["pixel_values"] for row in rows]), "labels": labels}
            return pad([{k: v for k, v in row.items() if k != "labels"} for row in rows]) | {"labels": labels}

    trainer = trainer_of(tmp_path, model, plan_of(2), data=data, collate=collate, eval_strategy="steps", eval_steps=1,
                         given={"eval_dataset": data[:5]})  # fmt: skip
    frozen = {n: p.detach().clone() for n, p in model.named_parameters() if not p.requires_grad}
    assert trainer.train().global_step == 2
    assert all(torch.equal(frozen[n], p) for n, p in model.named_parameters() if n in frozen)
    assert [log["eval_loss"] > 0 for log in trainer.state.log_history if "eval_loss" in log] == [True, True]
    assert all(name in dict(model.named_parameters()) and "lora_" in name for name in trainer.private.kernels)


def texts(given, rows=ROWS):
    return [dict(given(" ".join(f"w{(3 * i + j) % 20}" for j in range(3 + i % 4)))) for i in range(rows)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_a_tokenizer_and_the_collator_of_the_library(tmp_path, masked, workers):
    given = tokenizer()
    collate = transformers.DataCollatorForLanguageModeling(given, mlm=masked, mlm_probability=0.4)
    model = masked_bert() if masked else gpt2()
    options = {"dataloader_num_workers": workers, "given": {"processing_class": given}}
    trainer = trainer_of(tmp_path, model, plan_of(2), data=texts(given), collate=collate, **options)
    assert trainer.train().global_step == trainer.private.released == 2


def test_sequences_to_sequences(tmp_path):
    given, model = tokenizer(), t5()
    data = [row | {"labels": row["input_ids"][::-1]} for row in texts(given)]
    collate = transformers.DataCollatorForSeq2Seq(given, model=model)
    assert trainer_of(tmp_path, model, plan_of(2), data=data, collate=collate).train().global_step == 2


@pytest.mark.parametrize("options", [{"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_short_floats_and_checkpointing(tmp_path, options):
    assert trainer_of(tmp_path, plan=plan_of(2), **options).train().global_step == 2


def test_evaluation_and_prediction_work_while_attached(tmp_path):
    data = sequences(9)
    trainer = trainer_of(tmp_path, plan=plan_of(3), eval_strategy="steps", eval_steps=1, given={"eval_dataset": data})
    before = trainer.evaluate()
    trainer.train()
    assert sum("eval_loss" in log for log in trainer.state.log_history) == 3  # the log begins with the training
    assert trainer.evaluate()["eval_loss"] != before["eval_loss"]
    assert trainer.predict(data).predictions.shape[0] == 9


# --- is privacy really on? -------------------------------------------------------------------------------------------


class Plain(PrivateTrainer):
    """Somebody's own step, with a plain backward pass."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        rows = pad(self.train_dataset[:4])
        loss = model(**rows).loss
        loss.backward()
        return loss.detach()


class Nothing(PrivateTrainer):
    """Somebody's own step that leaves the gradients to somebody else."""

    def training_step(self, model, inputs, num_items_in_batch=None):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        return torch.zeros(())


def assert_refuses_to_train(trainer, match):
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(PrivacyError, match=match):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))
    assert trainer.private.released == 0


def test_an_ordinary_trainer_cannot_train_an_attached_model(tmp_path):
    model = gpt2()
    private = discreet.attach(model, plan_of())
    trainer = Trainer(model, arguments(tmp_path), train_dataset=sequences(), data_collator=pad)
    with pytest.raises(PrivacyError, match=r"loss.backward\(\) was called on an attached model"):
        trainer.train()
    private.detach()


def test_a_plain_backward_pass_is_refused(tmp_path):
    assert_refuses_to_train(trainer_of(tmp_path, kind=Plain), "was called on an attached model")


@pytest.mark.parametrize("kind", [PrivateTrainer, Plain, Nothing])
def test_a_model_that_is_no_longer_attached_is_refused(tmp_path, kind):
    trainer = trainer_of(tmp_path, kind=kind)
    trainer.private.detach()
    assert_refuses_to_train(trainer, "was detached")


@pytest.mark.parametrize("kind", [Plain, Nothing])
def test_an_update_without_a_release_is_refused(tmp_path, kind):
    class Detach(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            trainer.private.detach()

    trainer = trainer_of(tmp_path, kind=kind, given={"callbacks": [Detach()]})
    with pytest.raises(PrivacyError, match=r"detached|its gradients did not come from the plan"):
        trainer.train()
    assert trainer.private.released == 0


def test_gradients_that_are_not_the_plans_are_refused(tmp_path):
    assert_refuses_to_train(trainer_of(tmp_path, kind=Nothing), "its gradients did not come from the plan")


def test_another_model_is_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.model = trainer.model_wrapped = gpt2()
    assert_refuses_to_train(trainer, "attached to other parameters")


def test_what_is_unfrozen_afterwards_is_refused(tmp_path):
    model = lora(gpt2(), "GPT-2")
    trainer = trainer_of(tmp_path, model)
    next(p for p in model.parameters() if not p.requires_grad).requires_grad_(True)
    assert_refuses_to_train(trainer, "attached to other parameters")


def test_batches_that_the_plan_did_not_draw_are_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    with pytest.raises(PrivacyError, match="not drawn by the plan"):
        trainer.training_step(trainer.model, pad(sequences(2)))


# --- resuming --------------------------------------------------------------------------------------------------------


class Crash(TrainerCallback):
    def __init__(self, at):
        self.at = at

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.at:
            raise OSError("the machine went away")


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "LoRA"])
@pytest.mark.parametrize("options", [{}, {"save_only_model": True}], ids=["all", "model only"])
def test_a_run_continues_from_its_checkpoint_and_repeats_nothing(tmp_path, adapters, options):
    def make():
        torch.manual_seed(3)
        return lora(gpt2(), "GPT-2") if adapters else gpt2()

    plan, data = plan_of(10), sequences()
    options = {"save_strategy": "steps", "save_steps": 3, "logging_strategy": "steps", "logging_steps": 1, **options}
    first = trainer_of(tmp_path, make(), plan, data=data, given={"callbacks": [Crash(at=5)]}, **options)
    with pytest.raises(OSError, match="went away"):
        first.train()
    first.private.detach()

    class Look(TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            saved = PrivateTrainer._checkpoint(again, True)
            assert saved.name == "checkpoint-3"
            twin = trainer_of(tmp_path / "twin", make(), plan, data=data)
            twin._load_from_checkpoint(str(saved))
            for mine, theirs in zip(model.parameters(), twin.model.parameters(), strict=True):
                assert torch.equal(mine, theirs)

    again = trainer_of(tmp_path, make(), plan, data=data, given={"callbacks": [Look()]}, **options)
    assert again.private.released == 5
    output = again.train(resume_from_checkpoint=True)
    assert output.global_step == again.state.global_step == again.private.released == 10
    assert again.lr_scheduler.last_epoch == 10
    logs = [log for log in again.state.log_history if "learning_rate" in log]
    assert [log["step"] for log in logs][-5:] == [6, 7, 8, 9, 10]  # 4 and 5 were lost, and are not made again
    assert logs[-1]["learning_rate"] == pytest.approx(0.01 * 0.1)
    assert again.state.epoch == pytest.approx(10 * 6 / ROWS)
    assert again.private.guarantee().epsilon == plan.guarantee().epsilon
    assert discreet.verify(tmp_path / "ledger.jsonl").runs[0].guarantee.epsilon == again.private.guarantee().epsilon


def test_a_finished_run_gives_its_model_and_spends_nothing(tmp_path):
    plan, data = plan_of(3), sequences()
    options = {"save_strategy": "steps", "save_steps": 3}
    first = trainer_of(tmp_path, plan=plan, data=data, **options)
    first.train()
    with pytest.raises(BudgetExhausted, match="all 3 steps"):
        first.train()
    first.private.detach()
    again = trainer_of(tmp_path, plan=plan, data=data, **options)
    assert again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3")).global_step == 3
    for mine, theirs in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_without_a_checkpoint_what_was_spent_stays_spent(tmp_path):
    plan, data = plan_of(6), sequences()
    first = trainer_of(tmp_path, plan=plan, data=data, given={"callbacks": [Crash(at=4)]})
    with pytest.raises(OSError, match="went away"):
        first.train()
    first.private.detach()
    again = trainer_of(tmp_path, plan=plan, data=data, logging_strategy="steps", logging_steps=1)
    again.train()
    assert again.private.released == again.state.global_step == again.lr_scheduler.last_epoch == 6
    assert len([log for log in again.state.log_history if "learning_rate" in log]) == 2


def test_a_run_that_was_stopped_goes_on_in_the_same_process(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 2

    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    given = {"callbacks": [Stop()], "optimizers": (optimizer, schedule)}
    trainer = trainer_of(tmp_path, model, plan_of(5), given=given)
    assert trainer.train().global_step == trainer.private.released == schedule.last_epoch == 2
    assert trainer.train().global_step == trainer.private.released == schedule.last_epoch == 5


def test_a_schedule_by_a_metric(tmp_path):
    options = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
    options |= {"metric_for_best_model": "eval_loss"}
    assert (
        trainer_of(tmp_path, plan=plan_of(2), given={"eval_dataset": sequences(4)}, **options).train().global_step == 2
    )


def test_a_half_written_or_foreign_checkpoint_is_refused(tmp_path):
    trainer = trainer_of(tmp_path)
    (tmp_path / "checkpoint-2").mkdir()
    for asked in (True, str(tmp_path / "checkpoint-2")):
        with pytest.raises(ConfigError, match="holds no checkpoint of a private run"):
            trainer.train(resume_from_checkpoint=asked)
    (tmp_path / "checkpoint-2" / STATE).write_bytes(b"nothing")
    with pytest.raises(ConfigError, match="cannot be read as a checkpoint"):
        trainer.train(resume_from_checkpoint=True)


# --- the unit of privacy ---------------------------------------------------------------------------------------------


def users(rows=ROWS):
    """Some with one sequence, some with five."""
    return [f"user {i // 5 if i < 10 else i}" for i in range(rows)]


def test_units_group_sequences_by_owner():
    data = sequences()
    units = Units(data, users(), most=3)
    assert len(units) == 2 + ROWS - 10
    assert [len(unit) for unit in units] == [3, 3, *[1] * (ROWS - 10)]
    assert units[1] == data[5:8]
    with pytest.raises(ConfigError, match="one for each"):
        Units(data, users(5), most=3)


@pytest.mark.parametrize("owners", [torch.tensor([7, 7, 8, 8]), np.array([7, 7, 8, 8]), (7, 7, 8, 8)])
def test_owners_that_are_equal_are_one(owners):
    assert len(Units(sequences()[:4], owners, most=3)) == 2


@pytest.mark.parametrize("owner", [torch.tensor(7), math.nan])
def test_owners_that_are_never_equal_are_refused(owner):
    with pytest.raises(ConfigError, match="no two are equal"):
        Units(sequences()[:2], [7, owner], most=3)


def test_a_user_with_many_sequences_is_one_unit(tmp_path):
    """The losses of a unit are those of its sequences alone, however many it has; blanks contribute nothing."""
    model, data = gpt2(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), sequences()
    units = Units(data, users(), most=3)
    sampling = discreet.Poisson(examples=len(units), batch_size=4, unit="user")
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(2.0))
    plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=3, delta=1e-3)
    trainer = trainer_of(tmp_path, model, plan, data=units, per_device_train_batch_size=7)
    chunk = trainer.get_train_dataloader().collate([units[0], units[5]])
    found = trainer.unit_losses(model, chunk)
    alone = [losses_of(model, {k: v for k, v in pad([row]).items() if k != "labels"}, pad([row])["labels"])
             for row in (*units[0], *units[5])]  # fmt: skip
    torch.testing.assert_close(found, torch.stack([torch.cat(alone[:3]).sum() / 3, alone[3][0] / 3]))
    trainer.train()
    assert trainer.private.guarantee().unit == "user"
    assert "each user" in str(trainer.private.guarantee())


@pytest.mark.parametrize(
    ("unit", "grouped", "match"),
    [("example", True, "say what an owner is"), ("sequence", True, "say what"), ("user", False, "group it")],
)
def test_a_unit_that_the_data_does_not_have_is_refused(tmp_path, unit, grouped, match):
    data = Units(sequences(), range(ROWS), most=2) if grouped else sequences()
    sampling = discreet.Poisson(examples=ROWS, batch_size=4, unit=unit)
    mechanism = discreet.Mechanism(discreet.Clip(1.0), discreet.Gaussian(2.0))
    plan = discreet.Plan(sampling=sampling, mechanism=mechanism, steps=3, delta=1e-3)
    with pytest.raises(ConfigError, match=match):
        trainer_of(tmp_path, plan=plan, data=data)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2},
        {"auto_find_batch_size": True},
        {"bf16_full_eval": True},
        {"neftune_noise_alpha": 5.0},
        {"label_smoothing_factor": 0.1},
        {"train_sampling_strategy": "group_by_length"},
        {"include_num_input_tokens_seen": "all"},
        {"skip_memory_metrics": False},
        {"max_steps": 7},
        {"optim": "galore_adamw_layerwise", "optim_target_modules": ["attn"]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_arguments_that_cannot_be_kept_are_refused_by_name(tmp_path, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        trainer_of(tmp_path, **options)


@pytest.mark.parametrize("name", ["fp16", "torch_compile", "use_liger_kernel", "deepspeed", "fsdp"])
def test_arguments_that_this_machine_cannot_even_make_are_refused_by_name(tmp_path, name):
    args = arguments(tmp_path)
    setattr(args, name, True)
    with pytest.raises(ConfigError, match=name):
        PrivateTrainer(gpt2(), args, plan_of(), train_dataset=sequences())


@pytest.mark.parametrize("name", ["compute_loss_func", "model_init"])
def test_hooks_that_would_not_be_used_are_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=name):
        trainer_of(tmp_path, given={name: lambda *_: None})


def test_a_loss_of_ones_own_is_given_as_losses(tmp_path):
    class Own(PrivateTrainer):
        def compute_loss(self, *arguments, **options):
            raise AssertionError

    with pytest.raises(ConfigError, match="give losses="):
        trainer_of(tmp_path, kind=Own)
    seen = []

    def own(outputs, labels):
        seen.append(labels)
        return (outputs.logits.square().mean(2) * (labels != -100)).sum(1)

    trainer_of(tmp_path, plan=plan_of(1), given={"losses": own}).train()
    assert seen


def test_a_mean_over_the_batch_is_refused(tmp_path):
    own = {"losses": lambda outputs, labels: outputs.logits.mean()[None]}
    assert_refuses_to_train(trainer_of(tmp_path, plan=plan_of(4, batch_size=20), given=own), "one loss for each")


def test_rows_that_are_packed_together_are_refused(tmp_path):
    collate = transformers.DataCollatorWithFlattening()
    trainer = trainer_of(tmp_path, llama(), plan_of(4, batch_size=20), collate=collate)
    assert_refuses_to_train(trainer, "one loss for each")


def test_a_model_whose_loss_is_not_known_is_refused():
    config = transformers.BertConfig(vocab_size=WORDS, hidden_size=4, num_hidden_layers=1, num_attention_heads=1)
    with pytest.raises(ConfigError, match=r"BertForPreTraining .* give losses="):
        losses_for(transformers.BertForPreTraining(config))


def test_data_of_another_length_than_the_plans_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="the data has 5 examples"):
        trainer_of(tmp_path, data=sequences(5))


def test_a_search_over_hyperparameters_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"discreet\.Tuning"):
        trainer_of(tmp_path).train(trial={"learning_rate": 1.0})


# --- padding ---------------------------------------------------------------------------------------------------------


def without_mask(rows):
    return {name: value for name, value in pad(rows).items() if name != "attention_mask"}


def test_padding_that_changes_a_row_is_refused(tmp_path):
    """Without masks a long row lengthens the others, who then look at padding: one example moves all contributions."""
    assert_refuses_to_train(
        trainer_of(tmp_path, masked_bert(initializer_range=0.2), collate=without_mask), "padding changes"
    )


def test_padding_after_causal_rows_changes_nothing(tmp_path):
    assert trainer_of(tmp_path, gpt2(), collate=without_mask).train().global_step == 4


@pytest.mark.parametrize("make", [gpt2, llama])
def test_padding_on_the_left_is_refused(tmp_path, make):
    """Positions are counted from the padding, and the first word is predicted where there is any before it."""
    given = tokenizer(padding_side="left")
    collate = transformers.DataCollatorForLanguageModeling(given, mlm=False)
    model = make(initializer_range=0.2)
    assert_refuses_to_train(trainer_of(tmp_path, model, data=texts(given), collate=collate), "padding changes")


def test_padding_of_a_loss_is_seen_too(tmp_path):
    def counted(rows):
        batch = pad(rows)
        return batch | {"labels": batch["labels"].clamp(min=0)}

    assert_refuses_to_train(trainer_of(tmp_path, gpt2(), collate=counted), "padding changes")


def test_a_collator_that_draws_at_random_cannot_be_checked_and_runs(tmp_path):
    def masked(rows):
        batch = pad(rows)
        hidden = torch.rand(batch["labels"].shape) < 0.5
        return batch | {"labels": batch["labels"].masked_fill(~hidden, -100)}

    assert trainer_of(tmp_path, masked_bert(), plan_of(2), collate=masked).train().global_step == 2


def test_rows_of_one_length_need_no_mask(tmp_path):
    data = [{"input_ids": torch.randint(3, WORDS, (5,)).tolist(), "labels": i % 3} for i in range(ROWS)]

    def collate(rows):
        return {name: torch.tensor([row[name] for row in rows]) for name in ("input_ids", "labels")}

    assert trainer_of(tmp_path, bert(), plan_of(2), data=data, collate=collate).train().global_step == 2
