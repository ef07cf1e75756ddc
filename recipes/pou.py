# /// script
# requires-python = ">=3.11"
# dependencies = ["faithful-search[train]"]
# ///
"""Train a search agent with Proof-of-Use rewards: question → rollouts → GRPO → evaluation before and after, with plots.

```
accelerate launch recipes/pou.py                # the embedded default: tiny policy, bundled world
accelerate launch recipes/pou.py --config recipes/configs/pou_tiny_b2.yaml --output_dir outputs/b2
accelerate launch recipes/pou.py --config recipes/configs/pou_smollm2-135m.yaml \\
    --model_name_or_path DIR --questions train.jsonl.gz --eval_questions test.jsonl.gz --corpus corpus.jsonl.gz
accelerate launch recipes/pou.py --config recipes/configs/pou_qwen2.5-7b.yaml \\
    --judge_url http://127.0.0.1:8000/v1 --judge_model NAME          # an LLM judges and writes the lures
python recipes/pou.py --config recipes/configs/pou_qwen2.5-7b.yaml --dry_run true    # its settings, two steps on a CPU
accelerate launch recipes/pou.py --use_peft true --lora_target_modules all-linear --save_merged true    # LoRA
```

Every flag of `PoUArguments`, TRL's `GRPOConfig` and `ModelConfig` may stand in the YAML file or on the command line,
which wins.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trl import GRPOConfig, ModelConfig

from faithful_search.analysis.results import leave
from faithful_search.errors import ConfigError
from faithful_search.hub import takes_over
from faithful_search.judges import Judge, Writer
from faithful_search.judges.condensing import Condensing
from faithful_search.judges.facts import FactsJudge
from faithful_search.measure.suite import default_rewards
from faithful_search.rewards import (
    AnswerLikelihoodGap,
    AnswerSupport,
    Correctness,
    Mix,
    Reward,
    Shuffled,
    SourceGated,
    answer_only_mix,
    corpus_snippets,
    pou_mix,
)
from faithful_search.rewards.perturbation import Foils, Passage
from faithful_search.tasks import WORLD
from faithful_search.training.config import parse_recipe, run_recipe
from faithful_search.training.runs import RunArguments, build_trainer, check_data, train
from faithful_search.training.starting import started

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pou_tiny.yaml"


@dataclass
class PoUArguments(RunArguments):
    """What is asked, with which tools, how it is rewarded, and who judges."""

    reward: str = field(default="pou", metadata={"help": "'pou', or 'answer_only' (format and answer, the baseline)"})
    budget: int = field(
        default=1, metadata={"help": "B_max: steps perturbed per rollout; -1: all of them, 0 leaves R_pt out"}
    )
    draws: str = field(
        default="rollout",
        metadata={"help": "what R_pt's probes are drawn by: 'rollout', or 'question': common to a question's rollouts"},
    )
    centre: bool = field(
        default=False, metadata={"help": "subtract from R_pt's moves the batch's mean of their case (yes or no)"}
    )
    foils: str = field(
        default="none",
        metadata={
            "help": "'world': R_pt replaces evidence by the bundled world's own passages, alike but for the fact; "
            "'auto': where that world is searched"
        },
    )
    hard: float = field(default=1.0, metadata={"help": "share of probes made with --foils; the others are as without"})
    shuffle_sensitivity: bool = field(
        default=False, metadata={"help": "a control: R_pt goes to another rollout of its question"}
    )
    verdict_weight: float = field(
        default=0.0,
        metadata={
            "help": "λ: R_pt's probes, if there are any, in the loss itself, with gradient; 0: not there (paper)"
        },
    )
    snippets: int = field(
        default=0,
        metadata={
            "help": "corpus passages that replace evidence where it is exchanged; 0: the batch's other questions'"
        },
    )
    correctness: str = field(default="em", metadata={"help": "R_anc: 'em', 'f1', or 'judge' (after an EM short-cut)"})
    source_gated: bool = field(
        default=False, metadata={"help": "R_anc counts only where the cited evidence supports the answer"}
    )
    source_gated_by: str = field(
        default="words",
        metadata={"help": "who says so: 'words' (the answer occurs), or 'support' (whoever judges R_ans)"},
    )
    likelihood_gap: bool = field(
        default=False,
        metadata={"help": "another part: how much more probable its evidence makes the answer (CTRL-RAG)"},
    )
    process_on_right: bool = field(
        default=False, metadata={"help": "all but R_anc counts on right answers only, and is 0 elsewhere"}
    )
    lures: str = field(default="template", metadata={"help": "who writes R_pt's lures: 'template' or 'judge'"})
    condense: bool = field(
        default=False, metadata={"help": "let the judge's model shorten pages and facts to what a query asks for"}
    )
    support: bool = field(default=True, metadata={"help": "false leaves R_ans out (α = 0)"})
    support_by: str = field(
        default="auto",
        metadata={"help": "R_ans by 'words' or the bundled world's 'facts'; 'auto': the judge, else facts where known"},
    )
    alpha_fixed: float | None = field(default=None, metadata={"help": "a fixed α; 0.5 is the paper's static mix"})
    alpha_beta: float = field(default=0.9, metadata={"help": "EMA of the batch's correctness"})
    alpha_start: float | None = field(
        default=None, metadata={"help": "the EMA before the first batch; by default that batch's correctness"}
    )
    alpha_tau: float = field(default=0.5, metadata={"help": "correctness at which α is one half"})
    alpha_kappa: float = field(default=10.0, metadata={"help": "sharpness of α's transition"})


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    script, args, model_args = parse(given)
    repository = takes_over(args)
    with started(script, args), script.toolbox(build_condenser(script)) as toolbox:
        probed = script.reward == "pou" and script.budget != 0
        weight = script.verdict_weight if probed else 0.0
        trainer = build_trainer(script, args, model_args, toolbox, build_reward(script), weight)
        facts = script.eval_questions in WORLD
        record = train(trainer, script, model_args, default_rewards(script.dialect, script.load_judge(), facts))
        return leave(record, "recipes/pou.py", given, repository)


def parse(argv: Sequence[str] | None = None) -> tuple[PoUArguments, GRPOConfig, ModelConfig]:
    """The three dataclasses; without `--config` the embedded default's file is read.

    Raises:
        ConfigError: for settings that contradict each other.
    """
    script, args, model_args = parse_recipe((PoUArguments, GRPOConfig, ModelConfig), argv, DEFAULT_CONFIG)
    if script.reward not in ("pou", "answer_only"):
        raise ConfigError(f"unknown reward {script.reward!r}; there are: pou, answer_only")
    if script.correctness not in ("em", "f1", "judge"):
        raise ConfigError(f"unknown correctness {script.correctness!r}; there are: em, f1, judge")
    if script.source_gated_by not in ("words", "support"):
        raise ConfigError(f"unknown source_gated_by {script.source_gated_by!r}; there are: words, support")
    if script.source_gated_by != "words" and not script.source_gated:
        raise ConfigError(f"--source_gated_by {script.source_gated_by}: there is no gate; give --source_gated true")
    if script.process_on_right and script.reward == "answer_only" and not script.likelihood_gap:
        raise ConfigError("--process_on_right true: --reward answer_only has nothing but the answer's reward")
    if script.condense and script.judge == "lexical":
        raise ConfigError("--condense true needs a judge with a model that writes: --judge endpoint, say")
    if script.condense and (script.counterfactual or script.stale):
        raise ConfigError(
            "--counterfactual and --stale change passages by their texts, which --condense true rewrites: take one"
        )
    if script.lures not in ("template", "judge"):
        raise ConfigError(f"unknown lures {script.lures!r}; there are: template, judge")
    if script.judge == "lexical" and "judge" in (script.correctness, script.lures):
        raise ConfigError("--correctness judge and --lures judge need a judge with a model: --judge endpoint, say")
    if script.budget < -1:
        raise ConfigError(f"budget must be -1 (all steps), 0 (no R_pt) or more, not {script.budget}")
    unused = {"lures judge": script.lures == "judge", "foils world": script.foils == "world"}
    unused["shuffle_sensitivity true"] = script.shuffle_sensitivity
    if not script.budget and any(unused.values()):
        asked = " and ".join(f"--{flag}" for flag, given in unused.items() if given)
        raise ConfigError(
            f"{asked}: there is no R_pt to use it, since --budget is 0; give --budget 1, or -1 for all steps"
        )
    if script.foils not in ("none", "world", "auto"):
        raise ConfigError(f"unknown foils {script.foils!r}; there are: none, world, auto")
    if script.foils == "world" and script.corpus not in WORLD:
        raise ConfigError(f"--foils world knows the bundled world's facts only, not those of {script.corpus!r}")
    if script.support_by not in ("auto", "words", "facts"):
        raise ConfigError(f"unknown support_by {script.support_by!r}; there are: auto, words, facts")
    if script.support_by == "facts" and script.questions not in WORLD:
        raise ConfigError(f"--support_by facts knows the bundled world's questions only, not {script.questions!r}")
    check_data(script)
    return script, args, model_args


def build_reward(script: PoUArguments) -> Mix:
    """Proof-of-Use's objective, one of its ablations, or the baseline without it; with the likelihood gap if asked for.

    Raises:
        ConfigError: when the judge that is to write lures can only judge.
    """
    judge = script.load_judge()
    right = Correctness(script.correctness, judge=judge if script.correctness == "judge" else None)  # type: ignore[arg-type]
    by = _support(script, judge) if script.source_gated_by == "support" else AnswerSupport()
    correctness = SourceGated(right, by) if script.source_gated else right
    mix = answer_only_mix(correctness) if script.reward == "answer_only" else _proof_of_use(script, judge, correctness)
    if not script.likelihood_gap:
        return mix
    gap = {AnswerLikelihoodGap.name: AnswerLikelihoodGap(snippets=_snippets(script))}
    only_right = (*mix.only_right, *gap) if script.process_on_right else ()
    return replace(mix, parts={**mix.parts, **gap}, only_right=only_right)


def _proof_of_use(script: PoUArguments, judge: Judge | None, correctness: Reward) -> Mix:
    mix = pou_mix(
        None if script.budget < 0 else max(script.budget, 1),
        support=_support(script, judge),
        correctness=correctness,
        writer=_writer(judge, "--lures judge") if script.lures == "judge" else None,
        snippets=_snippets(script),
        sensitivity=script.budget != 0,
        draws=script.draws,  # type: ignore[arg-type]
        centre=script.centre,
        foils=_foils() if script.foils != "none" and script.corpus in WORLD else None,
        hard=script.hard,
        alpha=script.alpha_fixed if script.support else 0.0,
        beta=script.alpha_beta,
        tau=script.alpha_tau,
        kappa=script.alpha_kappa,
        alpha_start=script.alpha_start,
        process_on_right=script.process_on_right,
    )
    if script.shuffle_sensitivity:
        shuffled = Shuffled(mix.parts["evidence_sensitivity"])  # type: ignore[arg-type]
        mix = replace(mix, parts={**mix.parts, "evidence_sensitivity": shuffled})
    return mix


def build_condenser(script: PoUArguments) -> Condensing | None:
    """What shortens pages and facts for the policy.

    Raises:
        ConfigError: when the judge that is to do it can only judge.
    """
    return Condensing(_writer(script.load_judge(), "--condense true")) if script.condense else None


def _support(script: PoUArguments, judge: Judge | None) -> AnswerSupport:
    """R_ans; a reader of the question comes before the comparison of words, which asks whether the answer occurs."""
    if judge is not None and script.support_by == "auto":
        return AnswerSupport(judge)
    if script.support_by != "words" and script.questions in WORLD:
        return AnswerSupport(FactsJudge())
    return AnswerSupport()


def _foils() -> Foils:
    from faithful_search.world import WorldFoils  # reads the whole world

    return WorldFoils.bundled()


def _snippets(script: PoUArguments) -> tuple[Passage, ...]:
    if not script.snippets:
        return ()
    rows = ({"title": passage.title, "text": passage.text} for passage in script.corpus_passages())
    return corpus_snippets(rows, script.snippets)


def _writer(judge: Judge | None, asked: str) -> Writer:
    if not isinstance(judge, Writer):
        raise ConfigError(f"{asked} needs a judge that writes: --judge endpoint or generator")
    return judge


if __name__ == "__main__":
    run_recipe(main)
