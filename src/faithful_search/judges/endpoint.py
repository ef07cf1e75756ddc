"""The judge behind an OpenAI-compatible endpoint: a served model reads a prompt and answers 1 or 0."""

import math
from collections.abc import Mapping, Sequence

from ..dialects.fence import Fence
from ..text import sentences
from ..wire.cache import key_of
from .asking import EndpointClient
from .base import Pair, Request, Verdict
from .labels import Question
from .prompting import Prompt, fields_of, load

_CONTROL = Fence(r"<[|\uff5c]|</?s>|<(?:bos|eos|pad|unk)>|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>")
"""Servers read a spelled control token as the token itself, and which ones the served model has is not known here."""

TOGETHER = "support_many"
"""The prompt about several claims on the same evidence."""
MOST = 20
"""Claims of one request: the more there are, the easier a model loses count."""
_LINE = 8
"""Tokens of a line with a claim's number and label."""


class EndpointJudge(EndpointClient):
    """Asks a served model; judges pairs and writes texts.

    Claims on the same evidence for the same question that come in one batch are asked about in one request, which
    costs the evidence once instead of once a claim; see `together`.

    p is p₁ / (p₁ + p₀) of the label's token where the server gives log-probs, else 1 or 0. Which of log-probs and
    constrained output (a choice of the two labels) the server accepts is found out with the first question. A pair
    without an answer (the server was down, the reply is not a label) gets a verdict that abstains and says why; it is
    not cached, so that asking the same pairs again asks only for what is missing. Answers go to the cache as they come;
    an interruption waits for those under way, a second one leaves them. Identical pairs are asked once. Callable from
    threads and inside a running event loop, which it blocks. A pickle carries the settings.

    The key is read from the environment when it is needed and kept nowhere else: `FAITHFUL_SEARCH_API_KEY`, else the
    Hub's token for Hugging Face hosts, else `OPENAI_API_KEY`. The Hub's token is sent to no other host.

    Args:
        model: the served model's name.
        url: the server's base URL, usually ending in `/v1`; without one, Hugging Face Inference Providers.
        concurrency, timeout, patience, retries, backoff, give_up_after: of asking, see `wire.endpoint.Endpoint`.
        cache: a file; "auto" is `judgements.sqlite` in the Hub's assets folder, None keeps nothing. Answers are found
            again by model, prompt and parameters, wherever the model is served.
        together: ask about several claims on the same evidence at once (`Pair.task` "support"; 20 claims at most), by
            a prompt of its own, which `Verdict.judge` names. Their p is 1 or 0, no probability, and what is said of one
            claim may depend on the others. A reply that is not one label for each claim is not used: each is then asked
            by itself, as all are with False.
        temperature, seed: of the sampling; None leaves them out.
        max_tokens: of a label, several of which get 8 more each; a model that reasons first needs more than the
            default. None leaves it out.
        write_tokens: of a text that is written; where `max_tokens` is more, or None, that.
        extra_body: further parameters of the request.
        prices: of a million prompt and completion tokens, for `stats.cost`.
        max_cost: in their currency; what is not answered when so much was spent abstains. Requests under way then are
            still paid.
        dry: ask nothing: `stats` count what would be asked, about as many tokens, and every verdict is a yes.
        on_progress: called with the number of pairs finished since its last call, on another thread; for example
            `tqdm(...).update`. A pickle leaves it behind.

    Raises:
        ConfigError: for settings that cannot work.
        JudgeError: by `judge_batch` and `write_batch`, when asking is pointless: a wrong key, an unknown model.
        DataError: by both, when the cache's file cannot be used.

    How it can be gamed: text that argues with the judge. Untrusted text is fenced (see `Prompt.fill`) and the usual
    control tokens in it are escaped, which stops it from ending its block or our turn, not from being persuasive.
    """

    @property
    def name(self) -> str:
        return f"endpoint:{self.model}"

    def judge_batch(self, pairs: Sequence[Pair]) -> list[Verdict]:
        asked = {pair: self._question(load(pair.task), fields_of(pair)) for pair in pairs}
        answers = self.answers([asked[pair] for pair in pairs], self._groups(asked) if self.together else [])
        verdicts = []
        for pair, answer in zip(pairs, answers, strict=True):
            prompt = load(TOGETHER if answer.together else pair.task)
            verdicts.append(Verdict(answer.p, answer.label, answer.missing, f"{self.name} {prompt.id}"))
        return verdicts

    def write_batch(self, requests: Sequence[Request]) -> list[str | None]:
        asked = [self._question(load(request.prompt), request.fields, writes=True) for request in requests]
        texts = [answer.text for answer in self.answers(asked)]
        if self.dry:  # as many claims as an answer has sentences
            return ["\n".join(sentences(request.fields.get("answer", ""))) or None for request in requests]
        return texts

    def _groups(self, asked: Mapping[Pair, Question]) -> list[Question]:
        """Questions about several claims on the same evidence; more than `MOST` claims are cut into equal parts."""
        by_evidence: dict[tuple[str, str], list[Pair]] = {}
        for pair in asked:
            if pair.task == "support":
                by_evidence.setdefault((pair.premise, pair.question), []).append(pair)
        groups = []
        for (premise, question), pairs in by_evidence.items():
            size = math.ceil(len(pairs) / math.ceil(len(pairs) / MOST))
            for part in (pairs[at : at + size] for at in range(0, len(pairs), size) if len(pairs) > 1):
                # a claim is one line: its own line breaks could pose as the next claim
                claims = (f"{number}. {' '.join(pair.hypothesis.split())}" for number, pair in enumerate(part, 1))
                texts = {"premise": premise, "question": question, "claims": "\n".join(claims)}
                groups.append(self._question(load(TOGETHER), texts, members=tuple(asked[pair] for pair in part)))
        return groups

    def _question(
        self, prompt: Prompt, texts: Mapping[str, str], writes: bool = False, members: tuple[Question, ...] = ()
    ) -> Question:
        messages = prompt.fill({name: _CONTROL.escape(text) for name, text in texts.items()})
        limit = self.max_tokens and self.max_tokens + _LINE * len(members)
        if writes and limit is not None:
            # a model that reasons before a label reasons before a text, too
            limit = None if self.write_tokens is None else max(self.write_tokens, limit)
        own = {"temperature": self.temperature, "seed": self.seed, "max_tokens": limit}
        body = {name: value for name, value in own.items() if value is not None} | dict(self.extra_body)
        prompted = [prompt.id, prompt.digest]
        constrained = "none" if writes or members else "auto"
        key = key_of(model=self.model, prompt=prompted, messages=messages, parameters=body, constrained=constrained)
        return Question(key, messages, body, writes, members)
