#include "worker/engine/audit.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

float ElementAt(const std::byte* bytes, size_t index, KvDtype dtype) {
  if (dtype == KvDtype::kFloat32) {
    float value;
    std::memcpy(&value, bytes + index * sizeof(value), sizeof(value));
    return value;
  }
  // bfloat16 is the upper half of a float32. No model here computes in float16.
  assert(dtype == KvDtype::kBFloat16);
  uint16_t half;
  std::memcpy(&half, bytes + index * sizeof(half), sizeof(half));
  const uint32_t bits = uint32_t{half} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// `bytes` of keys, or of values. What is no number agrees with nothing.
bool AgreeWithinRounding(const std::byte* ours, const std::byte* theirs, size_t bytes,
                         KvDtype dtype) {
  double differences = 0, squares = 0;
  for (size_t i = 0; i < bytes / KvDtypeBytes(dtype); ++i) {
    const double a = ElementAt(ours, i, dtype), b = ElementAt(theirs, i, dtype);
    differences += (a - b) * (a - b);
    squares += a * a;
  }
  const double tolerance = dtype == KvDtype::kFloat32 ? kFloat32Tolerance : kHalfTolerance;
  return std::isfinite(differences) && differences <= tolerance * tolerance * squares;
}

}  // namespace

std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored) {
  assert(computed.length() == static_cast<int>(boundary));
  assert(restored.length() == static_cast<int>(boundary));
  std::vector<ObjectId> differing;
  std::vector<std::byte> ours, theirs;
  for (const ObjectId& id : NeededObjects(layout, boundary)) {
    const std::vector<uint32_t> layers = layout.LayersOf(id.group);
    const bool agree = std::all_of(layers.begin(), layers.end(), [&](uint32_t layer) {
      const int number = static_cast<int>(layer);
      const int held = std::max(computed.first_held(number), restored.first_held(number));
      const int begin = std::max(static_cast<int>(id.begin), held);
      const int end = static_cast<int>(id.begin + id.tokens);
      const size_t bytes = layout.SliceBytes(static_cast<uint32_t>(end - begin));
      ours.resize(bytes);
      theirs.resize(bytes);
      computed.CopyOut(number, begin, end, begin, end - begin, ours.data());
      restored.CopyOut(number, begin, end, begin, end - begin, theirs.data());
      if (BitsFollowKeys(layout.exactness)) return ours == theirs;
      const size_t half = bytes / 2;
      return AgreeWithinRounding(ours.data(), theirs.data(), half, layout.dtype) &&
             AgreeWithinRounding(ours.data() + half, theirs.data() + half, half, layout.dtype);
    });
    if (!agree) differing.push_back(id);
  }
  return differing;
}

}  // namespace hearth
