"""LoRA adapters with real processes: workers share the prefixes of an adapter if they have the same
adapter, under any name; other workers do not find them."""

import json
import random
import struct

import system_support
from system_support import ProcessFailed, SystemTest, prompt

HIDDEN, RANK = 32, 2


def write_adapter(folder, seed, projections=None):
    """Writes an adapter in PEFT's format. `projections`: {name: (inputs, outputs)}; None: the
    output projection of layer 0 of "irregular"."""
    folder.mkdir()
    source = random.Random(seed)
    header, data = {}, bytearray()
    projections = projections or {"0.self_attn.o_proj": (64, HIDDEN)}
    for name, (inputs, outputs) in projections.items():
        for matrix, shape in (("lora_A", (RANK, inputs)), ("lora_B", (outputs, RANK))):
            begin, count = len(data), shape[0] * shape[1]
            data += struct.pack(f"<{count}f", *(source.uniform(-0.4, 0.4) for _ in range(count)))
            header[f"base_model.model.model.layers.{name}.{matrix}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": RANK, "lora_alpha": 4, "bias": "none"}))
    return folder


class Adapters(SystemTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.made = self.model("irregular")
        self.legal = write_adapter(self.folder / "legal", 1)
        self.medical = write_adapter(self.folder / "medical", 2)

    def start(self, *adapters):
        flags = [word for adapter in adapters for word in ("--adapter", adapter)]
        return self.worker(self.made, self.store.address, *flags)

    def generate(self, worker, *flags):
        return self.cluster.generate(worker.address, prompt(120, 1), "--wait-published", *flags,
                                     max_new_tokens=5)

    def test_workers_share_adapter_prefixes(self):
        first = self.start(f"legal={self.legal}", f"medical={self.medical}")
        second = self.start(f"law={self.legal}")
        cold = self.generate(first, "--adapter", "legal")
        self.assertEqual(cold["cached_tokens"], 0)
        warm = self.generate(second, "--adapter", "law")
        self.assertEqual(warm["cached_tokens"], 112)
        self.assertEqual(warm["token_ids"], cold["token_ids"])
        self.assertEqual(warm["first_logits_sha256"], cold["first_logits_sha256"])
        seen = {cold["first_logits_sha256"]}
        for worker, flags in ((second, ()), (first, ("--adapter", "medical"))):
            other = self.generate(worker, *flags)
            self.assertEqual(other["cached_tokens"], 0)
            seen.add(other["first_logits_sha256"])
        self.assertEqual(len(seen), 3)

    def test_commands_accept_adapter_name(self):
        worker = self.start(f"legal={self.legal}")
        file = self.folder / "warm.yaml"
        ids = ", ".join(map(str, prompt(90, 3)))
        file.write_text(f"prompts:\n  - token_ids: [{ids}]\n    adapter: legal\n")
        warmed = self.cluster.ctl("warm", "--worker", worker.address, "--file", file)
        self.assertEqual(warmed["coverage"], 1)
        explained = {flags: self.cluster.ctl("explain", "--worker", worker.address, "--token-ids",
                                             ids.replace(" ", ""), *flags)
                     for flags in ((), ("--adapter", "legal"))}
        self.assertEqual(explained["--adapter", "legal"]["usable_tokens"], 80)
        self.assertEqual(explained[()]["usable_tokens"], 0)
        self.assertEqual(explained[()]["other_fingerprints"][0]["field"], "adapters_sha256")
        listed = self.cluster.ctl("model", "--worker", worker.address)["adapters"]
        self.assertEqual([(a["name"], a["rank"]) for a in listed], [("legal", RANK)])
        for command in (("generate", "--max-new-tokens", "1"), ("explain",)):
            with self.assertRaises(ProcessFailed) as refused:
                self.cluster.ctl(*command, "--worker", worker.address, "--token-ids", "2,3",
                                 "--adapter", "law")
            self.assertIn("this worker has only legal", str(refused.exception))

    def test_missing_adapter_stops_start(self):
        said = self.fails_to_start(
            "hearth-worker", "--model", self.made, "--store", "none", "--listen", "127.0.0.1:0",
            "--adapter", f"legal={self.folder}/nowhere")
        self.assertIn("adapter legal: ", said)
        self.assertIn("nowhere/adapter_config.json", said)


if __name__ == "__main__":
    system_support.main()
