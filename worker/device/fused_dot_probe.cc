#include "worker/device/fused_dot_probe.h"

#include <cstdint>
#include <vector>

#include "worker/device/device_model.h"
#include "worker/device/product_choice.h"
#include "worker/device/program_list.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

// Returns a bfloat16 with a random sign, significand, and exponent from -14 to 1; one in eight is
// zero.
uint16_t RandomBf16(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  const auto draw = static_cast<uint32_t>(*state >> 33);
  const uint32_t exponent = 113 + (draw >> 8) % 16;
  return draw >> 28 == 0 ? 0 : static_cast<uint16_t>((draw & 0x807f) | exponent << 7);
}

}  // namespace

FusedDotProbe ProbeFusedDot(Device* device) {
  const FloatMode mode;
  constexpr int kRows = 16, kColumns = DeviceMatrix::kColumnGrain, kInputs = 3 * kStepInputs;
  uint64_t state = 1;
  std::vector<uint16_t> rows(kRows * kInputs), weights(kColumns * kInputs);
  for (std::vector<uint16_t>* values : {&rows, &weights}) {
    for (uint16_t& value : *values) value = RandomBf16(&state);
  }
  std::vector<uint16_t> packed(MatrixValues(kInputs, kColumns));
  for (int column = 0; column < kColumns; ++column) {
    const uint16_t* const row = weights.data() + column * kInputs;
    PackColumn({row, row + kInputs}, column, kColumns, packed.data());
  }
  std::vector<float> wide, sums(kRows * kColumns);
  for (const uint16_t value : rows) wide.push_back(FloatOfBf16(value));
  DeviceArena arena(device);
  auto* const matrix = arena.Take<uint16_t>(packed.size());
  auto *const x = arena.Take<float>(wide.size()), *const y = arena.Take<float>(sums.size());
  if (!device->error().empty()) return {};
  device->CopyIn(matrix, packed.data(), packed.size() * sizeof(uint16_t));
  device->CopyIn(x, wide.data(), wide.size() * sizeof(float));
  const ProductArguments product = {
      {matrix, kInputs, kColumns, kColumns}, x, nullptr, y, kRows, kInputs, kColumns, 0};
  const int tiling = ChooseBf16Product(kRows);
  device->Launch(Bf16ProductNumber(tiling, false), &product,
                 BlocksOf(Bf16FactsOf(tiling), kRows, kColumns));
  device->CopyOut(sums.data(), y, sums.size() * sizeof(float));
  if (!device->error().empty()) return {};
  FusedDotProbe probe;
  for (int i = 0; i < kRows * kColumns; ++i, ++probe.sums) {
    const float sum = FusedChain(weights.data() + i % kColumns * kInputs,
                                 rows.data() + i / kColumns * kInputs, 0, kInputs);
    probe.differing += BitsOfFloat(sum) != BitsOfFloat(sums[static_cast<size_t>(i)]) ? 1 : 0;
  }
  return probe;
}

}  // namespace hearth
