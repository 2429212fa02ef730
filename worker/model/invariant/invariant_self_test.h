// InvariantSelfTest: checks, on the code path of requests, that a model computes on this machine
// what the class `invariant` promises: a row's bits do not depend on the other rows of its step,
// and equal those of the kernels' reference.
//
// One local and one global layer compute a window, a chunk and one row, all at once. Then, for each
// size M, they compute the last M rows again. Two more steps have several sequences: one step of
// decoding sequences, each at a different row; and one step with the most rows of a step, in
// sequences of different lengths, decoding and prefilling. After each operation, the first, the
// middle and the last row of a sequence must have the bits that they had in the first step. For a
// sequence alone, so must their keys and values. The head is tested with a few rows in the same
// way. With M = 1, the row is also computed by the scalar references (KernelTarget::kPlain), and so
// are some outputs of the head: this result then holds for all M.
//
// Thread safety: none; no step of the model may run during the test. Steps of other models are then
// as slow as the references. The test leaves the model unchanged.
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
  // `layout`: layout of the model's Kv. All arguments must outlive the test.
  InvariantSelfTest(const InvariantWeights& weights, const KvLayout& layout,
                    InvariantForward* forward, const StepLimits& limits);
  absl::Status Run();
  // Returns how many of `decodes` sequences the test puts into one step; `slice_bytes`: bytes of a
  // chunk's slice.
  static int DecodesTried(uint32_t decodes, uint64_t slice_bytes);
  int passes() const { return passes_; }

 private:
  // Rows of one sequence in one step.
  struct Piece {
    int begin = 0, rows = 0;
  };
  using Pieces = std::vector<Piece>;

  // Computes the pieces through both layers, in one step.
  absl::Status Pass(const Pieces& pieces);
  absl::Status PassOfSequences(const Pieces& pieces);
  absl::Status Layers(const std::vector<InvariantPart>& parts);
  std::vector<int32_t> TokensOf(const Piece& piece) const;
  absl::Status Head(const std::vector<float>& rows);
  absl::Status HeadByReference(const float* row, const float* logits) const;
  // Checks the results of the next operation; digests(position, row) is the digest of the row at
  // `position`, which is row `row` of the step.
  using RowDigests = absl::FunctionRef<uint64_t(int position, int row)>;
  void CheckRows(const char* operation, bool local, RowDigests digests);
  void CheckKeysAndValues();
  std::string AmongRows() const;

  const InvariantWeights& weights_;
  const ModelConfig& config_;
  InvariantForward* const forward_;
  std::vector<int> layers_;                   // numbers of the two layers
  int rows_ = 0;                              // window + chunk + 1 row
  std::vector<int> sizes_;                    // the sizes M
  std::vector<Pieces> together_;              // steps of several sequences
  std::set<int> compared_;                    // positions of the rows that are compared
  Pieces pieces_;                             // sequences of the current pass
  std::vector<std::pair<int, int>> checked_;  // in this pass: positions, and their rows in the step
  std::unique_ptr<KvBlocks> arena_;
  InvariantKv kv_;
  std::unordered_map<uint64_t, uint64_t> expected_;  // by the operation's number and row
  uint64_t operation_ = 0;                           // number of the next operation in the pass
  bool by_reference_ = false;                        // this pass runs on the references
  int passes_ = 0;
  absl::Status status_;
};

// Returns the first local and the first global layer, and makes `layout` the layout of these alone.
std::vector<int> TestedLayers(const ModelConfig& config, KvLayout* layout);
// Returns a window, a chunk and one row; of a window that is too long for a start, only a part.
int TestedRows(const ModelConfig& config, const KvLayout& layout);

// Returns the name of the file that records, across starts, that the self-test of a model passed on
// this machine; the file then contains kSelfTestHeld. Only passed tests are recorded. The name
// depends on everything that may change the bits: the weights and their form, the kernels' version,
// C, the tested steps, the instruction set, the CPU and the program's file. A folder that cannot be
// read or written costs only time. Returns "" if nothing can be recorded.
std::string SelfTestFile(const std::string& cache_dir, const InvariantWeights& weights,
                         const KvLayout& layout, const StepLimits& limits);
inline constexpr char kSelfTestHeld[] = "held\n";

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
