"""The files of python -m hearth_cache.ask: questions, chats, token ids, and answers."""

import json
import os
import pathlib
import tempfile
import unittest

import python_support

from hearth_cache import PreconditionFailed
from hearth_cache.ask import _answers, _inputs
from hearth_cache.v1 import inference_pb2 as pb


def questions(lines, most=8, of_token_ids=False):
    return _inputs.parse_questions(lines, "Q: {question} A:", of_token_ids,
                                   pb.GenerateRequest(max_new_tokens=most))


class Questions(unittest.TestCase):

    def test_question_fields_are_parsed(self):
        made = questions('{"id": "q1", "question": "Who?", "kind": "names"}\n\n'
                         '{"ending": " and"}\r\n{"id": 7, "prompt": " so"}')
        self.assertEqual([(one.id, one.ending, one.kind) for one in made],
                         [("q1", "Q: Who? A:", "names"), ("3", " and", ""), ("7", " so", "")])
        (ids,) = questions('{"token_ids": [5, 7]}', of_token_ids=True)
        self.assertEqual(ids.ending, [5, 7])

    def test_invalid_question_line_is_named(self):
        for lines, said in (
                ('\n{"question": ', "line 2: is not a JSON object"),
                ("[1]", "line 1: is not a JSON object"),
                ("[" * 100_000, "line 1: is not a JSON object"),
                ('{"question": "a"}\n{"qestion": "b"}', 'line 2: has a wrong field or type: "q'),
                ('{"question": 3}', 'line 1: has a wrong field or type: "question"'),
                ('{"id": true, "ending": "a"}', 'line 1: has a wrong field or type: "id"'),
                ('{"question": "a", "ending": "b"}', "line 1: must have only one of"),
                ('{"id": "x"}', "line 1: must have one of"),
                ('{"ending": ""}', "line 1: must have one of"),
                ('{"token_ids": [-1]}', "line 1: has token_ids that are not"),
                ('{"token_ids": [true]}', "line 1: has token_ids that are not"),
                ('{"token_ids": [1]}', "line 1: has token_ids, but the context is text"),
                ('{"ending": "a"}\n{"id": 1, "ending": "b"}',
                 'line 2: repeats the id "1" of line 1'),
                ("\n \n", "has no question")):
            with self.assertRaises(ValueError, msg=lines) as caught:
                questions(lines)
            self.assertIn(said, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "line 1: has a text, but the context is token ids"):
            questions('{"ending": "a"}', of_token_ids=True)

    def test_question_digest_covers_ending_and_options(self):
        line = '{"id": "a", "ending": "x"}'
        (one,) = questions(line)
        for other, same in (('{"id": "b", "ending": "x", "kind": "k"}', True),
                            ('{"id": "a", "ending": "y"}', False)):
            self.assertEqual(questions(other)[0].sha256 == one.sha256, same)
        self.assertNotEqual(questions(line, 9)[0].sha256, one.sha256)
        digests = {questions(f'{{"token_ids": {ids}}}', of_token_ids=True)[0].sha256
                   for ids in ("[5, 7]", "[57]")}
        self.assertEqual(len(digests), 2)
        kept = _inputs.parse_questions(line, "{question}", False, pb.GenerateRequest(
            max_new_tokens=8, cache="CACHE_MODE_READ", keep_s=9, priority=1))
        self.assertEqual(kept[0].sha256, one.sha256, "where it is kept does not change it")


class Contexts(unittest.TestCase):

    def test_token_ids_parse_list_or_commas(self):
        for text in ("2,3,4", " 2, 3\n4\n", "[2, 3, 4]"):
            self.assertEqual(_inputs.parse_token_ids(text), [2, 3, 4])
        for text, said in (("2,x", 'token_ids[1] is "x"'), ("4294967296", "token_ids[0]"),
                           ("[]", "is empty"), ("-1", "token_ids[0]")):
            with self.assertRaises(ValueError) as caught:
                _inputs.parse_token_ids(text)
            self.assertIn(said, str(caught.exception))

    def test_chat_parses_parts_and_breakpoints(self):
        chat = _inputs.parse_chat(json.dumps([
            {"role": "system", "content": [{"type": "text", "text": "a", "cache_breakpoint": True},
                                           {"text": "b"}]},
            {"role": "user", "content": "c", "cache_breakpoint": True},
            {"role": "model", "content": "d", "token_ids": [5, 7]}]))
        self.assertEqual(chat, pb.Chat(messages=[
            pb.ChatMessage(role="system", parts=[
                pb.ContentPart(text="a", cache_breakpoint=True), pb.ContentPart(text="b")]),
            pb.ChatMessage(role="user", parts=[pb.ContentPart(text="c", cache_breakpoint=True)]),
            pb.ChatMessage(role="model", parts=[pb.ContentPart(text="d")], token_ids=[5, 7])]))

    def test_invalid_chat_message_is_named(self):
        for messages, said in (
                ({}, "the chat must be a list"), ([1], "chat messages[0] is not an object"),
                ([{"role": "user"}], "chat messages[0] has no content"),
                ([{"content": "a"}], "chat messages[0] has no role"),
                ([{"role": "user", "content": "a", "contents": 1}], 'unknown field "contents"'),
                ([{"role": "user", "content": [{"text": 1}]}], "has a part without text"),
                ([{"role": "user", "content": [{"type": "image", "text": "a"}]}], "has a part"),
                ([{"role": "user", "content": "a", "cache_breakpoint": 1}], "not true or false"),
                ([{"role": "user", "content": [], "cache_breakpoint": True}], "nothing before it"),
                ([{"role": "user", "content": "a", "token_ids": "5"}], "not all token ids")):
            with self.assertRaises(ValueError, msg=messages) as caught:
                _inputs.parse_chat(json.dumps(messages))
            self.assertIn(said, str(caught.exception))


class Answers(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, "answers.jsonl")

    def opened(self, context="c", inputs=()):
        """Opens the answer file, reads and closes it. Returns the AnswerFile."""
        made = _answers.AnswerFile(str(self.path), context, inputs)
        made.close()
        return made

    @staticmethod
    def question(name, sha256=None):
        return _inputs.Question(name, "x", "", sha256 or f"x-{name}")

    def append(self, name, model="m"):
        made = _answers.AnswerFile(str(self.path), "c")
        made.append(self.question(name), {"id": name, "answer": "Yes.\nNo."}, model)
        made.close()

    def line(self, name):
        return _answers.json_line({"id": name, "answer": "Yes.\nNo.", "context_sha256": "c",
                                   "question_sha256": f"x-{name}", "model": "m"})

    def test_earlier_answers_are_known(self):
        self.append("a")
        self.append("b")
        made = self.opened()
        self.assertEqual([made.has(self.question(name)) for name in "abc"], [True, True, False])
        self.assertEqual(self.path.read_text(), self.line("a") + "\n" + self.line("b") + "\n")

    def test_answer_from_other_model_is_refused(self):
        self.append("a")
        self.opened().check_model("m")
        with self.assertRaisesRegex(PreconditionFailed, "line 1 is of another model"):
            self.opened().check_model("n")

    def test_incomplete_last_line_is_replaced(self):
        whole, torn = self.line("a") + "\n", self.line("b")
        for size in (1, len(torn) // 2, len(torn)):
            self.path.write_text(whole + torn[:size])
            self.assertFalse(self.opened().has(self.question("b")))
            self.assertEqual(self.path.read_text(), whole + torn[:size], "not before an answer")
            self.append("c")
            self.assertEqual(self.path.read_text(), whole + self.line("c") + "\n")

    def test_file_without_answers_is_unchanged(self):
        for content in ("notes of mine", '{"question": 1}', '{"id": "q1"}', "notes of mine\n",
                        "{}\n", "[]\n", '{"id": 3}\n', "\xff\n", "[" * 100_000 + "\n"):
            self.path.write_text(content)
            with self.assertRaises(ValueError, msg=content[:40]):
                self.opened()
            self.assertEqual(self.path.read_text(), content)
        for path in (self.path.parent, "/dev/null"):
            with self.assertRaises((OSError, ValueError)):
                _answers.AnswerFile(str(path), "c")

    def test_input_file_is_not_overwritten(self):
        self.path.write_text("")
        os.link(self.path, self.path.with_name("other"))
        for inputs in ([str(self.path)], ["-", "/nonexistent", f"{self.path.parent}/./other"]):
            with self.assertRaisesRegex(ValueError, "is also an input file"):
                self.opened(inputs=inputs)

    def test_other_context_or_question_is_refused(self):
        self.append("a")
        with self.assertRaisesRegex(PreconditionFailed, "line 1 answers .* about another context"):
            self.opened("d")
        with self.assertRaisesRegex(PreconditionFailed, 'another question "a"'):
            self.opened().has(self.question("a", "x-other"))

    def test_long_answer_file_is_read(self):
        self.path.write_text("".join(self.line(str(i)) + "\n" for i in range(2000)))
        made = self.opened()
        self.assertTrue(all(made.has(self.question(name)) for name in ("0", "999", "1999")))

    def test_answer_file_allows_one_writer(self):
        first = _answers.AnswerFile(str(self.path), "c")
        with self.assertRaisesRegex(PreconditionFailed, "is being written by another program"):
            self.opened()
        first.close()
        self.opened()


if __name__ == "__main__":
    python_support.main()
