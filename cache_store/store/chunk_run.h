// ChunkRun: some whole chunks of a restore point, with the numbers that routers know them by.
//
// Plain values; the function reads the catalog, under the store's lock.
#ifndef HEARTH_CACHE_STORE_STORE_CHUNK_RUN_H_
#define HEARTH_CACHE_STORE_STORE_CHUNK_RUN_H_

#include <cstdint>
#include <optional>
#include <vector>

namespace hearth {

struct RestorePointEntry;

struct ChunkRun {
  uint32_t chunk_tokens = 0;
  uint32_t first_chunk = 0;         // its place in the prompt, from 0
  uint64_t parent_id = 0;           // of the chunk before the first; 0: there is none
  std::vector<uint64_t> ids;        // ChunkId() of each
  std::vector<uint32_t> token_ids;  // chunk_tokens for each
};

// Chunks of `point` from the one numbered `first` on: one, and more up to `most_tokens`. None when
// it has no such chunk, or ends inside a chunk: who counts in whole chunks cannot name its
// boundary.
std::optional<ChunkRun> ChunkRunOf(const RestorePointEntry& point, uint32_t first,
                                   uint32_t most_tokens);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CHUNK_RUN_H_
