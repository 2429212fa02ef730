// Inputs of tensor_core_probe: for each class of values, tiles of 64 rows of A, 256 rows of B and
// one float32 sum for each of their 64 x 256 outputs. The same seed gives the same bytes
// everywhere: integers and single IEEE operations only, no functions of libm.
#ifndef HEARTH_BENCH_GPU_TENSOR_CORE_CASES_H_
#define HEARTH_BENCH_GPU_TENSOR_CORE_CASES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace hearth {

constexpr int kTileRows = 64, kTileColumns = 256;
constexpr int kTileOutputs = kTileRows * kTileColumns;

struct Operands {
  std::string name;
  int tiles = 0, inputs = 0;  // inputs: number of values per row
  std::vector<uint16_t> a;    // [tiles][kTileRows][inputs], bfloat16
  std::vector<uint16_t> b;    // [tiles][kTileColumns][inputs], bfloat16
  std::vector<float> c;       // [tiles][kTileRows][kTileColumns]

  size_t outputs() const { return static_cast<size_t>(tiles) * kTileOutputs; }
  const uint16_t* RowOfA(size_t output) const;
  const uint16_t* RowOfB(size_t output) const;
};

// The splitmix64 generator.
class CaseRandom {
 public:
  explicit CaseRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  int Below(int limit) { return static_cast<int>(Next() >> 33) % limit; }
  int Between(int low, int high) { return low + Below(high - low + 1); }
  bool OneIn(int turns) { return Below(turns) == 0; }
  float Normal();  // an approximately normal value: the sum of twelve uniform values
  uint16_t Bf16(int low, int high);  // random sign and significand, exponent in [low, high]
  float Float(int low, int high);

 private:
  uint64_t state_;
};

uint16_t RoundToBf16(float value);

// Runs work(i) for each i in [0, count) in parallel, on one thread per processor.
void InThreads(int count, const std::function<void(int)>& work);

// Returns operands with the value 0 everywhere.
Operands NewOperands(const std::string& name, int tiles, int inputs);

// Returns the names of the classes of input values.
std::vector<std::string> StepClasses();
// Returns the operands of one class, a step for each output.
Operands StepOperands(size_t step_class, int tiles);

// Returns operands like those of a model: activations with outliers, and weights around 0.03. All
// sums begin at 0.
Operands ChainOperands(int inputs, int tiles);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_TENSOR_CORE_CASES_H_
