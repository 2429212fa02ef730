"""Compares the figures of a fault with their bars."""

import load


class Verdict:
    """The verdict on one fault. `say` receives a line for each figure. `measures`: figures of time
    and shares of a trace must hold their bars; with a short trace on a busy machine they are only
    printed."""

    def __init__(self, name, say=print, measures=True):
        self.name, self._say, self._measures = name, say, measures
        self.missed = []

    def note(self, what, figure):
        self._say(f"{self.name:24} {what:44} {figure}")

    def hold(self, what, figure, bar, held):
        self.note(what, f"{figure}  (bar {bar}){'' if held else '  MISSED'}")
        if not held:
            self.missed.append(f"{self.name}: {what}: {figure}, and the bar is {bar}")

    def none(self, what, count):
        self.hold(what, count, "0", count == 0)

    def all(self, what, count, bar):
        self.hold(what, count, bar, count == bar)

    def in_time(self, what, figure, bar, digits=2):
        self.hold(what, f"{figure:.{digits}f}", f"<= {bar:.{digits}f}",
                  figure <= bar or not self._measures)

    def share(self, what, figure, bar):
        self.hold(what, f"{figure:.3f}", f">= {bar:.3f}", figure >= bar or not self._measures)

    def answers(self, fleet, *lists):
        """Checks that no request failed, and that all answers equal the reference."""
        answers = [answer for some in lists for answer in some]
        failed = [answer for answer in answers if answer.result is None]
        asked_again = [answer for answer in answers if answer.result and answer.errors]
        wrong = sum(fleet.reference.is_wrong(answer) for answer in answers if answer.result)
        self.note("requests", f"{len(answers)}, of those asked of another worker "
                  f"{len(asked_again)}")
        for reason in sorted({answer.errors[0][:160] for answer in asked_again})[:3]:
            self.note("asked of another, since", reason)
        self.none("failed", len(failed))
        self.none("with other bits than cold", wrong)
        self.none("values rejected", fleet.count("shared_rejected_values"))
        for answer in failed[:3]:
            self.note("failed", answer.errors[-1][:200])

    def hits(self, before, after, share, what="hits after, of those before"):
        rate = load.hit_rate(before)
        self.note("hits before", f"{rate:.3f}")
        self.share(what, load.hit_rate(after) / rate if rate else 0.0, share)
