// Trace: requests as Mooncake's traces record them, one JSON object a line: timestamp (ms),
// input_length (tokens), hash_ids (one for each block of 512 tokens, the last one may be shorter).
// Other fields are not read. Blocks are equal when their ids and all ids before them are.
//
// Plain values. Files are input from outside: an error is a status that names file and line.
#ifndef HEARTH_CACHE_STORE_SIMULATE_TRACE_H_
#define HEARTH_CACHE_STORE_SIMULATE_TRACE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace hearth {

struct TraceRequest {
  int64_t at_ms = 0;
  uint32_t tokens = 0;
  std::vector<uint32_t> blocks;  // dense numbers from 0, in order of appearance
};

struct Trace {
  static constexpr uint32_t kBlockTokens = 512;
  // 50 million blocks: 200 MB here, and more than a day of a large service.
  static constexpr uint64_t kMaxBlocks = 50'000'000;
  static constexpr size_t kMaxLineBytes = size_t{1} << 20;
  static constexpr size_t kMaxUnpackedBytes = size_t{4} << 30;

  std::vector<TraceRequest> requests;
  uint32_t unique_blocks = 0;
  uint32_t unique_full_blocks = 0;  // without those that only end a prompt, short of 512 tokens
};

// `name`: for error texts.
absl::StatusOr<Trace> ReadTrace(std::istream& in, const std::string& name);
// Decompresses an xz-compressed file, whatever its name.
absl::StatusOr<Trace> ReadTraceFile(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_TRACE_H_
