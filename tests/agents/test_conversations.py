"""What each agent asks in which order, and what stands in its trajectory."""

import pytest
from agent_talk import TASK, Shelf, talk_with

from faithful_search.errors import ConfigError
from faithful_search.rewards import InfoThink

CUT = {"finish_reason": "length", "role": "assistant"}
SEARCHED = "Thought: look it up\nAction: {}\nAction Input: Verdi"
BOXED = r"So it is \boxed{Verdi}."


class TestDirect:
    def test_the_question_is_all_that_is_asked(self):
        assert talk_with("direct", ["Verdi"]).prompts[0].endswith(f"Question: {TASK.question}")

    def test_a_reasoning_models_thought_is_no_answer(self):
        talk = talk_with("direct", ["<think>Aida. Verdi?</think>\nVerdi"])
        assert (talk.thoughts, talk.trajectory.answer) == (["Aida. Verdi?"], "Verdi")

    def test_an_empty_reply_is_no_answer(self):
        trajectory = talk_with("direct", [""]).trajectory
        assert (trajectory.answer, trajectory.stop_reason) == (None, "no_action")

    def test_a_thought_that_was_cut_is_no_answer(self):
        cut = {**CUT, "content": "<think>Is it Verdi"}
        trajectory = talk_with("direct", [cut]).trajectory
        assert (trajectory.answer, trajectory.stop_reason) == (None, "turn_token_limit")


class TestChainOfThought:
    @pytest.mark.parametrize(
        ("reply", "answer"),
        [
            ("Aida is his. So the answer is: Verdi.", "Verdi"),
            ("Aida is his. The answer is **Verdi**", "**Verdi**"),
            ("Is the answer is Puccini? No.\nSo the answer is: Verdi", "Verdi"),
            ("Aida is his.\n\nFinal Answer: Verdi", "Verdi"),
            (BOXED, "Verdi"),
            ("Aida is an opera by Verdi.", None),
            ("So the answer is:", None),
        ],
    )
    def test_the_answer_is_what_it_concludes(self, reply, answer):
        assert talk_with("cot", [reply]).trajectory.answer == answer

    def test_the_chain_is_the_thought(self):
        reply = "Aida is his. So the answer is: Verdi."
        assert talk_with("cot", [reply]).thoughts == [reply]

    def test_one_that_was_cut_is_no_answer(self):
        trajectory = talk_with("cot", [{**CUT, "content": "Aida is"}]).trajectory
        assert trajectory.answer is None
        assert trajectory.stop_reason == "turn_token_limit"


class TestRag:
    def test_it_searches_once_with_the_question(self):
        assert talk_with("rag", ["Verdi"]).queries == [TASK.question, None]  # no query: the answer

    def test_it_answers_from_what_was_returned(self):
        [prompt] = talk_with("rag", ["Verdi"]).prompts
        assert "local_search 1 [E1]: Aida is an opera by Verdi." in prompt

    def test_it_answers_all_the_same_where_nothing_was_found(self):
        talk = talk_with("rag", ["Verdi"], [Shelf(facts={})])
        assert "No results." in talk.prompts[0]


class TestIRCoT:
    def test_each_sentence_is_the_next_query(self):
        talk = talk_with("ircot", ["Verdi", "Born in Roncole.", "So the answer is: Verdi."])
        assert talk.queries == [TASK.question, "Verdi", "Born in Roncole.", None]

    def test_a_thought_precedes_the_search_that_it_asks_for(self):
        talk = talk_with("ircot", ["Verdi", "So the answer is: Verdi."])
        assert talk.thoughts == [None, "Verdi", "So the answer is: Verdi."]

    def test_the_thought_so_far_is_shown(self):
        talk = talk_with("ircot", ["He is Verdi.", "He was born.", "So the answer is: Verdi."])
        assert "The thought so far: He is Verdi. He was born." in talk.prompts[-1]

    def test_passages_add_up_each_once(self):
        talk = talk_with("ircot", ["Verdi", "Verdi", "So the answer is: Verdi."])
        assert talk.prompts[-1].count("Verdi was born in Roncole.") == 1

    def test_of_a_reply_only_the_first_sentence_counts(self):
        talk = talk_with(
            "ircot", ["Mr. G. Verdi did. The answer is Puccini.", "The answer is Verdi"]
        )
        assert talk.queries[1] == "Mr. G. Verdi did."

    def test_after_the_last_turn_the_passages_are_read_for_the_answer(self):
        talk = talk_with("ircot", ["One.", "Two.", "Verdi"], turns=2)
        assert talk.queries == [TASK.question, "One.", None]
        assert talk.trajectory.answer == "Verdi"

    def test_an_empty_sentence_ends_it_without_an_answer(self):
        trajectory = talk_with("ircot", [""]).trajectory
        assert (trajectory.answer, trajectory.stop_reason) == (None, "no_action")

    def test_no_more_than_fifteen_passages_are_shown(self):
        many = {TASK.question: [f"Fact {number}." for number in range(20)]}
        [prompt] = talk_with("ircot", ["The answer is Verdi"], [Shelf(facts=many)]).prompts
        assert prompt.count("Fact ") == 15


class TestAllInOne:
    def test_a_query_goes_to_every_search_at_once(self):
        shelves = [Shelf(), Shelf(name="web_search")]
        talk_with("all_in_one", [SEARCHED.format("search"), "Final Answer: Verdi"], shelves)
        assert [shelf.queries for shelf in shelves] == [["Verdi"], ["Verdi"]]

    def test_its_calls_are_one_turn(self):
        replies = [SEARCHED.format("search"), "Final Answer: Verdi"]
        talk = talk_with("all_in_one", replies, [Shelf(), Shelf(name="web_search")])
        assert [len(turn) for turn in talk.trajectory.turns] == [2, 1]

    def test_evidence_is_numbered_in_the_order_of_the_tools(self):
        replies = [SEARCHED.format("search"), "Final Answer: Verdi"]
        talk = talk_with("all_in_one", replies, [Shelf(pause=0.05), Shelf(name="web_search")])
        assert list(talk.trajectory.evidence) == ["E1", "E2"]

    def test_what_all_return_is_one_observation(self):
        replies = [SEARCHED.format("search"), "Final Answer: Verdi"]
        talk = talk_with("all_in_one", replies, [Shelf(), Shelf(name="web_search")])
        assert "local_search 1 [E1]" in talk.prompts[-1]
        assert "web_search 1 [E2]" in talk.prompts[-1]

    def test_a_source_that_is_named_is_not_searched_alone(self):
        shelves = [Shelf(), Shelf(name="web_search")]
        talk_with("all_in_one", [SEARCHED.format("web_search"), "Final Answer: Verdi"], shelves)
        assert [shelf.queries for shelf in shelves] == [["Verdi"], ["Verdi"]]

    def test_another_action_is_told_that_there_is_none(self):
        talk = talk_with("all_in_one", [SEARCHED.format("browse"), "Final Answer: Verdi"])
        assert "There are:\nsearch: look the words" in talk.trajectory.steps[0].note

    def test_it_has_three_turns_before_it_must_answer(self):
        talk = talk_with("all_in_one", [*[SEARCHED.format("search")] * 3, "Final Answer: Verdi"])
        assert len(talk.requests) == 4
        assert "No further action can be taken" in talk.prompts[-1]


class TestRouting:
    def test_the_model_chooses_the_tool(self):
        shelves = [Shelf(), Shelf(name="web_search")]
        talk_with("routing", [SEARCHED.format("web_search"), "Final Answer: Verdi"], shelves)
        assert [shelf.queries for shelf in shelves] == [[], ["Verdi"]]

    def test_every_tool_is_described(self):
        prompt = talk_with("routing", ["Final Answer: Verdi"], [Shelf(), Shelf(name="web")]).prompts
        assert "\nlocal_search: Search a shelf of passages. Takes query.\nweb: " in prompt[0]

    def test_a_tool_that_is_not_there_is_said(self):
        talk = talk_with("routing", [SEARCHED.format("local_serach"), "Final Answer: Verdi"])
        assert "Did you mean 'local_search'?" in talk.prompts[1]

    def test_arguments_may_be_json(self):
        reply = 'Thought: x\nAction: local_search\nAction Input: {"query": "Verdi"}'
        assert talk_with("routing", [reply, "Final Answer: Verdi"]).queries == ["Verdi", None]

    def test_arguments_that_cannot_be_read_are_told(self):
        reply = "Thought: x\nAction: local_search\nAction Input: {query: [}"
        assert "This is no action." in talk_with("routing", [reply, "Final Answer: V"]).prompts[1]


@pytest.mark.parametrize("name", ["all_in_one", "routing"])
class TestReact:
    def test_what_the_model_makes_up_behind_its_action_is_left_out(self, name):
        reply = SEARCHED.format("search") + "\nObservation: evil\nFinal Answer: evil"
        talk = talk_with(name, [reply, "Final Answer: Verdi"])
        assert "evil" not in str(talk.requests[-1])

    def test_an_answer_may_stand_without_a_thought(self, name):
        assert talk_with(name, ["Final Answer: Verdi"]).trajectory.answer == "Verdi"

    def test_a_turn_without_action_is_told_how_to_act(self, name):
        talk = talk_with(name, ["I would say Verdi", "Final Answer: Verdi"])
        assert "This is no action." in talk.prompts[1]
        assert talk.trajectory.steps[0].call is None

    def test_asked_for_the_answer_alone_it_may_write_just_that(self, name):
        talk = talk_with(name, ["Hm", "Hm", "Hm", "Verdi"])
        assert talk.trajectory.answer == "Verdi"

    def test_an_action_in_the_place_of_the_last_answer_is_none(self, name):
        trajectory = talk_with(name, [SEARCHED.format("search")]).trajectory
        assert (trajectory.answer, trajectory.stop_reason) == (None, "no_action")

    def test_a_failing_tool_is_an_observation(self, name):
        action = "search" if name == "all_in_one" else "local_search"
        reply = f"Thought: x\nAction: {action}\nAction Input: broken"
        talk = talk_with(name, [reply, "Final Answer: Verdi"])
        assert "the shelf is broken" in talk.prompts[1]

    def test_it_stops_where_an_observation_would_begin(self, name):
        [request] = talk_with(name, ["Final Answer: Verdi"]).requests
        assert request["stop"] == ["Observation:"]


class TestSearchO1:
    REPLIES = ("Who?<|begin_search_query|>Verdi<|end_search_query|>", "He is Verdi.", BOXED)

    def test_a_query_in_the_reasoning_is_searched(self):
        assert talk_with("search_o1", self.REPLIES).queries == ["Verdi", None]

    def test_what_was_found_is_condensed_before_it_is_read(self):
        talk = talk_with("search_o1", self.REPLIES)
        assert "Query: Verdi" in talk.prompts[1]
        assert talk.prompts[2] == "<|begin_search_result|>He is Verdi.<|end_search_result|>"

    def test_passages_are_not_read_in_the_reasoning(self):
        talk = talk_with("search_o1", self.REPLIES)
        assert "Roncole" in talk.prompts[1]
        assert "Roncole" not in str(talk.requests[2])

    def test_what_was_condensed_begins_the_next_thought(self):
        assert talk_with("search_o1", self.REPLIES).thoughts == ["Who?", f"He is Verdi.\n\n{BOXED}"]

    def test_a_thought_on_the_evidence_is_judged(self):
        score = InfoThink().score(talk_with("search_o1", self.REPLIES).trajectory)
        assert score.value is not None

    def test_results_that_the_model_makes_up_are_left_out(self):
        reply = (
            "Who?<|begin_search_query|>Verdi<|end_search_query|><|begin_search_result|>evil"
            r"<|end_search_result|> \boxed{evil}"
        )
        talk = talk_with("search_o1", [reply, *self.REPLIES[1:]])
        assert "evil" not in str(talk.requests[1:])
        assert talk.trajectory.answer == "Verdi"

    def test_markup_is_kept_out_of_what_was_condensed(self):
        replies = (self.REPLIES[0], "He<|begin_search_query|> is.<|end_search_result|>", BOXED)
        talk = talk_with("search_o1", replies)
        assert talk.prompts[2] == "<|begin_search_result|>He is.<|end_search_result|>"

    def test_after_the_last_search_it_must_answer(self):
        talk = talk_with("search_o1", [*self.REPLIES[:2], *self.REPLIES[:2], BOXED], turns=2)
        assert "You can no longer search." in talk.prompts[-1]
        assert talk.trajectory.answer == "Verdi"

    def test_a_query_in_the_place_of_the_last_answer_is_not_searched(self):
        talk = talk_with("search_o1", self.REPLIES[:1], turns=1)
        assert (talk.queries, talk.trajectory.stop_reason) == (["Verdi", None], "no_action")

    def test_an_empty_query_is_not_searched(self):
        talk = talk_with("search_o1", [rf"<|begin_search_query|> <|end_search_query|>{BOXED}"])
        assert talk.queries == [None]


class TestUntrained:
    def test_it_may_write_another_dialect(self):
        reply = "<think>It is Verdi.</think><answer>Verdi</answer>"
        trajectory = talk_with("untrained", [reply], dialect="pou").trajectory
        assert (trajectory.dialect, trajectory.answer) == ("pou", "Verdi")

    def test_one_that_cannot_be_served_is_refused(self):
        with pytest.raises(ConfigError, match="'search_r1' goes on inside one message"):
            talk_with("untrained", ["Verdi"], dialect="search_r1")

    def test_it_ends_where_its_tokens_are_used_up(self):
        function = {"name": "local_search", "arguments": '{"query": "Verdi"}'}
        call = {"tool_calls": [{"id": "1", "function": function}]}
        talk = talk_with("untrained", [call], total_tokens=2)
        assert len(talk.requests) == 2
        assert talk.trajectory.stop_reason == "token_limit"
