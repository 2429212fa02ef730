"""What a fault did, beside what it may do."""

import load


class Verdict:
    """Of one fault. `say`: told each figure as it comes."""

    def __init__(self, name, say=print):
        self.name, self._say = name, say
        self.missed = []

    def note(self, what, figure):
        self._say(f"{self.name:24} {what:44} {figure}")

    def hold(self, what, figure, bar, held):
        self.note(what, f"{figure}  (bar {bar}){'' if held else '  MISSED'}")
        if not held:
            self.missed.append(f"{self.name}: {what}: {figure}, and the bar is {bar}")

    def at_most(self, what, figure, bar, digits=0):
        self.hold(what, f"{figure:.{digits}f}", f"<= {bar:.{digits}f}", figure <= bar)

    def at_least(self, what, figure, bar, digits=3):
        self.hold(what, f"{figure:.{digits}f}", f">= {bar:.{digits}f}", figure >= bar)

    def answers(self, fleet, *lists):
        """None failed, and each has the bits of a worker without a store."""
        answers = [answer for some in lists for answer in some]
        failed = [answer for answer in answers if answer.result is None]
        asked_again = sum(1 for answer in answers if answer.result and answer.errors)
        wrong = sum(fleet.reference.is_wrong(answer) for answer in answers if answer.result)
        self.note("requests", f"{len(answers)}, of those asked of another worker {asked_again}")
        self.at_most("failed", len(failed), 0)
        self.at_most("with other bits than cold", wrong, 0)
        self.at_most("values rejected", fleet.count("shared_rejected_values"), 0)
        for answer in failed[:3]:
            self.note("failed", answer.errors[-1][:200])

    def hits(self, before, after, share, what="hits after, of those before"):
        rate = load.hit_rate(before)
        self.note("hits before", f"{rate:.3f}")
        self.at_least(what, load.hit_rate(after) / rate if rate else 0.0, share)
