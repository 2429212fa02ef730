"""Questions about one document, which is computed once and restored for each of them.

usage: rag.py WORKER DOCUMENT QUESTION...
"""

import pathlib
import sys

from hearth_cache import Message, Worker, model, system, user


def main(address: str, document: str, questions: list[str]) -> None:
    text = pathlib.Path(document).read_text(encoding="utf-8")
    chat: list[Message] = [
        system(f"Answer from this document alone.\n\n{text}", breakpoint=True)]
    with Worker(address) as worker:
        for question in questions:
            chat.append(user(question))
            print(f"\n> {question}")
            with worker.stream(chat, max_new_tokens=128) as stream:
                for token in stream:
                    print(token.text, end="", flush=True)
            answer = stream.answer
            print(f"\n[{answer.cached_tokens} of {answer.prompt_tokens} tokens restored, "
                  f"first token after {answer.finished.ttft_ms:.0f} ms]")
            # Passes the answer's token ids, so that the next request can restore the prompt and
            # this answer from the cache.
            chat.append(model(answer.text, answer.token_ids))


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
