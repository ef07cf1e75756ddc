"""verl: a reward manager, which is handed token ids and knows who wrote what.

```yaml
reward:
  reward_manager:
    source: importlib
    name: FaithfulRewardManager
    module: {path: pkg://faithful_search.adapters.verl_manager}
  reward_kwargs: {mix: veritas, dialect: openai, abstained: 0.0}
```

`reward_kwargs` are those of `adapters.settings.scoring_of`, and `stop_tokens`: what the policy is
stopped at beside the tokenizer's end of sequence, such as gpt-oss's `[<|call|>]`.
"""

from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from ..errors import ConfigError
from ..formats.base import Messages
from .sampled import messages_of, opening_of, sampled_of
from .settings import scoring_of
from .verl import result_of, values_of

STATE_WHERE_TURNS_END = (
    "verl counts other turns than its tokens show: none ends with a token that is known, or a page "
    "holds what begins an assistant's message. State what the policy is stopped at, reward_kwargs: "
    '{stop_tokens: […]}, or let the agent loop hand over extra_fields["response_mask"] or '
    'extra_fields["messages"]'
)


class FaithfulRewardManager(RewardManagerBase):
    """Scores a rollout by its messages.

    Taken from the first of these that is there: `messages` that the agent loop handed over; the
    tokens with their `response_mask`; the tokens alone, where a turn of the policy ends with a stop
    token, and the next begins where the chat template opens an assistant's message. A page that a
    tool returned can hold that, too: where the tokens show other turns than verl counted, all of
    them are the policy's own, and nothing in them is evidence. As with verl's own managers the last
    sequence of a rollout is scored.

    Raises `NoScoreError` for a rollout without a value, unless `abstained` says what to take
    instead, and `ConfigError` and `DialectError` for wrong settings.
    """

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        settings = dict(config.reward.get("reward_kwargs") or {})
        stop_tokens = list(settings.pop("stop_tokens", ()))
        unknown = sorted(set(stop_tokens) - tokenizer.get_vocab().keys())
        if unknown:
            raise ConfigError(f"stop_tokens: the tokenizer has no token {', '.join(unknown)}")
        self.scoring = scoring_of(**settings)
        self.stops = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(stop_tokens)]
        template = config.get("data", {}).get("apply_chat_template_kwargs") or {}
        self.opening = opening_of(tokenizer, **template)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The score of the rollout as verl takes it: `reward_score` and `reward_extra_info`."""
        rollout = data[-1]
        fields = rollout.non_tensor_batch
        handed_over = fields.get("tool_extra_fields") or {}
        info = {**(fields.get("extra_info") or {}), **handed_over}
        messages = info.get("messages")
        is_separated = True
        if messages is None:
            turns = int(fields.get("__num_turns__") or 0)
            messages, is_separated = self._read(rollout.batch, info.get("response_mask"), turns)
        values = values_of(fields["reward_model"]["ground_truth"], info)
        score = await self.scoring.ascore(list(messages), **values)
        result = result_of(self.scoring, score, not is_separated, STATE_WHERE_TURNS_END)
        return {"reward_score": result["score"], "reward_extra_info": result}

    def _read(self, batch: Any, mask: Any, turns: int) -> tuple[Messages, bool]:
        """The messages in the tokens, and whether they are the turns that verl counted: `turns` are
        the question, the policy's turns, and the responses between them; 0 where it is not known.
        """
        width = batch["responses"].shape[-1]
        length = int(batch["attention_mask"][-width:].sum())
        ids = batch["responses"][:length].tolist()
        if "response_mask" in batch.keys():  # noqa: SIM118 - a TensorDict's `in` asks its values
            mask = batch["response_mask"].tolist()
        has_mask = mask is not None
        if mask is None:
            mask = sampled_of(ids, self.stops, self.opening)
        messages = messages_of(self.tokenizer, ids, list(mask)[:length])
        if not turns:
            return messages, True
        policy_turns = sum(message["role"] == "assistant" for message in messages)
        # Fewer are usual, since the last ones may have been cut off; but not one alone.
        if policy_turns > turns // 2 and not has_mask:
            return messages_of(self.tokenizer, ids, [1] * length), False
        return messages, len(messages) > 1 or turns <= 2
