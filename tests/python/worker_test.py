"""Worker and AsyncWorker against a real worker and store, on a tiny model."""

import asyncio
import json

from python_support import CHUNK_TOKENS, PythonTest, main, prompt

from hearth_cache import (
    AsyncWorker, InvalidRequest, Message, NotFound, PreconditionFailed, Store, Worker, model,
    system, user)
from hearth_cache.v1 import inference_pb2

NEW_TOKENS = 5
RULES = "the lighthouse keeper writes down each ship that passes, and the hour. " * 3
CHAT = [system(RULES, breakpoint=True), user("which ship came first?")]


class Answers(PythonTest):
    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.made = self.text_model(context_tokens=8192)
        node = self.worker(self.made, self.store.address, pool_bytes=16 << 20)
        self.worker_address = node.address
        self.client = Worker(node.address)
        self.addCleanup(self.client.close)

    def cold(self, asked, **options):
        return self.client.generate(asked, cache="off", **options)

    def test_answer_equals_hearthctl_answer(self):
        ids = prompt(50, 1)
        there = self.cluster.generate(self.worker_address, ids, max_new_tokens=NEW_TOKENS)
        answer = self.client.generate(ids, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        self.assertEqual(answer.token_ids, there["token_ids"])
        self.assertEqual((answer.prompt_tokens, answer.finish_reason), (50, "length"))
        self.assertEqual(there["cached_tokens"], 0)
        self.assertGreaterEqual(answer.cached_tokens, 48)
        self.assertEqual(answer.source_tier, "worker")

    def test_chat_stream_restores_breakpoint(self):
        self.assertEqual(self.client.chat(CHAT, max_new_tokens=1).cached_tokens, 0)
        other = [CHAT[0], user("and which one last?")]
        with self.client.stream(other, max_new_tokens=NEW_TOKENS, ignore_eos=True) as stream:
            pieces = [token.text for token in stream]
        kept = len(self.client.tokenize(CHAT[:1], omit_generation_prompt=True).token_ids)
        self.assertEqual(stream.answer.cached_tokens, kept)
        self.assertEqual("".join(pieces), stream.answer.text)
        whole = self.cold(other, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        self.assertEqual(whole.token_ids, stream.answer.token_ids)

    def test_next_turn_reuses_answer_tokens(self):
        first = self.client.chat(CHAT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        turns = [*CHAT, model(first.text, first.token_ids), user("why?")]
        made = list(self.client.tokenize(turns).token_ids)
        begin = first.prompt_tokens
        self.assertEqual(made[begin:begin + NEW_TOKENS], first.token_ids)
        self.assertIsInstance(turns[2], Message)

    def test_sampling_options_reach_worker(self):
        seeded = {"temperature": 1.5, "seed": 7, "top_k": 40, "max_new_tokens": NEW_TOKENS,
                  "ignore_eos": True}
        once, again = (self.client.generate([2, 3, 4], **seeded) for _ in range(2))
        self.assertEqual(once.token_ids, again.token_ids)
        self.assertEqual(once.started.seed, 7)
        several = self.client.generate([2, 3, 4], n=3, logprobs=2, **seeded)
        self.assertEqual(several.samples[0].token_ids, once.token_ids)
        self.assertEqual([len(one.logprobs) for one in several.samples], 3 * [NEW_TOKENS])
        biased = self.client.generate([2, 3, 4], max_new_tokens=1, logit_bias={9: 100.0})
        self.assertEqual(biased.token_ids, [9])
        stopped = self.client.generate([2, 3, 4], logit_bias={9: 100.0}, stop_token_ids=[9])
        self.assertEqual(stopped.finish_reason, "stop")

    def test_invalid_request_names_field(self):
        with self.assertRaises(InvalidRequest) as caught:
            self.client.generate([2, 3], top_p=3.0)
        self.assertEqual(caught.exception.field, "sampling.top_p")
        with self.assertRaises(InvalidRequest):
            self.client.generate([2, 100_000])
        with self.assertRaisesRegex(ValueError, "empty"):
            self.client.generate([])

    def test_explain_reports_prefilled_tokens(self):
        ids = prompt(6 * CHUNK_TOKENS + 3, 2)
        made = self.client.prefill(ids, breakpoints=[40], ttl_s=1000, durability="disk")
        self.assertEqual(made.published.published_tokens, 6 * CHUNK_TOKENS)
        self.assertIn(40, made.boundaries)
        told = self.client.explain(ids)
        self.assertEqual(told.usable_tokens, 6 * CHUNK_TOKENS)
        self.assertTrue([one for one in told.boundaries if one.boundary == 40 and one.usable])
        self.assertEqual(self.client.model().chunk_tokens, CHUNK_TOKENS)

    def test_retention_hints_are_stored(self):
        kept = {"keep_s": 100, "priority": 3}
        self.client.generate(prompt(49, 6), max_new_tokens=1, wait_published=True, **kept)
        self.client.prefill(prompt(49, 7), **kept)
        with Store(self.store.address) as store:
            points = store.list()
        self.assertGreaterEqual(len(points), 2)
        self.assertEqual({point.priority for point in points}, {3})
        self.assertGreater(min(point.kept_s for point in points), 50)

    def test_saved_state_continues_elsewhere(self):
        whole = self.client.generate(prompt(40, 3), max_new_tokens=8, ignore_eos=True)
        first = self.client.generate(prompt(40, 3), max_new_tokens=3, ignore_eos=True)
        path = self.folder / "state"
        self.client.save_state(first.request_id, path)
        other = self.worker(self.made, "none", pool_bytes=16 << 20)
        with Worker(other.address) as there:
            state = there.load_state(path)
            rest = there.generate(list(state.token_ids), max_new_tokens=5, ignore_eos=True,
                                  first_draw=state.first_draw)
            with self.assertRaises(PreconditionFailed):
                there.explain(prompt(40, 3))
        self.assertEqual(first.token_ids + rest.token_ids, whole.token_ids)
        self.assertEqual(rest.cached_tokens, state.computed_tokens)
        with self.assertRaises(NotFound):
            self.client.save_state("nobodys", path)

    def test_answer_obeys_json_schema(self):
        schema = {"type": "array", "items": {"enum": ["lamp", 7]}, "minItems": 2, "maxItems": 2}
        sampled = {"temperature": 1.0, "seed": 3, "max_new_tokens": 60}
        answers = [self.client.generate(CHAT, json_schema=one, **sampled)
                   for one in (schema, json.dumps(schema))]
        value = json.loads(answers[0].text)
        self.assertEqual(len(value), 2)
        self.assertLessEqual(set(value), {"lamp", 7})
        self.assertEqual(answers[1].token_ids, answers[0].token_ids)
        told = list(self.client.ask(CHAT[:1], ["where?"], json_schema={"const": "lamp"},
                                    max_new_tokens=20))
        self.assertEqual(told[0].answer.text, '"lamp"')
        with self.assertRaises(InvalidRequest) as caught:
            self.client.generate(CHAT, json_schema={"not": {}})
        self.assertEqual(caught.exception.field, "grammar.json_schema")
        with self.assertRaisesRegex(ValueError, "exclude each other"):
            self.client.generate(CHAT, json_schema={}, grammar=inference_pb2.Grammar())

    def test_saved_state_keeps_grammar(self):
        schema = {"type": "string", "minLength": 40, "maxLength": 60}
        whole = self.client.generate(CHAT, json_schema=schema, max_new_tokens=200)
        self.assertGreater(len(whole.token_ids), 4)
        first = self.client.generate(CHAT, json_schema=schema, max_new_tokens=4)
        path = self.folder / "state"
        self.client.save_state(first.request_id, path)
        state = self.client.load_state(path)
        rest = self.client.generate(list(state.token_ids), grammar=state.grammar,
                                    first_draw=state.first_draw, max_new_tokens=200)
        self.assertEqual(first.token_ids + rest.token_ids, whole.token_ids)
        self.assertGreaterEqual(len(json.loads(first.text + rest.text)), 40)
        free = self.client.generate(CHAT, max_new_tokens=1, grammar=inference_pb2.Grammar())
        self.assertEqual(free.token_ids, self.cold(CHAT, max_new_tokens=1).token_ids)

    def test_questions_share_cached_context(self):
        questions = [f"what came at hour {hour}?" for hour in range(12)]
        for context, put in ((RULES * 30, "\nQ: {question}\nA:"), (CHAT[:1], None)):
            options = {} if put is None else {"template": put}
            told = list(self.client.ask(context, questions, max_new_tokens=2, ignore_eos=True,
                                        parallel=3, **options))
            self.assertEqual(sorted(one.number for one in told), list(range(12)))
            for one in told:
                self.assertGreater(one.answer.cached_tokens, 0.8 * one.answer.prompt_tokens
                                   if put else 40)
            one = told[-1]
            self.assertEqual(one.question, questions[one.number])
            alone = self.cold(
                context + put.replace("{question}", one.question) if put
                else [*context, user(one.question)], max_new_tokens=2, ignore_eos=True)
            self.assertEqual(one.answer.token_ids, alone.token_ids)
            self.assertEqual(one.answer.prompt_tokens, alone.prompt_tokens)

    def test_refused_question_spares_others(self):
        told = {one.number: one for one in self.client.ask(
            prompt(40, 4), [[5], [100_000], [7]], max_new_tokens=1)}
        self.assertIsInstance(told[1].error, InvalidRequest)
        self.assertEqual([told[i].answer.cached_tokens for i in (0, 2)], [40, 40])

    def test_async_worker_answers_like_worker(self):
        ids = prompt(50, 5)
        want = self.cold(ids, max_new_tokens=NEW_TOKENS, ignore_eos=True)

        async def run():
            async with AsyncWorker(self.worker_address) as worker:
                several = await asyncio.gather(*[
                    worker.generate(ids, max_new_tokens=NEW_TOKENS, ignore_eos=True)
                    for _ in range(4)])
                async with worker.stream(ids, max_new_tokens=NEW_TOKENS,
                                         ignore_eos=True) as stream:
                    pieces = [token.text async for token in stream]
                told = [one async for one in worker.ask(ids, [[5], [6], [100_000]],
                                                        max_new_tokens=1)]
                path = self.folder / "async-state"
                await worker.save_state(stream.answer.request_id, path)
                state = await worker.load_state(path)
                warm = await worker.prefill(ids)
                return several, "".join(pieces), stream.answer, told, state, warm

        several, text, streamed, told, state, warm = asyncio.run(run())
        self.assertEqual({tuple(one.token_ids) for one in several}, {tuple(want.token_ids)})
        self.assertEqual((text, streamed.token_ids), (want.text, want.token_ids))
        self.assertEqual(sorted(one.number for one in told if one.error is None), [0, 1])
        self.assertEqual(list(state.token_ids), ids + want.token_ids)
        self.assertGreater(warm.cached_tokens, 0)


if __name__ == "__main__":
    main()
