"""How a tokenizer's chat template joins an agent's turns with its environment's, as token ids.

The template is rendered once with placeholders; what it writes between an assistant turn and the
tool response, and between the response and the next assistant turn, is the *glue*. A turn then
costs the tokenisation of its own text only.

Where templates differ:

* a turn's end need not be the tokenizer's EOS (`<end_of_turn>`, `<|end|>`). It then is one more
  stop string, and an episode that ended by itself gets the EOS behind it, untrained: trainers take
  what ends otherwise as cut.
* a template that refuses the system role gets the system text as the opening of the first user
  message.
* without a template (a base model's tokenizer) the prompt is raw text, behind the BOS where the
  tokenizer writes one.
* a generation prompt may open the thought itself (`<think>`). It stands in the prompt, so it is
  neither sampled nor trained, but a turn is read as if it had written it.
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
from ..trajectory import Evidence, Step, Tokens, Trajectory
from .fencing import check_reader, control_tokens, guarded, name_of

ASSISTANT, OBSERVATION = "⟪assistant⟫", "⟪observation⟫"


@dataclass(frozen=True)
class ChatFormat:
    """A tokenizer seen through a dialect: prompts, observations and whole transcripts as ids.

    `end` closes an assistant turn; `before` opens the tool response after it and `after` leads to
    the next assistant turn (both empty for dialects that append raw text inside one assistant turn:
    their `observation_role` is `None`). `gap` is the blanks the template writes before `end`,
    `prefill` the opened thought its generation prompt ends with.
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
        """Read the glue off the tokenizer's chat template. Raises `TemplateError` when the dialect
        needs a template and the tokenizer has none, or one that refuses, drops or rewrites turns;
        as `fencing.check_reader`.
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
        return guarded(self.dialect.fence, self.tokenizer)

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a turn besides the dialect's: `end`, where it is not the EOS that
        generators stop at.
        """
        return (self.end,) if self.end and self._eos_ids else ()

    @cached_property
    def end_ids(self) -> list[int]:
        return self.encode(self.end)

    @cached_property
    def _eos_ids(self) -> list[int]:
        """The tokenizer's EOS where it is not what `end` ends with."""
        eos = self.tokenizer.eos_token_id
        return [] if eos is None or self.end_ids[-1:] == [eos] else [eos]

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(well_formed(text), add_special_tokens=False)["input_ids"]

    def prompt_ids(self, question: str, tools: Sequence[dict[str, Any]] = ()) -> list[int]:
        """Ids of the episode's opening, ready for the first assistant turn."""
        return self.messages_ids(self.dialect.prompt(question, tools), tools)

    def messages_ids(
        self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
    ) -> list[int]:
        """Ids of chat messages, ready for the next assistant turn; raw text when the tokenizer has
        no template. The dialect's prompt describes the tools, so the template gets only their
        names, as `tool_names`: some tell a small model no more.
        """
        if not getattr(self.tokenizer, "chat_template", None):
            text = "\n".join(message["content"] for message in messages)
            return opening_ids(self.tokenizer) + self.encode(text)
        names = [tool["function"]["name"] for tool in tools]
        text = templated(self.tokenizer, messages, "these messages", tool_names=names)
        return self.encode(text)

    def observation_ids(self, text: str, ended: bool, opened: str = "") -> list[int]:
        """Ids the environment appends for the tool response `text`; `ended`: the model closed its
        turn itself; `opened`: what the environment writes of the agent's next turn.
        """
        if self.dialect.observation_role is None:
            return self.encode(text + opened)
        # `end` is encoded either way: some tokenizers let it swallow the blanks behind it
        response = self.end + self.before + text + self.after + opened
        if ended:
            return self.encode(response)[len(self.end_ids) :]
        return self.encode(self.gap + response)

    def closing_ids(self, ids: Sequence[int]) -> list[int]:
        """What closes an episode that ended by itself, sampled as `ids`: `end` if it is missing,
        then the EOS.
        """
        if ids and list(ids[-1:]) == self._eos_ids:
            return []
        closing = [] if self.ended(ids) else self.encode(self.gap + self.end)
        return closing + self._eos_ids

    def opened(self, first: bool) -> str:
        """What the template has already written of a turn: `prefill`, in every turn that it
        opens.
        """
        return self.prefill if first or self.dialect.observation_role is not None else ""

    @property
    def answer_opening(self) -> str:
        """What the environment writes of a later turn to make it an answer, if the dialect has such
        an opening; a thought that is open is closed first.
        """
        opening = self.dialect.answer_opening or ""
        if opening and self.opened(first=False):
            return f"</think>\n{opening}"
        return opening

    def render_observation(self, evidence: Sequence[Evidence], note: str = "") -> str:
        return self.dialect.render_observation(evidence, note, self.fence)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether the model itself closed the turn it sampled as `ids`."""
        return bool(self.end_ids) and list(ids[-len(self.end_ids) :]) == self.end_ids

    def transcript(self, trajectory: Trajectory, tools: Sequence[dict[str, Any]] = ()) -> Tokens:
        """A trajectory as its agent would have sampled it: each turn closed where the dialect
        closes it, without what the template writes of it (`prefill`).
        """
        ids: list[int] = []
        mask: list[int] = []
        turns: list[tuple[int, int, int]] = []
        goes_on = False
        for number, step in enumerate(trajectory.steps):
            calls = step.call is not None and step.answer is None
            is_last = number == len(trajectory.steps) - 1
            reply = None  # the environment's: to a call, or to another step that is not the last
            if calls:
                reply = self.render_observation(step.evidence, step.note)
            elif not is_last:
                steps = trajectory.steps[: number + 1]
                reply = self.dialect.controller_reply(steps, verify=True)
            goes_on = reply is not None
            # a raw dialect goes on inside one assistant turn, which is closed only at its end
            is_closed = not goes_on or self.dialect.observation_role is not None
            sampled = self._turn_ids(step, first=number == 0, closed=is_closed)
            response = [] if reply is None else self.observation_ids(reply, ended=True)
            start = len(ids)
            middle = start + len(sampled)
            turns.append((start, middle, middle + len(response)))
            ids += sampled + response
            mask += [1] * len(sampled) + [0] * len(response)
        if turns and not goes_on:
            ids += self._eos_ids
            mask += [0] * len(self._eos_ids)
        prompt_ids = self.prompt_ids(trajectory.question or "", tools)
        return Tokens(prompt_ids, ids, mask, tuple(turns))

    def _turn_ids(self, step: Step, first: bool, closed: bool) -> list[int]:
        """A turn as the agent samples it: after what the template has already written of it."""
        text = self.dialect.render_turn(step)
        prefill = self.opened(first)
        if not text.startswith(prefill):  # the blanks after the opened thought may differ
            prefill = prefill.rstrip()
        text = text.removeprefix(prefill)
        if not closed:
            return self.encode(text)
        return self.encode(text + self.gap) + self.end_ids


def templated(
    tokenizer: Any, messages: Sequence[dict[str, Any]], subject: str, **kwargs: Any
) -> str:
    """The text that the chat template makes of messages; where it refuses the system role, with
    that text in the user's message. Raises `TemplateError`, which names the `subject`, where it
    refuses that, too. `kwargs` are of `apply_chat_template`.
    """
    kwargs = {"tokenize": False, "add_generation_prompt": True, **kwargs}
    try:
        return tokenizer.apply_chat_template(list(messages), **kwargs)
    except Exception as refusal:  # a template raises what it likes; many refuse the system role
        try:
            return tokenizer.apply_chat_template(folded(messages), **kwargs)
        except Exception as error:
            raise TemplateError(
                f"the chat template of {name_of(tokenizer)} refuses {subject} ({refusal}), also "
                "with "
                f"its system text in the user's message ({error}); take another template"
            ) from error


def opening_ids(tokenizer: Any) -> list[int]:
    """What a tokenizer itself puts before plain text; a chat template writes its own."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return []
    first_id = tokenizer("a")["input_ids"][:1]
    return first_id if first_id == [bos] else []  # some name a BOS and do not write it


def folded(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`messages` with the system's text as the opening of the first user message."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "system":
            system.append(message["content"])
        else:
            turns.append(dict(message))
    for turn in turns:
        if turn["role"] == "user":
            turn["content"] = "\n\n".join([*system, turn["content"]])
            return turns
    if system:  # nobody has asked yet
        turns.insert(0, {"role": "user", "content": "\n\n".join(system)})
    return turns


def _glue(tokenizer: Any, role: str) -> dict[str, str]:
    """What the template writes around an assistant turn and its observation, by the fields of
    `ChatFormat`.
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
    between, after = text.split(ASSISTANT)[1].split(OBSERVATION)
    closing = between.lstrip()
    end = max(
        (token for token in control_tokens(tokenizer) if closing.startswith(token)),
        key=len,
        default="",
    )
    if not end:
        return {"before": between, "after": after}
    gap = between[: len(between) - len(closing)]
    return {"end": end, "before": closing[len(end) :], "after": after, "gap": gap}
