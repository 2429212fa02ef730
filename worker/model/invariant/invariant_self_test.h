// InvariantSelfTest: checks that a model computes on this machine what the class `invariant`
// promises, on the path of requests: a row's bits do not depend on the rows beside it, and are
// those of the kernels' reference.
//
// One local and one global layer take a window, a chunk and a row: all rows at once, then the last
// M of them again, for each M, and twice as several sequences: as many as decode, each at another
// row, and as many rows as a step has at most, of different lengths, as one has them that decodes
// and prefills. After
// every operation the first, the middle and the last row of a sequence must have the bits that they
// had among all. The head takes a few rows likewise. With the smallest M the first row goes through
// the scalar references too, operation by operation, and with M = 1 so do some of the head's
// outputs: what holds for these rows holds for all M then.
//
// Thread safety: none; no step of the model may run meanwhile. It leaves the model as it was.
// Errors: kFailedPrecondition names the operation, the layer and M.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "proto/fingerprint.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/packed_weights.h"
#include "worker/model/invariant/invariant_forward.h"
#include "worker/model/invariant/step_limits.h"

namespace hearth {

// InvariantReference: computes one row through one layer by the kernels' scalar references, to
// compare the result of each operation bit by bit.
//
// Thread safety: none. Weights and places must outlive it.

// Where a row is in its sequence, and its layer's keys and values.
struct ReferencePlace {
  int64_t position = 0;
  QkvToken token;
  std::vector<const std::byte*> blocks;  // of all splits that it sees
};

class InvariantReference {
 public:
  // `x` and `normed`: the row as the layer begins with it.
  InvariantReference(const LayerWeights& weights, const float* next_norm, ReferencePlace place,
                     std::vector<float> x, std::vector<float> normed);

  // Whether `row` has the bits of the next operation's result, in the order in which a layer
  // reports them. After the rotation it also checks the row's keys and values in their block.
  bool Matches(const float* row, int64_t columns);

  // Equal as bits, or both NaN: which one is left open.
  static bool SameBits(const float* a, const float* b, int64_t count);

 private:
  using Row = std::vector<float>;
  static Row ProductOf(const Row& x, const PackedWeights& weights);
  Row NormOf(const Row& x, const float* scale) const;
  void NormAndRotate();
  bool KeysAndValuesHold() const;
  Row Attention() const;
  Row GeluOfGateTimesUp() const;

  const LayerWeights weights_;
  const float* const next_norm_;
  const ReferencePlace place_;
  int operation_ = 0;
  Row x_, normed_;
  Row last_;  // result of the operation before
};

class InvariantSelfTest {
 public:
  // `layout`: of the model's Kv. All must outlive it.
  InvariantSelfTest(const InvariantWeights& weights, const KvLayout& layout,
                    InvariantForward* forward, const StepLimits& limits);
  absl::Status Run();
  // How many of `decodes` sequences one step has here, where a slice of a chunk has so many bytes.
  static int DecodesTried(uint32_t decodes, uint64_t slice_bytes);
  int passes() const { return passes_; }

 private:
  // Of a sequence, in one step.
  struct Piece {
    int begin = 0, rows = 0;
  };
  using Pieces = std::vector<Piece>;

  // Each piece through the two layers, in one step.
  absl::Status Pass(const Pieces& pieces);
  absl::Status PassOfSequences(const Pieces& pieces);
  absl::Status Layers(const std::vector<InvariantPart>& parts);
  std::vector<int32_t> TokensOf(const Piece& piece) const;
  // The last rows of the pass before, by the final norm.
  std::vector<float> LastRows(int64_t count) const;
  absl::Status Head(const std::vector<float>& rows);
  absl::Status HeadByReference(const float* row, const float* logits) const;
  // Of row `begin`, which the layer is about to begin with.
  InvariantReference ReferenceOf(const InvariantLayer& layer, int number, int begin,
                                 const std::vector<float>& next_norm);
  void See(const char* operation, const Rows& values, int64_t columns, bool local);
  void Remember(const Rows& values, int64_t columns, uint64_t number);
  std::string AmongRows() const;

  const InvariantWeights& weights_;
  const ModelConfig& config_;
  InvariantForward* const forward_;
  std::vector<int> layers_;       // numbers of the two
  int rows_ = 0;                  // W + C + 1
  std::vector<int> sizes_;        // M
  std::vector<Pieces> together_;  // steps of several sequences
  std::set<int> compared_;        // rows
  Pieces pieces_;                 // of this pass
  std::unique_ptr<KvBlocks> arena_;
  InvariantKv kv_;
  std::unordered_map<uint64_t, uint64_t> expected_;  // by operation's number and row
  uint64_t operation_ = 0;                           // of this pass
  std::optional<InvariantReference> reference_;      // of this pass's first row, in this layer
  int passes_ = 0;
  absl::Status status_;
};

// SelfTestMemory: remembers between starts that the self-test of a model passed on this machine.
//
// Keyed by the weights and their form, the kernels' version, C, the steps that were tried, the
// instruction set, the CPU and the program's file: each of them may change the bits. Only passed
// tests are remembered.
//
// Thread safety: as const. A folder that cannot be read or written costs time only.
class SelfTestMemory {
 public:
  // `cache_dir` may be empty: then nothing is remembered. `form`: of the weights.
  SelfTestMemory(const std::string& cache_dir, const Digest& weights, WeightForm form,
                 int64_t chunk, const StepLimits& limits);
  bool HasPassed() const;
  void Remember() const;

 private:
  std::string file_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
