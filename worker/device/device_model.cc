#include "worker/device/device_model.h"

#include <cassert>

namespace hearth {

std::vector<uint16_t> PackColumns(int inputs, int outputs, bool is_pair, const FillRow& fill) {
  constexpr int kGroup = DeviceMatrix::kGroup;
  assert(inputs % kGroup == 0 && (!is_pair || outputs % kGroup == 0));
  const auto columns = static_cast<size_t>(PaddedColumns(is_pair ? 2 * outputs : outputs));
  std::vector<uint16_t> packed(MatrixValues(inputs, static_cast<int>(columns)));
  std::vector<uint16_t> row(static_cast<size_t>(inputs));
  for (int output = 0; output < outputs; ++output) {
    for (const bool is_second : {false, true}) {
      if (is_second && !is_pair) continue;
      fill(output, is_second, row.data());
      const auto column = static_cast<size_t>(is_pair ? PairColumn(output, is_second) : output);
      for (size_t k = 0; k < row.size(); ++k) {
        packed[(k / kGroup * columns + column) * kGroup + k % kGroup] = row[k];
      }
    }
  }
  return packed;
}

}  // namespace hearth
