"""How a tokenizer's chat template joins an agent's turns with its environment's, as token ids.

The template is rendered once with placeholders. What it writes between an assistant turn and the
tool response, and between the response and the next assistant turn, is the *glue*; a turn then
costs the tokenisation of its own text only.

Where templates differ:

* the end of a turn need not be the tokenizer's EOS (`<end_of_turn>`, `<|end|>`). It then is one
  more stop string, and an episode that ended by itself gets the EOS after it, untrained: trainers
  take an episode that ends otherwise for one that was cut.
* a template that refuses the system role gets the system text at the beginning of the first user
  message.
* without a template (a base model's tokenizer) the prompt is raw text, after the BOS where the
  tokenizer writes one.
* a generation prompt may open the thought itself (`<think>`). That is a part of the prompt, so it
  is neither sampled nor trained, but a turn is parsed as if it began with it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from ..dialects.base import Dialect
from ..dialects.fence import Fence
from ..errors import TemplateError
from ..text import well_formed
from ..trajectory import Evidence, Tokens, Trajectory
from .fencing import check_reader, control_tokens, guarded, name_of

# What stands in the place of an assistant turn and of a tool response when a template is read
ASSISTANT = "⟪assistant⟫"
OBSERVATION = "⟪observation⟫"


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer seen through a dialect: prompts, observations and whole transcripts as ids.

    Dialects whose `observation_role` is `None` append raw text inside one assistant turn: for these
    `before` and `after` are empty.

    Attributes:
        end: closes an assistant turn.
        before: opens the tool response after it.
        after: leads from the response to the next assistant turn.
        gap: white space that the template writes before `end`.
        prefill: the opened thought with which the generation prompt ends.
    """

    tokenizer: Any = field(repr=False)
    dialect: Dialect
    end: str = ""
    before: str = ""
    after: str = ""
    gap: str = ""
    prefill: str = ""

    @classmethod
    def of(cls, tokenizer: Any, dialect: Dialect) -> Self:
        """The format of a tokenizer, read off its chat template.

        Raises:
            TemplateError: the dialect needs a template, and the tokenizer has none, or one that
                refuses, drops or rewrites turns; or as `fencing.check_reader`.
        """
        check_reader(tokenizer, dialect)
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if dialect.observation_role is None:
            glue: dict[str, Any] = {"end": tokenizer.eos_token or ""}
        elif has_template:
            glue = _glue(tokenizer, dialect.observation_role)
        else:
            raise TemplateError(
                f"the tokenizer of {name_of(tokenizer)} has no chat template, which dialect "
                f"{dialect.name!r} needs; set it, take the instruct model, or use dialect "
                "'search_r1'"
            )
        if has_template:
            subject = f"the prompt of dialect {dialect.name!r}"
            text = templated(tokenizer, dialect.prompt("?", ()), subject, tool_names=[])
            thought = re.search(r"<think>\s*\Z", text)
            glue["prefill"] = thought[0] if thought else ""
        return cls(tokenizer, dialect, **glue)

    @cached_property
    def fence(self) -> Fence:
        """The dialect's fence, which also keeps out what this tokenizer gives a meaning to."""
        return guarded(self.dialect.fence, self.tokenizer)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn besides the dialect's: `end`, unless it is the EOS, at which
        generators stop by themselves.
        """
        return (self.end,) if self.end and self._eos_ids else ()

    @cached_property
    def end_ids(self) -> list[int]:
        return self.encode(self.end)

    @cached_property
    def _eos_ids(self) -> list[int]:
        """The tokenizer's EOS; empty where there is none, or `end` already ends with it."""
        eos = self.tokenizer.eos_token_id
        return [] if eos is None or self.end_ids[-1:] == [eos] else [eos]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it."""
        return self.tokenizer(well_formed(text), add_special_tokens=False)["input_ids"]

    def prompt_ids(self, question: str, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of the episode's opening, ready for the first assistant turn."""
        return self.messages_ids(self.dialect.prompt(question, tools), tools)

    def messages_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Ids of chat messages, ready for the next assistant turn; of raw text when the tokenizer
        has no template.

        The dialect's prompt describes the tools. So the template gets only their names, as
        `tool_names`, which some templates of small models list.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            text = "\n".join(message["content"] for message in messages)
            return opening_ids(self.tokenizer) + self.encode(text)
        names = [tool["function"]["name"] for tool in tools]
        return self.encode(templated(self.tokenizer, messages, "these messages", tool_names=names))

    def observation_ids(self, text: str, ended: bool, opened: str = "") -> list[int]:
        """Ids that the environment appends for a tool response.

        Args:
            text: the response.
            ended: whether the model closed its turn itself.
            opened: what the environment writes of the agent's next turn.
        """
        if self.dialect.observation_role is None:
            return self.encode(text + opened)
        # `end` is encoded even where it is not needed: with some tokenizers it takes in the white
        # space after it.
        response = self.end + self.before + text + self.after + opened
        if ended:
            return self.encode(response)[len(self.end_ids) :]
        return self.encode(self.gap + response)

    def closing_ids(self, ids: Sequence[int]) -> list[int]:
        """What closes an episode that ended by itself: `end`, if it is missing, then the EOS.

        Args:
            ids: the last turn as it was sampled.
        """
        if ids and list(ids[-1:]) == self._eos_ids:  # the model has written the EOS itself
            return []
        closing = [] if self.ended(ids) else self.encode(self.gap + self.end)
        return closing + self._eos_ids

    def opened(self, first: bool) -> str:
        """What the template has already written of a turn: `prefill`, in every turn that it opens.

        Args:
            first: whether it is the first turn. In raw dialects the template opens no other.
        """
        is_opened = first or self.dialect.observation_role is not None
        return self.prefill if is_opened else ""

    @property
    def answer_opening(self) -> str:
        """How the environment begins a later turn to make it an answer; empty where the dialect has
        no such opening. A thought that is open is closed first.
        """
        opening = self.dialect.answer_opening or ""
        if opening and self.opened(first=False):
            return f"</think>\n{opening}"
        return opening

    def render_observation(self, evidence: Sequence[Evidence], note: str = "") -> str:
        """A tool response as the dialect writes it, fenced for this tokenizer."""
        return self.dialect.render_observation(evidence, note, self.fence)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether the model itself closed the turn that was sampled as `ids`."""
        return bool(self.end_ids) and list(ids[-len(self.end_ids) :]) == self.end_ids

    def transcript(self, trajectory: Trajectory, tools: Sequence[dict[str, Any]] = ()) -> Tokens:
        """A trajectory as its agent would have sampled it: each turn closed where the dialect
        closes it, without what the template writes of it (`prefill`).
        """
        ids: list[int] = []
        mask: list[int] = []
        # For each turn where it begins, where its response begins, and where that ends
        turns: list[tuple[int, int, int]] = []
        goes_on = False
        for number, step in enumerate(trajectory.steps):
            is_first = number == 0
            is_last = number == len(trajectory.steps) - 1
            has_call = step.call is not None and step.answer is None
            # What the environment answers to a step without a call that is not the last
            instruction = None
            if not has_call and not is_last:
                steps_so_far = trajectory.steps[: number + 1]
                instruction = self.dialect.controller_reply(steps_so_far, verify=True)
            goes_on = has_call or instruction is not None
            turn = self.dialect.render_turn(step)
            # The dialect may begin the turn with the prefill, or with it but for its white space.
            prefill = self.opened(first=is_first)
            turn = turn.removeprefix(prefill if turn.startswith(prefill) else prefill.rstrip())
            # A raw dialect goes on inside one assistant turn, which is closed only at its end.
            if goes_on and self.dialect.observation_role is None:
                sampled = self.encode(turn)
            else:
                sampled = self.encode(turn + self.gap) + self.end_ids
            response: list[int] = []
            if has_call:
                observation = self.render_observation(step.evidence, step.note)
                response = self.observation_ids(observation, ended=True)
            elif instruction is not None:
                response = self.observation_ids(instruction, ended=True)
            response_start = len(ids) + len(sampled)
            turns.append((len(ids), response_start, response_start + len(response)))
            ids += sampled + response
            mask += [1] * len(sampled) + [0] * len(response)
        if turns and not goes_on:
            ids += self._eos_ids
            mask += [0] * len(self._eos_ids)
        return Tokens(self.prompt_ids(trajectory.question or "", tools), ids, mask, tuple(turns))


def templated(
    tokenizer: Any, messages: Sequence[dict[str, Any]], subject: str, **kwargs: Any
) -> str:
    """The text that the chat template makes of messages. Where it refuses the system role, that
    text goes into the user's message.

    Args:
        subject: what the messages are, as an error names them.
        kwargs: further arguments of `apply_chat_template`.

    Raises:
        TemplateError: the template refuses them either way.
    """
    kwargs = {"tokenize": False, "add_generation_prompt": True, **kwargs}
    try:
        return tokenizer.apply_chat_template(list(messages), **kwargs)
    except Exception as refusal:  # templates raise errors of any class
        try:
            return tokenizer.apply_chat_template(folded(messages), **kwargs)
        except Exception as error:
            raise TemplateError(
                f"the chat template of {name_of(tokenizer)} refuses {subject} ({refusal}), also "
                f"with its system text in the user's message ({error}); take another template"
            ) from error


def opening_ids(tokenizer: Any) -> list[int]:
    """What a tokenizer puts before plain text: its BOS, or nothing. Templates write their own."""
    bos = tokenizer.bos_token_id
    # Some tokenizers have one and do not write it.
    if bos is not None and tokenizer("a")["input_ids"][:1] == [bos]:
        return [bos]
    return []


def folded(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with the system's text at the beginning of the first user message."""
    system_texts: list[str] = []
    others: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            system_texts.append(message["content"])
        else:
            others.append(dict(message))
    first_user = next((message for message in others if message["role"] == "user"), None)
    if first_user is not None:
        first_user["content"] = "\n\n".join([*system_texts, first_user["content"]])
    elif system_texts:
        others.insert(0, {"role": "user", "content": "\n\n".join(system_texts)})
    return others


def _glue(tokenizer: Any, role: str) -> dict[str, str]:
    """What the template writes around an assistant turn and its observation: `end`, `before`,
    `after` and `gap` of `ChatFormat`.
    """
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": ASSISTANT},
        {"role": role, "content": OBSERVATION},
    ]
    subject = f"an assistant turn followed by a {role!r} turn"
    text = templated(tokenizer, messages, subject, tool_names=[])
    if text.count(ASSISTANT) != 1 or text.count(OBSERVATION) != 1:
        raise TemplateError(
            f"the chat template of {name_of(tokenizer)} does not keep {subject} as they are; take "
            "another template"
        )
    _, after_assistant = text.split(ASSISTANT)
    between, after = after_assistant.split(OBSERVATION)
    # The turn ends with a control token, behind white space, or there is no such end.
    without_gap = between.lstrip()
    ends = [token for token in control_tokens(tokenizer) if without_gap.startswith(token)]
    end = max(ends, key=len, default="")
    if not end:
        return {"before": between, "after": after}
    gap = between[: len(between) - len(without_gap)]
    return {"end": end, "before": without_gap[len(end) :], "after": after, "gap": gap}
