#include "worker/device/warpgroup_check.h"

#include <cstdint>
#include <cstring>
#include <vector>

#include "worker/device/device_model.h"
#include "worker/device/product_choice.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

// Sizes of the compared products; the last blocks of rows and columns are partial.
struct Sizes {
  int rows, columns, inputs;

  int pitch() const {
    constexpr int kGrain = Bf16Rows::kGrain;
    return (rows + kGrain - 1) / kGrain * kGrain;
  }
};
// On a GPU: a thread block for each processor of an H200, and twice the stages of a ring buffer, so
// that each buffer is reused. If a wait were missing, a copy would overwrite a stage that warps
// still read. Emulated: two blocks of rows and of columns.
constexpr Sizes kOnGpu = {2050, 2240, 1024}, kEmulated = {130, 320, 320};
template <class... All>
constexpr bool FillsAll(TypeList<All...>) {
  constexpr int kProcessors = 132;
  constexpr auto blocks = [](int size, int of_block) { return (size + of_block - 1) / of_block; };
  return (
      (kOnGpu.inputs / All::kInputs >= 2 * All::kDepth &&
       blocks(kOnGpu.rows, All::kRows) * blocks(kOnGpu.columns, All::kColumns) >= kProcessors) &&
      ...);
}
static_assert(FillsAll(WarpgroupTilings()));

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
        of_(IsEmulated(*device) ? kEmulated : kOnGpu),
        x_(arena_.Take<float>(Count(of_.rows, of_.inputs))),
        y_(arena_.Take<float>(Count(of_.rows, of_.columns))),
        packed_{arena_.Take<uint16_t>(Count(of_.pitch(), of_.inputs)), of_.pitch()},
        gated_{arena_.Take<uint16_t>(Count(of_.pitch(), of_.columns / 2)), of_.pitch()},
        matrix_(arena_.Take<uint16_t>(MatrixValues(of_.inputs, of_.columns))) {
    std::vector<float> x(Count(of_.rows, of_.inputs));
    std::vector<uint16_t> matrix(MatrixValues(of_.inputs, of_.columns));
    uint64_t state = 1;
    for (size_t i = 0; i < x.size(); ++i) {  // every second row has very different exponents
      x[i] = FloatOfBf16(RandomBf16(i / static_cast<size_t>(of_.inputs) % 2 == 0 ? 1 : 20, &state));
    }
    for (uint16_t& value : matrix) value = RandomBf16(4, &state);
    if (!device->error().empty()) return;
    device->CopyIn(x_, x.data(), x.size() * sizeof(float));
    device->CopyIn(matrix_, matrix.data(), matrix.size() * sizeof(uint16_t));
    const PackRowsProgram pack = {x_, packed_, of_.rows, of_.inputs, of_.inputs};
    Launch(device, pack, PackRowsProgram::Blocks(of_.rows, of_.inputs));
  }

  int Differing(bool is_pair) {
    const auto [rows, columns, inputs] = of_;
    const int pitch = of_.pitch();
    const DeviceMatrix matrix = {matrix_, inputs, columns, is_pair ? columns / 2 : columns};
    std::vector<float> want(Count(rows, columns)), got(want);
    std::vector<uint16_t> gated(Count(pitch, columns / 2));
    const ProductArguments product = {matrix, x_, nullptr, y_, rows, inputs, columns, 0};
    const int chosen = ChooseBf16Product(rows);
    device_->Launch(ProductNumber(ProductKind::kBf16, chosen, is_pair), &product,
                    BlocksOf(FactsOf(ProductKind::kBf16, chosen), rows, columns));
    device_->CopyOut(want.data(), y_, want.size() * sizeof(float));
    int differing = 0;
    constexpr ProductKind kKind = ProductKind::kWarpgroup;
    for (int tiling = 0; tiling < TilingCount(kKind) && device_->error().empty(); ++tiling) {
      std::memset(got.data(), 0xff, got.size() * sizeof(float));
      device_->CopyIn(y_, got.data(), got.size() * sizeof(float));
      device_->CopyIn(gated_.data, got.data(), gated.size() * sizeof(uint16_t));
      const WarpgroupArguments arguments = {matrix, packed_, gated_, y_, rows, columns};
      device_->Launch(ProductNumber(kKind, tiling, is_pair), &arguments,
                      BlocksOf(FactsOf(kKind, tiling), rows, columns));
      device_->CopyOut(got.data(), y_, got.size() * sizeof(float));
      device_->CopyOut(gated.data(), gated_.data, gated.size() * sizeof(uint16_t));
      for (int row = 0; row < rows; ++row) {
        for (int output = 0; output < matrix.outputs; ++output) {
          const size_t at = static_cast<size_t>(row * columns + output);
          const uint16_t pair =
              gated[static_cast<size_t>((output / 8 * pitch + row) * 8 + output % 8)];
          const bool same = is_pair ? pair == NarrowOne(want[at]).bits
                                    : BitsOfFloat(got[at]) == BitsOfFloat(want[at]);
          differing += same ? 0 : 1;
        }
      }
    }
    return differing;
  }

 private:
  static size_t Count(int rows, int columns) {
    return static_cast<size_t>(rows) * static_cast<size_t>(columns);
  }

  Device* const device_;
  DeviceArena arena_;
  const Sizes of_;
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
