// InvariantStep: the rows of one step of an InvariantGemma: their buffers, their sequences, and
// where their keys and values are stored. The rows of all parts are in order, one part after the
// other. Private to hearth_invariant_model.
//
// In each part, the last rows are those with wanted logits. After the keys and values of the last
// layer, only the wanted rows continue; their buffers contain no other rows.
//
// Thread safety: none. The buffers are reused by the next step. Results are valid until the next
// Begin.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_STEP_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_STEP_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/invariant_kv.h"
#include "worker/model/model_config.h"
#include "worker/model/step_logits.h"

namespace hearth {

// InvariantPart: the tokens that a step of an InvariantGemma appends to one sequence.

// `logits` receives the logits of the last `want` tokens: [want][vocabulary]. It may be null if
// want is 0. If `greedy`, the token of each greatest logit suffices: a device returns no logits.
struct InvariantPart {
  InvariantKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  int want = 0;
  StepLogits* logits = nullptr;
  bool greedy = false;
};

// Maximum logits of a step: 2^28 floats, 1 GiB.
inline constexpr int64_t kStepLogitsMax = int64_t{1} << 28;

// Checks the parts of a step of the model with number `model`, then allocates KV blocks for the
// rows of each part. Errors are those of InvariantGemma::Step; after an error nothing has changed.
absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model);

// Sizes of the largest steps that the engine will run, for the self-test.
struct StepLimits {
  uint32_t alone = 512;     // rows of a step with one sequence
  uint32_t together = 512;  // rows of a step with several sequences
  uint32_t decodes = 16;    // sequences of a step in which each has one row
};

// Number of columns of the row buffers.
struct StepColumns {
  int64_t hidden = 0, qkv = 0, attended = 0, gated = 0;
};

class InvariantStep {
 public:
  using Parts = absl::Span<const InvariantPart>;

  // Begins a step. REQUIRES: each part's Kv has blocks for the part's tokens (MakeRoom).
  void Begin(Parts parts, const StepColumns& columns);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t wanted() const { return static_cast<int64_t>(wanted_.size()); }
  int32_t token(int64_t row) const { return tokens_[static_cast<size_t>(row)]; }
  // Returns the maximum, over all parts, of the position after the part's last token.
  int64_t end() const { return end_; }
  // Returns the buffers that all layers use: all members of LayerRows except tokens, sequences and
  // adapters.
  const LayerRows& shared() const { return shared_; }

  // Returns all rows, with the places of their keys and values in layer `number`. REQUIRES: `rope`
  // covers the positions below end().
  LayerRows RowsOfLayer(int number, const RopeTable& rope);
  // Returns the wanted rows for layer `number`. Their x and qkv are separate buffers, which
  // AddWantedCopies fills.
  LayerRows WantedRowsOfLayer(int number);
  void AddWantedCopies(KernelPhases* phases) const;
  // Adds the sealing, in layer `number`, of the chunks that this step completes. REQUIRES: earlier
  // loops of the list write the keys and values of all rows to their blocks.
  void AddSealing(int number, KernelPhases* phases) const;

 private:
  // For one layer: where the keys and values of each part are stored.
  struct Places {
    std::vector<QkvToken> tokens;
    std::vector<AttendSequence> sequences;
    std::vector<std::vector<const std::byte*>> splits, sealed;
    std::vector<AdapterRows> adapters;
  };
  Places& NextPlaces();
  static void AddSequence(size_t part, int number, int64_t begin, int64_t rows,
                          const InvariantKv& kv, Places* places);
  Rows Room(int64_t rows, int64_t columns);

  Parts parts_;
  StepColumns columns_;
  std::vector<int32_t> tokens_;
  std::vector<int64_t> wanted_;  // indices of the wanted rows in the step
  int64_t end_ = 0;
  LayerRows shared_;
  Rows wanted_x_, wanted_qkv_;
  std::deque<Places> places_;  // one element for each requested layer, in order
  std::deque<Workspace> rooms_;
  size_t rooms_used_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_STEP_H_
