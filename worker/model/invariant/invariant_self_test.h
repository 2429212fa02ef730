// InvariantSelfTest: checks that this machine keeps the promise of the exactness class `invariant`:
// the bits of a row do not depend on the other rows of its step, and equal those of the reference
// kernels. The test uses the same code as requests.
//
// The first step computes a window, a chunk and one row with one local and one global layer. Then,
// for each size M, a step computes the last M rows again. Two further steps have several sequences:
// decoding sequences, each at a different row; and the maximum rows of a step, in decoding and
// prefilling sequences of different lengths.
// After each operation, the first, middle and last row of a sequence must have the same bits as in
// the first step. For steps of one sequence, their keys and values must have the same bits too. The
// output matrix is tested in the same way with a few rows.
// With M = 1, the reference kernels (KernelTarget::kPlain) also compute the row and some outputs of
// the output matrix. Since all M give the same bits, this comparison holds for all M.
//
// Thread safety: none; no step of the model may run during the test. Steps of other models are as
// slow as the reference kernels during part of the test. The test does not change the model.
// Errors: kFailedPrecondition; the message names the operation, the layer and M.
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
  // `layout`: KV layout of the model. All arguments must outlive the test.
  InvariantSelfTest(const InvariantWeights& weights, const KvLayout& layout,
                    InvariantForward* forward, const StepLimits& limits);
  absl::Status Run();
  // Returns the number of decoding sequences in the test's step, at most `decodes`. `slice_bytes`:
  // bytes of a chunk in one layer.
  static int DecodesTried(uint32_t decodes, uint64_t slice_bytes);
  int passes() const { return passes_; }

 private:
  // Consecutive rows of one sequence in one step.
  struct Piece {
    int begin = 0, rows = 0;
  };
  using Pieces = std::vector<Piece>;

  // Computes the pieces in one step with both layers, and compares the results.
  absl::Status Pass(const Pieces& pieces);
  absl::Status PassOfSequences(const Pieces& pieces);
  absl::Status Layers(const std::vector<InvariantPart>& parts);
  std::vector<int32_t> TokensOf(const Piece& piece) const;
  absl::Status Head(const std::vector<float>& rows);
  absl::Status HeadByReference(const float* row, const float* logits) const;
  // Compares the results of the next operation. digests(position, row) returns the digest of the
  // row at `position`, which is row `row` of the step.
  using RowDigests = absl::FunctionRef<uint64_t(int position, int row)>;
  void CheckRows(const char* operation, bool local, RowDigests digests);
  void CheckKeysAndValues();
  std::string AmongRows() const;

  const InvariantWeights& weights_;
  const ModelConfig& config_;
  InvariantForward* const forward_;
  std::vector<int> layers_;       // numbers of the two tested layers in the model
  int rows_ = 0;                  // window + chunk + 1
  std::vector<int> sizes_;        // the step sizes M
  std::vector<Pieces> together_;  // the steps of several sequences
  std::set<int> compared_;        // positions of the rows that any pass compares
  Pieces pieces_;                 // sequences of the current pass
  // rows compared in this pass: (position, row in the step)
  std::vector<std::pair<int, int>> checked_;
  std::unique_ptr<KvBlocks> arena_;
  InvariantKv kv_;
  // row digests of the first pass, by operation number and row
  std::unordered_map<uint64_t, uint64_t> expected_;
  uint64_t operation_ = 0;     // number of the next operation in this pass
  bool by_reference_ = false;  // whether this pass runs on the reference kernels
  int passes_ = 0;
  absl::Status status_;
};

// Returns the first local and the first global layer, and sets layout->layers to these two layers.
std::vector<int> TestedLayers(const ModelConfig& config, KvLayout* layout);
// Returns the rows to test: window + chunk + 1. A window above 4,096 tokens is tested in part.
int TestedRows(const ModelConfig& config, const KvLayout& layout);

// Returns the path of the file which records that the self-test of this model passed on this
// machine; the file contains kSelfTestHeld. Only passed tests are recorded. The name depends on
// everything that may change the bits: the weights and their form, the kernels' version, the chunk
// size, the tested steps, the instruction set, the CPU and the program file. If the folder cannot
// be read or written, the test runs again at the next start. Returns "" if no record is possible.
std::string SelfTestFile(const std::string& cache_dir, const InvariantWeights& weights,
                         const KvLayout& layout, const StepLimits& limits);
inline constexpr char kSelfTestHeld[] = "held\n";

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_SELF_TEST_H_
