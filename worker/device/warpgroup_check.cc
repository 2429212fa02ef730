#include "worker/device/warpgroup_check.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "worker/device/device_model.h"
#include "worker/device/product_choice.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

// Two blocks of rows, two blocks of the most columns, more stages than a ring buffer has; the last
// blocks are partial.
constexpr int kRows = 130, kColumns = 320, kInputs = 320, kPitch = 2 * Bf16Rows::kGrain;

// Returns a bfloat16 with a random sign and significand, and a random exponent from -spread to
// spread.
uint16_t RandomBf16(int spread, uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  const auto draw = static_cast<uint32_t>(*state >> 33);
  const uint32_t exponent = 127u - spread + (draw >> 8) % (2u * spread + 1);
  return static_cast<uint16_t>((draw & 0x807f) | exponent << 7);
}

class Check {
 public:
  explicit Check(Device* device)
      : device_(device),
        arena_(device),
        x_(arena_.Take<float>(kRows * kInputs)),
        y_(arena_.Take<float>(kRows * kColumns)),
        packed_{arena_.Take<uint16_t>(kPitch * kInputs), kPitch},
        gated_{arena_.Take<uint16_t>(kPitch * kColumns / 2), kPitch},
        matrix_(arena_.Take<uint16_t>(MatrixValues(kInputs, kColumns))) {
    std::vector<float> x(kRows * kInputs);
    std::vector<uint16_t> matrix(MatrixValues(kInputs, kColumns));
    uint64_t state = 1;
    for (size_t i = 0; i < x.size(); ++i) {  // every second row has very different exponents
      x[i] = FloatOfBf16(RandomBf16(i / kInputs % 2 == 0 ? 1 : 20, &state));
    }
    for (uint16_t& value : matrix) value = RandomBf16(4, &state);
    if (!device->error().empty()) return;
    device->CopyIn(x_, x.data(), x.size() * sizeof(float));
    device->CopyIn(matrix_, matrix.data(), matrix.size() * sizeof(uint16_t));
    const PackRowsProgram pack = {x_, packed_, kRows, kInputs, kInputs};
    Launch(device, pack, PackRowsProgram::Blocks(kRows, kInputs));
  }

  int Differing(bool is_pair) {
    const DeviceMatrix matrix = {matrix_, kInputs, kColumns, is_pair ? kColumns / 2 : kColumns};
    std::vector<float> want(kRows * kColumns), got(want);
    std::vector<uint16_t> gated(kPitch * kColumns / 2);
    const ProductArguments product = {matrix, x_, nullptr, y_, kRows, kInputs, kColumns, 0};
    const int chosen = ChooseBf16Product(kRows);
    device_->Launch(ProductNumber(ProductKind::kBf16, chosen, is_pair), &product,
                    BlocksOf(FactsOf(ProductKind::kBf16, chosen), kRows, kColumns));
    device_->CopyOut(want.data(), y_, want.size() * sizeof(float));
    int differing = 0;
    constexpr ProductKind kKind = ProductKind::kWarpgroup;
    for (int tiling = 0; tiling < TilingCount(kKind) && device_->error().empty(); ++tiling) {
      std::memset(got.data(), 0xff, got.size() * sizeof(float));
      device_->CopyIn(y_, got.data(), got.size() * sizeof(float));
      device_->CopyIn(gated_.data, got.data(), gated.size() * sizeof(uint16_t));
      const WarpgroupArguments arguments = {matrix, packed_, gated_, y_, kRows, kColumns};
      device_->Launch(ProductNumber(kKind, tiling, is_pair), &arguments,
                      BlocksOf(FactsOf(kKind, tiling), kRows, kColumns));
      device_->CopyOut(got.data(), y_, got.size() * sizeof(float));
      device_->CopyOut(gated.data(), gated_.data, gated.size() * sizeof(uint16_t));
      for (int row = 0; row < kRows; ++row) {
        for (int output = 0; output < matrix.outputs; ++output) {
          const size_t at = static_cast<size_t>(row * kColumns + output);
          const uint16_t pair =
              gated[static_cast<size_t>((output / 8 * kPitch + row) * 8 + output % 8)];
          const bool same = is_pair ? pair == NarrowOne(want[at]).bits
                                    : BitsOfFloat(got[at]) == BitsOfFloat(want[at]);
          differing += same ? 0 : 1;
        }
      }
    }
    return differing;
  }

 private:
  Device* const device_;
  DeviceArena arena_;
  float *const x_, *const y_;
  const Bf16Rows packed_, gated_;
  uint16_t* const matrix_;
};

}  // namespace

int DifferingWarpgroupOutputs(Device* device) {
  Check check(device);
  int differing = 0;
  for (const bool is_pair : {false, true}) {
    if (device->error().empty()) differing += check.Differing(is_pair);
  }
  return differing;
}

}  // namespace hearth
