"""Client of text_probe: one JSON line each way. Used by the oracle tests in this folder."""
import json
import subprocess


class Probe:
    def __init__(self, binary, model_dir):
        self._process = subprocess.Popen([binary, model_dir], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, op, **request):
        self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"text_probe ended with {self._process.wait()} on {op}")
        return json.loads(line)

    def close(self):
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise RuntimeError("text_probe failed")
