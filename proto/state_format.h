// The bytes of a saved inference before the snapshot of its keys and values.
//
// A state file is a prelude, the inference's tokens and sampler state, and a whole snapshot file
// (snapshot_format.h). The snapshot has all tokens but the last, which has no keys and values yet.
// Specification: docs/dev/snapshot-format.md. Parsers trust nothing: an error is kDataLoss and
// names the place, or kFailedPrecondition and names the part that differs. Pure functions, thread
// safe, no I/O.
#ifndef HEARTH_PROTO_STATE_FORMAT_H_
#define HEARTH_PROTO_STATE_FORMAT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/kv_layout.h"

namespace hearth {

struct SavedState {
  std::string request_id;
  std::string adapter;  // the saving worker's name for it; empty: none
  // Prompt and answer so far: at least two tokens; the last has no keys and values.
  std::vector<uint32_t> token_ids;
  uint32_t prompt_tokens = 0;  // the first of token_ids; the rest was generated
  // State of the sampler: its next draw depends only on this and the logits.
  uint64_t drawn = 0;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 0;
  uint64_t seed = 0;
  // Rules that change logits of single tokens, and min_p. A state without rules has version 1.
  struct Rules {
    double min_p = 0, repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
    std::vector<uint32_t> bias_ids, biases;  // biases: bits of float32
    std::vector<uint32_t> stop_ids, bad_ids;
    uint64_t min_tokens = 0;
    bool operator==(const Rules& other) const;
  };
  Rules rules;
};

// kFailedPrecondition: states with this layout cannot be saved, and why.
absl::Status CheckHasStates(const KvLayout& layout);

// Maximum number of draws of an inference, so that a counter ends.
inline constexpr uint64_t kMaxDraws = uint64_t{1} << 32;

// Bytes that ParseStatePrelude needs to read the sizes.
inline constexpr size_t kStatePreludeBytes = 32;
inline constexpr size_t kMaxStateTextBytes = 256;  // limit of a request id and of an adapter name

struct StatePrelude {
  uint32_t version = 0;
  uint32_t body_bytes = 0;
  uint64_t snapshot_offset = 0;
  uint64_t file_bytes = 0;
};
// `prefix`: at least kStatePreludeBytes.
absl::StatusOr<StatePrelude> ParseStatePrelude(absl::string_view prefix);

// Returns all bytes before a snapshot of `snapshot_bytes`. kInvalidArgument names the wrong field.
absl::StatusOr<std::string> BuildStateHeader(const SavedState& state, uint64_t snapshot_bytes);

struct StateFile {
  SavedState state;
  absl::string_view snapshot;  // borrowed; only its tokens were checked
};
// Parses a whole file. The snapshot must have the state's tokens.
absl::StatusOr<StateFile> ParseStateFile(absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_PROTO_STATE_FORMAT_H_
