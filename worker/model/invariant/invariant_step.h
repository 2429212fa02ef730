// InvariantStep: the rows of a step of an InvariantGemma: their buffers, their sequences, and the
// places of their keys and values. The rows of all parts follow one another in order. Private to
// hearth_invariant_model.
//
// The rows with wanted logits are the last rows of their part. After the last layer's keys and
// values only the wanted rows continue, without gaps between them.
//
// Thread safety: none. It keeps its memory for the next step. Its results are valid until Begin.
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

namespace hearth {

// InvariantPart: the tokens that a step of an InvariantGemma appends to one sequence. PrepareParts
// checks the parts of a step and makes room for them.

// `logits` receives the logits of the last `want` tokens: [want][vocab]; may be null if want is 0.
struct InvariantPart {
  InvariantKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  int want = 0;
  std::vector<float>* logits = nullptr;
};

// The most logits of a step: 2^28 floats, 1 GiB.
inline constexpr int64_t kStepLogitsMax = int64_t{1} << 28;

// Checks the parts of a step of model number `model`, then makes room for the step's rows in every
// Kv. Errors are those of InvariantGemma::Step; after an error nothing has changed.
absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model);

// The largest steps that a model will get, for the self-test.
struct StepLimits {
  uint32_t alone = 512;     // rows of a sequence alone in a step
  uint32_t together = 512;  // rows of several sequences
  uint32_t decodes = 16;    // sequences of one row each
};

// Columns of the rows' buffers.
struct StepColumns {
  int64_t hidden = 0, qkv = 0, attended = 0, gated = 0;
};

class InvariantStep {
 public:
  using Parts = absl::Span<const InvariantPart>;

  // Begins a step. REQUIRES: the parts' Kv have room for their tokens.
  void Begin(Parts parts, const StepColumns& columns);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t wanted() const { return static_cast<int64_t>(wanted_.size()); }
  int32_t token(int64_t row) const { return tokens_[static_cast<size_t>(row)]; }
  // The position after the last position of any part.
  int64_t end() const { return end_; }
  // The buffers shared by all layers: all of LayerRows except tokens, sequences and adapters.
  const LayerRows& shared() const { return shared_; }

  // Returns all rows, with the places of layer `number` of the parts' Kv. REQUIRES: `rope` has the
  // positions below end().
  LayerRows RowsOfLayer(int number, const RopeTable& rope);
  // Returns the wanted rows of that layer. Their x and queries have buffers of their own, which
  // AddWantedCopies fills.
  LayerRows WantedRowsOfLayer(int number);
  void AddWantedCopies(KernelPhases* phases) const;
  // Adds the sealing of the chunks that this step completes, in layer `number`. REQUIRES: earlier
  // loops of the list write all rows' keys and values to their blocks.
  void AddSealing(int number, KernelPhases* phases) const;

 private:
  // The places of a layer's keys and values, for each part.
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
  std::vector<int64_t> wanted_;  // row numbers in the step
  int64_t end_ = 0;
  LayerRows shared_;
  Rows wanted_x_, wanted_qkv_;
  std::deque<Places> places_;  // of the requested layers, in order
  std::deque<Workspace> rooms_;
  size_t rooms_used_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_STEP_H_
