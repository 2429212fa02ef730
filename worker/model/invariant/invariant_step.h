// InvariantStep: the rows of a step of an InvariantGemma: their buffers, their sequences, and the
// places of their keys and values. The parts come one after the other, each in order. Private to
// hearth_invariant_model.
//
// Rows whose logits are wanted are the last of their part; they alone go on behind the last layer's
// keys and values, as the wanted rows, without those between them.
//
// Thread safety: none. Keeps its memory for the next step. Its results are valid until Begin.
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
// checks the parts of a step and makes memory for them.

// `logits` receives those of the last `want` tokens: [want][vocab]; may be null where none are
// wanted.
struct InvariantPart {
  InvariantKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  int want = 0;
  std::vector<float>* logits = nullptr;
};

// The most logits that a step gives: 1 GiB of them.
inline constexpr int64_t kStepLogitsMax = int64_t{1} << 28;

// Checks the parts of a step of the model of this number, then makes room for its rows in all Kv.
// After an error nothing has changed: those of InvariantGemma::Step.
absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model);

// The largest steps that a model will be given, for the self-test.
struct StepLimits {
  uint32_t alone = 512;     // rows of a sequence that nothing else is computed beside
  uint32_t together = 512;  // rows of several sequences
  uint32_t decodes = 16;    // sequences of one row each
};

// Columns of what rows go through.
struct StepColumns {
  int64_t hidden = 0, qkv = 0, attended = 0, gated = 0;
};

class InvariantStep {
 public:
  using Parts = absl::Span<const InvariantPart>;

  // REQUIRES: the parts' Kv have room for their tokens.
  void Begin(Parts parts, const StepColumns& columns);

  int64_t rows() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t wanted() const { return static_cast<int64_t>(wanted_.size()); }
  int32_t token(int64_t row) const { return tokens_[static_cast<size_t>(row)]; }
  // Behind the last position of any part.
  int64_t end() const { return end_; }
  // Memory shared by all layers: everything of LayerRows but tokens and sequences.
  const LayerRows& shared() const { return shared_; }

  // All rows in the layer of this number of the parts' Kv. REQUIRES: `rope` has positions to end().
  LayerRows RowsOfLayer(int number, const RopeTable& rope);
  // The wanted rows in it: theirs are x and queries of their own, which AddWantedCopies fills.
  LayerRows WantedRowsOfLayer(int number);
  void AddWantedCopies(KernelPhases* phases) const;
  // Seals the chunks that the rows fill, in the layer of this number, once all rows' keys and
  // values are in their blocks.
  void AddSealing(int number, KernelPhases* phases) const;

 private:
  // Where a layer's KV lie, of each part.
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
  std::vector<int64_t> wanted_;  // numbers of rows
  int64_t end_ = 0;
  LayerRows shared_;
  Rows wanted_x_, wanted_qkv_;
  std::deque<Places> places_;  // of the layers asked for, in turn
  std::deque<Workspace> rooms_;
  size_t rooms_used_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_STEP_H_
