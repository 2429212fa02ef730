// The bytes of a saved inference before the snapshot of its keys and values.
//
// A state file is a prelude, the inference's tokens and sampler state, and a whole snapshot file
// (snapshot_format.h). The snapshot has all tokens but the last, which has no keys and values yet.
// Specification: docs/dev/snapshot-format.md. Parsers trust nothing: an error is kDataLoss and
// names the place, or kFailedPrecondition and names the part that differs. Pure functions, thread
// safe, no I/O.
#ifndef HEARTH_PROTO_STATE_FORMAT_H_
#define HEARTH_PROTO_STATE_FORMAT_H_

#include <cstddef>
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
  std::string adapter;  // name that the saving worker has for the LoRA adapter; empty: none
  // The tokens of the prompt and the answer so far, at least two. The last token has no keys and
  // values yet.
  std::vector<uint32_t> token_ids;
  // how many of the first token_ids are the prompt; the other ids were generated
  uint32_t prompt_tokens = 0;
  // State of the sampler. Its next draw depends only on the fields from here on and the logits.
  uint64_t drawn = 0;
  double temperature = 0;
  uint32_t top_k = 0;
  double top_p = 0;
  uint64_t seed = 0;
  // Sampling settings that change the logits of single tokens, and min_p. The file of a state
  // without Rules and without a Grammar has version 1; with a Grammar, version 3.
  struct Rules {
    double min_p = 0, repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
    std::vector<uint32_t> bias_ids, biases;  // biases: the bits of float32 values
    std::vector<uint32_t> stop_ids, bad_ids;
    uint64_t min_tokens = 0;
    bool operator==(const Rules& other) const;
  };
  Rules rules;
  // The grammar of the answer's text. If the schema is empty, there is no grammar, and no other
  // field is set.
  struct Grammar {
    std::string json_schema;
    std::vector<std::string> triggers;
    bool lenient = false;
    std::string library;  // name and version of the grammar library that the worker used
    bool operator==(const Grammar& other) const;
  };
  Grammar grammar;
};

// Limits of a saved grammar, equal to the limits of a grammar in a request (worker/text/grammar.h).
inline constexpr size_t kMaxStateSchemaBytes = size_t{116} << 10;
inline constexpr size_t kMaxStateTriggers = 16, kMaxStateTriggerBytes = 64;

// Returns kFailedPrecondition with the reason if states of models with this layout cannot be saved.
absl::Status CheckHasStates(const KvLayout& layout);

// Maximum number of draws of an inference, so that the counter cannot overflow.
inline constexpr uint64_t kMaxDraws = uint64_t{1} << 32;

// Number of bytes from which ParseStatePrelude reads the sizes of the file's sections.
inline constexpr size_t kStatePreludeBytes = 32;
inline constexpr size_t kMaxStateTextBytes = 256;  // longest request id and longest adapter name

struct StatePrelude {
  uint32_t version = 0;
  uint32_t body_bytes = 0;
  uint64_t snapshot_offset = 0;
  uint64_t file_bytes = 0;
};
// Parses the prelude. REQUIRES: `prefix` has at least kStatePreludeBytes bytes.
absl::StatusOr<StatePrelude> ParseStatePrelude(absl::string_view prefix);

// Returns the bytes of a state file before its snapshot, which has `snapshot_bytes` bytes.
// kInvalidArgument names the invalid field.
absl::StatusOr<std::string> BuildStateHeader(const SavedState& state, uint64_t snapshot_bytes);

struct StateFile {
  SavedState state;
  absl::string_view snapshot;  // the snapshot file, borrowed; only its tokens were checked
};
// Parses a whole state file. Checks that the snapshot has the tokens of the state.
absl::StatusOr<StateFile> ParseStateFile(absl::string_view file);

}  // namespace hearth

#endif  // HEARTH_PROTO_STATE_FORMAT_H_
