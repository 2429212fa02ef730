// InvariantSelfTest: checks that a model computes on this machine what the class `invariant`
// promises, on the path of requests: a row's bits do not depend on the rows beside it, and are
// those of the kernels' reference.
//
// One local and one global layer take a window, a chunk and a row: all rows at once, then the last
// M of them again, for each M, and twice as several sequences: as many as decode, each at another
// row, and as many rows as a step has at most, of different lengths, as one has them that decodes
// and prefills. After
// every operation the first, the middle and the last row of a sequence must have the bits that they
// had among all, and where it is alone so must their keys and values. The head takes a few rows
// likewise. With M = 1 the row goes through the scalar references once more (KernelTarget::kPlain),
// and so do some of the head's outputs: what holds for this row holds for all M then.
//
// Thread safety: none; no step of the model may run meanwhile, and steps of others are as slow as
// the references. It leaves the model as it was.
// Errors: kFailedPrecondition names the operation, the layer and M.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/fingerprint.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/model/invariant/invariant_step.h"

namespace hearth {

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
  absl::Status Head(const std::vector<float>& rows);
  absl::Status HeadByReference(const float* row, const float* logits) const;
  // The next operation's results, as digests of the row at a position, which the step has as `row`.
  using RowDigests = absl::FunctionRef<uint64_t(int position, int row)>;
  void CheckRows(const char* operation, bool local, RowDigests digests);
  void CheckKeysAndValues();
  std::string AmongRows() const;

  const InvariantWeights& weights_;
  const ModelConfig& config_;
  InvariantForward* const forward_;
  std::vector<int> layers_;                   // numbers of the two
  int rows_ = 0;                              // W + C + 1
  std::vector<int> sizes_;                    // M
  std::vector<Pieces> together_;              // steps of several sequences
  std::set<int> compared_;                    // rows
  Pieces pieces_;                             // of this pass
  std::vector<std::pair<int, int>> checked_;  // in this pass: positions, and their rows in the step
  std::unique_ptr<KvBlocks> arena_;
  InvariantKv kv_;
  std::unordered_map<uint64_t, uint64_t> expected_;  // by operation's number and row
  uint64_t operation_ = 0;                           // of this pass
  bool by_reference_ = false;                        // this pass
  int passes_ = 0;
  absl::Status status_;
};

// Returns the first local and the first global layer, and makes `layout` the layout of these alone.
std::vector<int> TestedLayers(const ModelConfig& config, KvLayout* layout);
// A window, a chunk and a row; a window that is too long for a start counts in part.
int TestedRows(const ModelConfig& config, const KvLayout& layout);

// The file that records, between starts, that the self-test of a model passed on this machine: it
// then contains kSelfTestHeld. Only passed tests are recorded. Its name is made of the weights and
// their form, the kernels' version, C, the steps that were tried, the instruction set, the CPU and
// the program's file: each of them may change the bits. A folder that cannot be read or written
// costs time only. Returns "" if nothing can be recorded.
std::string SelfTestFile(const std::string& cache_dir, const InvariantWeights& weights,
                         const KvLayout& layout, const StepLimits& limits);
inline constexpr char kSelfTestHeld[] = "held\n";

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
