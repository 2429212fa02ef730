#include "worker/device/device_model.h"

#include <cassert>

namespace hearth {

void PackColumn(const std::vector<uint16_t>& row, int column, int columns, uint16_t* packed) {
  constexpr size_t kGroup = DeviceMatrix::kGroup;
  const auto at = static_cast<size_t>(column), stride = static_cast<size_t>(columns);
  for (size_t k = 0; k < row.size(); ++k) {
    packed[(k / kGroup * stride + at) * kGroup + k % kGroup] = row[k];
  }
}

std::vector<uint16_t> PackColumns(int inputs, int outputs, bool is_pair, const FillRow& fill) {
  constexpr int kGroup = DeviceMatrix::kGroup;
  assert(inputs % kGroup == 0 && (!is_pair || outputs % kGroup == 0));
  const int columns = PaddedColumns(is_pair ? 2 * outputs : outputs);
  std::vector<uint16_t> packed(MatrixValues(inputs, columns));
  std::vector<uint16_t> row(static_cast<size_t>(inputs));
  for (int output = 0; output < outputs; ++output) {
    for (const bool is_second : {false, true}) {
      if (is_second && !is_pair) continue;
      fill(output, is_second, row.data());
      PackColumn(row, is_pair ? PairColumn(output, is_second) : output, columns, packed.data());
    }
  }
  return packed;
}

}  // namespace hearth
