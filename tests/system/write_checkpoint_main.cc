// Writes a tiny random Gemma 3 checkpoint into a folder that exists, for tests of whole processes.
//
// Usage: write_checkpoint DIR LAYER_TYPES WINDOW HEADS KV_HEADS HEAD_DIM CONTEXT SEED
//        [VOCABULARY [bfloat16]]

#include <cstdio>
#include <cstdlib>

#include "tests/support/tiny_checkpoint.h"

int main(int argc, char** argv) {
  if (argc < 9 || argc > 11) {
    std::fprintf(stderr,
                 "usage: %s DIR LAYER_TYPES WINDOW HEADS KV_HEADS HEAD_DIM CONTEXT SEED "
                 "[VOCABULARY [bfloat16]]\n",
                 argv[0]);
    return 2;
  }
  hearth::TinyGeometry geometry;
  geometry.layer_types = argv[2];
  geometry.window = std::atoi(argv[3]);
  geometry.heads = std::atoi(argv[4]);
  geometry.kv_heads = std::atoi(argv[5]);
  geometry.head_dim = std::atoi(argv[6]);
  geometry.context_tokens = std::atoi(argv[7]);
  geometry.seed = std::strtoull(argv[8], nullptr, 10);
  geometry.bfloat16 = argc == 11;
  if (argc >= 10) geometry.vocab_size = std::atoi(argv[9]);
  hearth::WriteTinyCheckpoint(geometry, argv[1]);
  return 0;
}
