"""Train a search agent with Proof-of-Use rewards: question → rollouts → GRPO → evaluation before
and after, with plots.

Every flag of `PoUArguments`, `SearchGRPOConfig` and TRL's `ModelConfig` may stand in the YAML file
or on the command line, which wins.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from .. import suites
from ..bundled import shipped
from ..errors import ConfigError
from ..flags import check_choices, flag, knob
from ..gauntlet import published
from ..judges import Judge
from ..rewards import (
    Adaptive,
    AnswerLikelihoodGap,
    AnswerSupport,
    Correctness,
    EvidenceSensitivity,
    Mix,
    Reward,
    Shuffled,
    SourceGated,
    answer_only_mix,
    corpus_snippets,
    pou_mix,
)
from ..rewards.perturbation import Passage
from ..training.starting import run_recipe
from ..world.facts import FactsJudge
from .condensing import CondensingArguments, build_condenser as build_condenser
from .running import TrainingRecipe

if TYPE_CHECKING:
    from ..training.arguments import SearchGRPOConfig

DEFAULT_CONFIG = shipped("recipes/configs") / "pou_tiny.yaml"


@dataclass
class PoUArguments(CondensingArguments):
    """What is asked, with which tools, how it is rewarded, and who judges."""

    reward: str = flag(
        "pou",
        "Reward: 'pou', 'answer_only' (format and answer, the baseline), or one of the literature, "
        "as docs/gauntlet.md calls it.",
    )
    budget: int = knob(
        EvidenceSensitivity,
        "budget",
        help="B_max: number of steps of a rollout that are perturbed. -1 perturbs all of them, 0 "
        "leaves R_pt out.",
    )
    draws: Literal["rollout", "question"] = knob(EvidenceSensitivity, "draws")
    centre: bool = knob(EvidenceSensitivity, "centre")
    foils: Literal["none", "world", "auto"] = flag(
        "none",
        "Look-alikes in R_pt's probes: 'world' takes passages of the bundled world that state "
        "another fact in the same words, 'auto' does so where that world is searched.",
    )
    hard: float = knob(EvidenceSensitivity, "hard")
    shuffle_sensitivity: bool = flag(
        False, "As a control, give each rollout the R_pt of another rollout of its question."
    )
    snippets: int = flag(
        0,
        "Number of corpus passages from which R_pt's replacements are drawn. 0 draws them from the "
        "evidence of the batch's other questions.",
    )
    correctness: Literal["em", "f1", "judge"] = flag(
        "em", "R_anc: 'em', 'f1', or 'judge', which is asked where exact match fails."
    )
    source_gated: bool = flag(
        False, "Count R_anc only where the cited evidence supports the answer."
    )
    source_gated_by: Literal["words", "support"] = flag(
        "words",
        "How --source_gated decides: 'words' (the answer occurs in the evidence), or 'support' "
        "(as R_ans does).",
    )
    likelihood_gap: bool = flag(
        False,
        "Add a reward for how much more probable the evidence makes the answer (CTRL-RAG).",
    )
    process_on_right: bool = knob(pou_mix, "process_on_right", default=False)
    lures: Literal["template", "judge"] = flag(
        "template",
        "Who writes R_pt's lures: 'template', or 'judge', whose model it is, or the writer.",
    )
    support: bool = flag(
        True, "Reward the support of the answer, R_ans. false leaves it out (α = 0)."
    )
    support_by: Literal["auto", "words", "facts"] = flag(
        "auto",
        "What decides R_ans: 'words', or 'facts' of the bundled world. 'auto' takes the judge, or "
        "without one the facts where they are known.",
    )
    alpha_fixed: float | None = knob(Adaptive, "fixed")
    alpha_beta: float = knob(Adaptive, "beta")
    alpha_start: float | None = knob(pou_mix, "alpha_start")
    alpha_tau: float = knob(Adaptive, "tau")
    alpha_kappa: float = knob(Adaptive, "kappa")

    @property
    def has_to_write(self) -> bool:
        return self.condense or self.lures == "judge"

    @property
    def probes(self) -> bool:
        """Whether R_pt is a part of the reward."""
        return self.reward == "pou" and self.budget != 0

    def sensitivity(self, **sources: Any) -> EvidenceSensitivity | None:
        """R_pt, with the sources of its replacements; `None` where --budget 0 leaves it out."""
        if self.budget == 0:
            return None
        return EvidenceSensitivity(
            budget=None if self.budget == -1 else self.budget,  # all steps
            draws=self.draws,
            centre=self.centre,
            hard=self.hard,
            **sources,
        )

    def answer(self, **rewards: Reward) -> Adaptive:
        """R_a, with its process and outcome."""
        return Adaptive(
            beta=self.alpha_beta,
            tau=self.alpha_tau,
            kappa=self.alpha_kappa,
            fixed=self.alpha_fixed if self.support else 0.0,
            **rewards,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self, {"reward": ("pou", "answer_only", *published.names())})
        self._check_published()
        self._check_gate()
        self._check_judge()
        self._check_support()
        self._check_probes()
        # they refuse their own knobs
        self.sensitivity()
        self.answer()

    def _check_published(self) -> None:
        if self.reward not in published.names():
            return
        settings = ("source_gated", "process_on_right", "likelihood_gap")
        refused = [f"--{name} true" for name in settings if getattr(self, name)]
        if refused:
            raise ConfigError(
                f"--reward {self.reward} is as it was published and takes no "
                f"{' or '.join(refused)}: set that to false, as "
                "recipes/configs/hack_answer_only.yaml does"
            )

    def _check_gate(self) -> None:
        if self.source_gated_by != "words" and not self.source_gated:
            raise ConfigError(
                f"--source_gated_by {self.source_gated_by}: there is no gate; give --source_gated "
                "true"
            )
        has_process = self.reward == "pou" or self.likelihood_gap
        if self.process_on_right and not has_process:
            raise ConfigError(
                "--process_on_right true: --reward answer_only has nothing but the answer's reward"
            )

    def _check_judge(self) -> None:
        if self.reads:  # the judge is a model
            return
        lures_need_it = self.lures == "judge" and self.writer_model is None
        if self.correctness == "judge" or lures_need_it:
            raise ConfigError(
                "--correctness judge and --lures judge need a judge with a model: --judge "
                "endpoint, say"
            )

    def _check_support(self) -> None:
        if not self.support and self.alpha_fixed is not None:
            raise ConfigError("--alpha_fixed is R_ans's weight, which --support false leaves out")
        if self.support_by == "facts" and not suites.facts_are_known(self.questions):
            raise ConfigError(
                "--support_by facts knows the bundled world's questions only, not "
                f"{self.questions!r}"
            )

    def _check_probes(self) -> None:
        if self.budget < -1:
            raise ConfigError(
                f"budget must be -1 (all steps), 0 (no R_pt) or more, not {self.budget}"
            )
        flags_of_probes = {
            "--lures judge": self.lures == "judge",
            "--foils world": self.foils == "world",
            "--shuffle_sensitivity true": self.shuffle_sensitivity,
        }
        set_flags = " and ".join(name for name, is_set in flags_of_probes.items() if is_set)
        if set_flags and not self.probes:
            why = f"--reward is {self.reward}"
            if self.reward == "pou":
                why = f"--budget is {self.budget}"
            raise ConfigError(
                f"{set_flags}: there is no R_pt to use it, since {why}; give --reward pou and "
                "--budget 1, or -1 for all steps"
            )
        if self.foils == "world" and not suites.facts_are_known(self.corpus):
            raise ConfigError(
                f"--foils world knows the bundled world's facts only, not those of {self.corpus!r}"
            )

    def adjust(self, args: "SearchGRPOConfig") -> None:
        super().adjust(args)
        if not self.probes:
            # Not refused: a configuration without R_pt may extend another one that has it, and with
            # it this weight
            args.verdict_weight = 0.0


def build_reward(script: PoUArguments, judge: Judge | None = None) -> Mix:
    """Proof-of-Use's objective, one of its ablations, or the baseline without it, with the
    likelihood gap if asked for; or a reward of the literature.

    Args:
        script: the flags.
        judge: what `script.load_judge` returned; by default it is called here.

    Raises:
        ConfigError: `--lures judge` with a judge that can judge but not write.
    """
    judge = judge or script.load_judge()
    if script.reward in published.names():
        # A judge that the reward does not ask has work where its model condenses
        condenses = script.condense and script.writer_model is None
        is_asked = published.asks_judge(script.reward) or not condenses
        return published.mix_of(script.reward, judge if is_asked else None)
    correctness = _correctness(script, judge)
    snippets = _snippets(script)
    if script.reward == "answer_only":
        mix = answer_only_mix(correctness)
    else:
        mix = _proof_of_use(script, judge, correctness, snippets)
    if not script.likelihood_gap:
        return mix
    gap = AnswerLikelihoodGap(snippets=snippets)
    only_right: tuple[str, ...] = ()
    if script.process_on_right:
        only_right = (*mix.only_right, gap.name)
    return replace(mix, parts={**mix.parts, gap.name: gap}, only_right=only_right)


def _proof_of_use(
    script: PoUArguments, judge: Judge | None, correctness: Reward, snippets: tuple[Passage, ...]
) -> Mix:
    """The mix of `--reward pou`, with the parts that the flags leave in."""
    foils = None
    if script.foils != "none" and suites.facts_are_known(script.corpus):
        from ..world import bundled_world  # reads the whole world

        foils = bundled_world(("train",))
    writer = None
    if script.lures == "judge":
        writer = script.load_writer(judge, "--lures judge")
    sensitivity: Reward | None = script.sensitivity(foils=foils, snippets=snippets, writer=writer)
    if sensitivity is not None and script.shuffle_sensitivity:
        sensitivity = Shuffled(sensitivity)
    return pou_mix(
        sensitivity=sensitivity or False,
        answer=script.answer(process=_support(script, judge), outcome=correctness),
        alpha_start=script.alpha_start,
        process_on_right=script.process_on_right,
    )


def _correctness(script: PoUArguments, judge: Judge | None) -> Reward:
    """R_anc, behind the source gate if asked for."""
    ungated = Correctness(
        script.correctness, judge=judge if script.correctness == "judge" else None
    )
    if not script.source_gated:
        return ungated
    by_words = script.source_gated_by == "words"
    return SourceGated(ungated, AnswerSupport() if by_words else _support(script, judge))


def _snippets(script: PoUArguments) -> tuple[Passage, ...]:
    """The passages of the corpus that replacements are drawn from."""
    if not script.snippets:
        return ()
    passages = script.corpus_passages()
    rows = ({"title": passage.title, "text": passage.text} for passage in passages)
    return corpus_snippets(rows, script.snippets)


def _support(script: PoUArguments, judge: Judge | None) -> AnswerSupport:
    """R_ans by the judge, by the facts of the bundled world, or by words, as `--support_by` says.

    With "auto" the judge and the facts come first, since both know the question: words tell only
    whether the answer occurs in the evidence.
    """
    if judge is not None and script.support_by == "auto":
        return AnswerSupport(judge)
    if script.support_by != "words" and suites.facts_are_known(script.questions):
        return AnswerSupport(FactsJudge())
    return AnswerSupport()


RECIPE = TrainingRecipe(
    file="recipes/pou.py",
    settings=PoUArguments,
    config=DEFAULT_CONFIG,
    reward=lambda script, args, judge: build_reward(script, judge),
    condenser=build_condenser,
)
main, parse = RECIPE.main, RECIPE.parse


if __name__ == "__main__":
    run_recipe(main)
