"""An agent that chooses a tool and reads its result, in turns; each turn restores the turns before.

usage: agent.py WORKER TASK

The model chooses by a tool's letter: a logit bias allows only the letters' tokens.
"""

import datetime
import pathlib
import platform
import sys

from hearth_cache import Message, Worker, model, system, user


def now() -> str:
    return datetime.datetime.now().isoformat(timespec="seconds")


def files() -> str:
    return ", ".join(sorted(path.name for path in pathlib.Path().iterdir()))


TOOLS = {"A": ("the time now", now), "B": ("the files here", files),
         "C": ("the system", platform.platform)}
RULES = "You have these tools, each called by its letter:\n" + "\n".join(
    f"{letter}: tells {what}" for letter, (what, _) in TOOLS.items())


def main(address: str, task: str, turns: int = 3) -> None:
    with Worker(address) as worker:
        letters = {letter: worker.tokenize(letter).token_ids[-1] for letter in TOOLS}
        bias = {token: 100.0 for token in letters.values()}
        chat: list[Message] = [system(RULES, breakpoint=True),
                               user(f"{task}\nWhich tool do you need? Answer with its letter.")]
        for _ in range(turns):
            choice = worker.chat(chat, max_new_tokens=1, logit_bias=bias)
            letter = next(name for name, token in letters.items() if [token] == choice.token_ids)
            print(f"{letter} [{choice.cached_tokens} of {choice.prompt_tokens} tokens restored]")
            chat += [model(choice.text, choice.token_ids),
                     user(f"It says: {TOOLS[letter][1]()}\nWhich tool now? Give its letter.")]
        chat[-1] = user(f"{chat[-1].text}\nThat is all there is to know. What is your answer?")
        print(worker.chat(chat, max_new_tokens=64).text)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2])
