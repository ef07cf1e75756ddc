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

Every flag of `PoUArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file or on the command
line, which wins.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trl import ModelConfig

from faithful_search.analysis.results import leave
from faithful_search.errors import ConfigError
from faithful_search.flags import check_choices, flag, refuse
from faithful_search.hub.pushing import takes_over
from faithful_search.judges import Judge, Writer
from faithful_search.judges.condensing import Condensing
from faithful_search.judges.facts import FactsJudge
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
from faithful_search.rewards.perturbation import Passage
from faithful_search.tasks import WORLD
from faithful_search.training.arguments import SearchGRPOConfig
from faithful_search.training.runs import trained
from faithful_search.training.starting import RunArguments, parse_run, run_recipe

DEFAULT_CONFIG = Path(__file__).parent / "configs" / "pou_tiny.yaml"
CHOICES = {
    "reward": ("pou", "answer_only"),
    "correctness": ("em", "f1", "judge"),
    "source_gated_by": ("words", "support"),
    "lures": ("template", "judge"),
    "foils": ("none", "world", "auto"),
    "support_by": ("auto", "words", "facts"),
}


@dataclass
class PoUArguments(RunArguments):
    """What is asked, with which tools, how it is rewarded, and who judges."""

    reward: str = flag("pou", "'pou', or 'answer_only' (format and answer, the baseline)")
    budget: int = flag(1, "B_max: steps perturbed per rollout; -1: all of them, 0 leaves R_pt out")
    draws: str = flag(
        "rollout",
        "what R_pt's probes are drawn by: 'rollout', or 'question': common to a question's rollouts",
    )
    centre: bool = flag(
        False, "subtract from R_pt's moves the batch's mean of their case (yes or no)"
    )
    foils: str = flag(
        "none",
        "'world': R_pt replaces evidence by the bundled world's own passages, alike but for the fact; "
        "'auto': where that world is searched",
    )
    hard: float = flag(1.0, "share of probes made with --foils; the others are as without")
    shuffle_sensitivity: bool = flag(
        False, "a control: R_pt goes to another rollout of its question"
    )
    snippets: int = flag(
        0,
        "corpus passages that replace evidence where it is exchanged; 0: the batch's other questions'",
    )
    correctness: str = flag("em", "R_anc: 'em', 'f1', or 'judge' (after an EM short-cut)")
    source_gated: bool = flag(
        False, "R_anc counts only where the cited evidence supports the answer"
    )
    source_gated_by: str = flag(
        "words", "who says so: 'words' (the answer occurs), or 'support' (whoever judges R_ans)"
    )
    likelihood_gap: bool = flag(
        False, "another part: how much more probable its evidence makes the answer (CTRL-RAG)"
    )
    process_on_right: bool = flag(
        False, "all but R_anc counts on right answers only, and is 0 elsewhere"
    )
    lures: str = flag("template", "who writes R_pt's lures: 'template' or 'judge'")
    condense: bool = flag(
        False, "let the judge's model shorten pages and facts to what a query asks for"
    )
    support: bool = flag(True, "false leaves R_ans out (α = 0)")
    support_by: str = flag(
        "auto",
        "R_ans by 'words' or the bundled world's 'facts'; 'auto': the judge, else facts where known",
    )
    alpha_fixed: float | None = flag(None, "a fixed α; 0.5 is the paper's static mix")
    alpha_beta: float = flag(0.9, "EMA of the batch's correctness")
    alpha_start: float | None = flag(
        None, "the EMA before the first batch; by default that batch's correctness"
    )
    alpha_tau: float = flag(0.5, "correctness at which α is one half")
    alpha_kappa: float = flag(10.0, "sharpness of α's transition")

    @property
    def probes(self) -> bool:
        """Whether R_pt is a part of the reward."""
        return self.reward == "pou" and self.budget != 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, CHOICES)
        judged = self.judge != "lexical"
        probed = {
            "lures judge": self.lures == "judge",
            "foils world": self.foils == "world",
            "shuffle_sensitivity true": self.shuffle_sensitivity,
        }
        asked = " and ".join(f"--{name}" for name, given in probed.items() if given)
        why = f"--budget is {self.budget}" if self.reward == "pou" else f"--reward is {self.reward}"
        probe = f"{asked}: there is no R_pt to use it, since {why}; give --reward pou and --budget 1, or -1 for all steps"
        ungated = (
            f"--source_gated_by {self.source_gated_by}: there is no gate; give --source_gated true"
        )
        alone = "--process_on_right true: --reward answer_only has nothing but the answer's reward"
        writer = "--condense true needs a judge with a model that writes: --judge endpoint, say"
        reader = (
            "--correctness judge and --lures judge need a judge with a model: --judge endpoint, say"
        )
        budget = f"budget must be -1 (all steps), 0 (no R_pt) or more, not {self.budget}"
        fixed = "--alpha_fixed is R_ans's weight, which --support false leaves out"
        foils = f"--foils world knows the bundled world's facts only, not those of {self.corpus!r}"
        facts = (
            f"--support_by facts knows the bundled world's questions only, not {self.questions!r}"
        )
        refuse(
            [
                (self.source_gated_by != "words" and not self.source_gated, ungated),
                (
                    self.process_on_right
                    and self.reward == "answer_only"
                    and not self.likelihood_gap,
                    alone,
                ),
                (self.condense and not judged, writer),
                (not judged and "judge" in (self.correctness, self.lures), reader),
                (self.budget < -1, budget),
                (not self.support and self.alpha_fixed is not None, fixed),
                (asked and not self.probes, probe),
                (self.foils == "world" and self.corpus not in WORLD, foils),
                (self.support_by == "facts" and self.questions not in WORLD, facts),
            ]
        )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    given = list(sys.argv[1:] if argv is None else argv)
    flags = script, args, _ = parse(given)
    repository = takes_over(args)
    with trained(
        flags, partial(build_reward, script), condenser=partial(build_condenser, script)
    ) as record:
        return leave(record, "recipes/pou.py", given, repository)


def parse(argv: Sequence[str] | None = None) -> tuple[PoUArguments, SearchGRPOConfig, ModelConfig]:
    """The three dataclasses, with settings that contradict each other refused (`ConfigError`)."""
    script, args, model_args = parse_run(PoUArguments, argv, DEFAULT_CONFIG)
    if script.condense and (args.counterfactual or script.stale):
        raise ConfigError(
            "--counterfactual and --stale change passages by their texts, which --condense true rewrites: take one"
        )
    if not script.probes:
        args.verdict_weight = 0.0  # configurations without R_pt extend others that have it
    return script, args, model_args


def build_reward(script: PoUArguments, judge: Judge | None = None) -> Mix:
    """Proof-of-Use's objective, one of its ablations, or the baseline without it; with the likelihood gap if asked for.

    Args:
        script: the flags.
        judge: as `script.load_judge` made it, where that was called already.

    Raises:
        ConfigError: when the judge that is to write lures can only judge.
    """
    judge = judge or script.load_judge()
    right = Correctness(script.correctness, judge=judge if script.correctness == "judge" else None)  # type: ignore[arg-type]
    by = _support(script, judge) if script.source_gated_by == "support" else AnswerSupport()
    correctness = SourceGated(right, by) if script.source_gated else right
    rows = (
        ({"title": own.title, "text": own.text} for own in script.corpus_passages())
        if script.snippets
        else ()
    )
    snippets = corpus_snippets(rows, script.snippets) if script.snippets else ()
    if script.reward == "answer_only":
        mix = answer_only_mix(correctness)
    else:
        mix = _proof_of_use(script, judge, correctness, snippets)
    if not script.likelihood_gap:
        return mix
    gap = {AnswerLikelihoodGap.name: AnswerLikelihoodGap(snippets=snippets)}
    only_right = (*mix.only_right, *gap) if script.process_on_right else ()
    return replace(mix, parts={**mix.parts, **gap}, only_right=only_right)


def _proof_of_use(
    script: PoUArguments, judge: Judge | None, correctness: Reward, snippets: tuple[Passage, ...]
) -> Mix:
    foils = None
    if script.foils != "none" and script.corpus in WORLD:
        from faithful_search.world import bundled_world  # reads the whole world

        foils = bundled_world(("train",))
    mix = pou_mix(
        None if script.budget < 0 else max(script.budget, 1),
        support=_support(script, judge),
        correctness=correctness,
        writer=_writer(judge, "--lures judge") if script.lures == "judge" else None,
        snippets=snippets,
        sensitivity=script.budget != 0,
        draws=script.draws,  # type: ignore[arg-type]
        centre=script.centre,
        foils=foils,
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
    """What shortens pages and facts for the policy. Raises `ConfigError` when the judge that is to do it cannot."""
    return Condensing(_writer(script.load_judge(), "--condense true")) if script.condense else None


def _support(script: PoUArguments, judge: Judge | None) -> AnswerSupport:
    """R_ans; a reader of the question comes before the comparison of words, which asks whether the answer occurs."""
    if judge is not None and script.support_by == "auto":
        return AnswerSupport(judge)
    if script.support_by != "words" and script.questions in WORLD:
        return AnswerSupport(FactsJudge())
    return AnswerSupport()


def _writer(judge: Judge | None, asked: str) -> Writer:
    if not isinstance(judge, Writer):
        raise ConfigError(f"{asked} needs a judge that writes: --judge endpoint or generator")
    return judge


if __name__ == "__main__":
    run_recipe(main)
