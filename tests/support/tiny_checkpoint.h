// Writes small Gemma 3 checkpoints with random weights: config.json and model.safetensors.
//
// Equal geometry and seed give equal bytes. Thread safety: pure functions, except for the files.
#ifndef HEARTH_TESTS_SUPPORT_TINY_CHECKPOINT_H_
#define HEARTH_TESTS_SUPPORT_TINY_CHECKPOINT_H_

#include <cstdint>
#include <string>

namespace hearth {

struct TinyGeometry {
  std::string layer_types = "llgl";  // one letter per layer: l local, g global
  int window = 24;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int hidden_size = 32;
  int intermediate_size = 64;
  int vocab_size = 160;
  int context_tokens = 512;
  uint64_t seed = 1;
  bool bfloat16 = false;  // the same weights, truncated to bfloat16
};

// Writes to `dir`, which must exist. Aborts on failure: a test without its data would prove
// nothing.
void WriteTinyCheckpoint(const TinyGeometry& geometry, const std::string& dir);

// Writes a checkpoint to a new folder in the system's temporary folder and returns the folder's
// path. The folder is removed when the program ends.
std::string NewTinyCheckpoint(const TinyGeometry& geometry, const std::string& name);

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_TINY_CHECKPOINT_H_
