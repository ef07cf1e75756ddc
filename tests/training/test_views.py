"""Rollouts of which the policy saw the last response only: each turn is trained as it was sampled."""

from __future__ import annotations

import lab
import pytest
import torch
from tiny_trainer import TASKS, Numbered, SearchGRPOTrainer, batch_of, trainer

from faithful_search.coldstart.sft import IGNORED, build_dataset
from faithful_search.errors import ConfigError
from faithful_search.rewards import AnswerLikelihoodGap, Shuffled
from faithful_search.tools import LocalSearch, Toolbox
from faithful_search.training.ppo import PPOConfig, SearchPPOTrainer

LOOK = "<think>hm, {0}</think>\n<search>{0}</search>"
TURNS = [LOOK.format("Rome"), LOOK.format("Oslo"), "<think>so</think>\n<answer>Rome</answer>"]
PASSAGES = [{"title": "Rome", "text": "Rome is in Italy."}, {"title": "Oslo", "text": "Oslo is in Norway."}]


def search_r1(path, kept: int, **settings) -> SearchGRPOTrainer:
    """A trainer whose policy writes `TURNS`, and sees so many responses."""
    box = Toolbox([LocalSearch.from_corpus(PASSAGES, top_k=1, name="search")])
    limits = {"turn_tokens": 200, "total_tokens": 800, "kept_responses": kept}
    made = trainer(path, Numbered(), dialect="search_r1", toolbox=box, limits=limits, **settings)
    made.engine.generator = lab.Scripted(TURNS, marker="hm, ")
    return made


def test_each_turn_is_read_as_it_was_sampled(tmp_path):
    made = search_r1(tmp_path, kept=1)
    inputs = batch_of(made)
    contexts = [context for context in made.engine.generator.seen if context]
    last = lab.tokenizer().decode(contexts[-1])
    assert "Italy" not in last and "Norway" in last and "hm, Rome" in last
    made._tokens = []  # another batch may have been sampled since
    logps, numbers = made._logps(made.model, inputs), inputs["turn_numbers"]
    for turn, text in enumerate(TURNS, start=1):
        row = 5  # they are all alike
        context = torch.tensor([contexts[8 * (turn - 1) + row]])
        own = inputs["completion_ids"][row][numbers[row] == turn]
        assert lab.tokenizer().decode(own[: len(own)]).startswith(text)
        logits = made.model(torch.cat([context, own[None]], dim=1)).logits[0, context.shape[1] - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, own[:, None])[:, 0]
        torch.testing.assert_close(logps[row][numbers[row] == turn], expected, atol=1e-5, rtol=1e-5)
    assert (logps[numbers == 0] == 0).all()


@pytest.mark.parametrize("kind", [SearchGRPOTrainer, SearchPPOTrainer])
def test_a_policy_that_saw_everything_is_read_alike_either_way(tmp_path, kind):
    found = []
    for kept in (0, 9):
        more = {"config": PPOConfig} if kind is SearchPPOTrainer else {}
        made = search_r1(tmp_path / str(kept), kept, kind=kind, **more)
        inputs = batch_of(made)
        made._tokens = []
        own = inputs["turn_numbers"] > 0
        loss = made.compute_loss(made.model, inputs | {"advantages": inputs["advantages"] + 1.0})
        loss.backward()
        gradients = torch.cat([part.grad.flatten() for part in made.model.parameters() if part.grad is not None])
        found.append((made._logps(made.model, inputs)[own], gradients, inputs.get("old_values", own)[own]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_the_supervised_start_shows_each_turn_what_the_policy_will_see(tmp_path):
    made = search_r1(tmp_path, kept=1)
    (episode,) = made.engine.run(TASKS[:1])
    contexts = made.engine.generator.seen
    rows = build_dataset([episode], made.engine.chat, made.toolbox.schemas, kept_responses=1)
    assert len(rows) == len(TURNS) == len(contexts)
    for row, context, turn in zip(rows, contexts, TURNS, strict=True):
        learnt = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != IGNORED]
        assert row["input_ids"] == context + learnt and lab.tokenizer().decode(learnt).startswith(turn)
        assert len(row["loss_weights"]) == row["length"] == len(row["input_ids"])


def test_where_responses_cannot_be_left_out_it_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="message of a chat"):
        trainer(tmp_path, limits={"kept_responses": 1})
    for reward in (AnswerLikelihoodGap(), Shuffled(AnswerLikelihoodGap())):
        with pytest.raises(ConfigError, match="likelihood"):
            trainer(tmp_path, reward, dialect="search_r1", limits={"kept_responses": 1})
