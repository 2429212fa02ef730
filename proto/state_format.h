// The bytes of a saved inference: what comes before the snapshot of its keys and values.
//
// A state file is a prelude, the inference's tokens and the state of its sampler, and a whole
// snapshot file (snapshot_format.h) of all tokens but the last, which has no keys and values yet.
// docs/dev/snapshot-format.md specifies it. Parsing trusts nothing: every error is kDataLoss and
// says where, or kFailedPrecondition and names the part that differs. Pure, thread safe, no I/O.
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
  std::string adapter;  // the name that the saving worker knew it by; empty: none
  // Prompt and answer so far: at least two, the last without keys and values.
  std::vector<uint32_t> token_ids;
  uint32_t prompt_tokens = 0;  // of these; the rest was generated
  // The sampler: what it draws next depends on these and the logits alone.
  uint64_t drawn = 0;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 0;
  uint64_t seed = 0;
  // Rules of single tokens' logits, and min_p; a state without any is of version 1.
  struct Rules {
    double min_p = 0, repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
    std::vector<uint32_t> bias_ids, biases;  // the bits of float32
    std::vector<uint32_t> stop_ids, bad_ids;
    uint64_t min_tokens = 0;
    bool operator==(const Rules& other) const;
  };
  Rules rules;
};

// kFailedPrecondition: sequences of this layout have no saved states, and why.
absl::Status CheckHasStates(const KvLayout& layout);

// The most draws of an inference; a counter never ends.
inline constexpr uint64_t kMaxDraws = uint64_t{1} << 32;

// Bytes from which ParseStatePrelude reads the sizes.
inline constexpr size_t kStatePreludeBytes = 32;
inline constexpr size_t kMaxStateTextBytes = 256;  // of a request id, of an adapter's name

struct StatePrelude {
  uint32_t version = 0;
  uint32_t body_bytes = 0;
  uint64_t snapshot_offset = 0;
  uint64_t file_bytes = 0;
};
// `prefix`: at least kStatePreludeBytes.
absl::StatusOr<StatePrelude> ParseStatePrelude(absl::string_view prefix);

// Everything before a snapshot of `snapshot_bytes`. kInvalidArgument names the field that may not
// be so.
absl::StatusOr<std::string> BuildStateHeader(const SavedState& state, uint64_t snapshot_bytes);

struct StateFile {
  SavedState state;
  absl::string_view snapshot;  // borrowed; not looked at beyond its tokens
};
// Parses a whole file, whose snapshot must be of the state's tokens.
absl::StatusOr<StateFile> ParseStateFile(absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_PROTO_STATE_FORMAT_H_
