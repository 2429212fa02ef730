#include <algorithm>
#include <cmath>

#include "cache_store/retention/return_model.h"

namespace hearth {
namespace {

constexpr uint32_t kLengthTokens = 512;  // unit of prompt lengths
constexpr uint32_t kTurnMax = 4;
// Kinds, the first part of a class.
constexpr int kAddedKinds = 0;    // 4 turns x (first, second, later child)
constexpr int kSharedKinds = 12;  // 4 turns
constexpr int kHubKinds = 16;     // log2 of the children: 7
constexpr int kPassedKinds = 23;  // by children: 1, 2, 3 to 5, more
constexpr int kRemainderKind = 27;
static_assert(kRemainderKind < ReturnModel::kKinds);

int Log2(uint32_t value) {
  int log = 0;
  for (; value > 1; value >>= 1) ++log;
  return log;
}

int TurnPart(uint32_t turn) { return static_cast<int>(std::min(turn, kTurnMax)) - 1; }

int LengthPart(uint32_t prompt_tokens) {
  return std::min(ReturnModel::kLengths - 1, Log2(prompt_tokens / kLengthTokens));
}

}  // namespace

int AddedClass(uint32_t turn, uint32_t children, uint32_t fresh_tokens, uint32_t prompt_tokens) {
  const int branch = fresh_tokens == 0 || children < 2 ? 0 : children == 2 ? 1 : 2;
  const int kind = kAddedKinds + branch * static_cast<int>(kTurnMax) + TurnPart(turn);
  const uint32_t fresh_units = fresh_tokens / kLengthTokens;
  const int fresh = fresh_units == 0 ? 0 : std::min(ReturnModel::kFresh - 1, 1 + Log2(fresh_units));
  return ReturnModel::ClassOf(kind, fresh, LengthPart(prompt_tokens));
}

int SharedClass(uint32_t turn, uint32_t prompt_tokens) {
  return ReturnModel::ClassOf(kSharedKinds + TurnPart(turn), 0, LengthPart(prompt_tokens));
}

int HubClass(uint32_t children) {
  return ReturnModel::ClassOf(kHubKinds + std::min(6, Log2(children)), 0, 0);
}

int PassedClass(uint32_t children, bool by_same_request) {
  const int more = children < 2 ? 0 : children == 2 ? 1 : children < kHubChildren ? 2 : 3;
  return ReturnModel::ClassOf(kPassedKinds + more, by_same_request ? 1 : 0, 0);
}

bool IsPassedClass(int unit_class) {
  return unit_class >= ReturnModel::ClassOf(kPassedKinds, 0, 0) &&
         unit_class < ReturnModel::ClassOf(kRemainderKind, 0, 0);
}

int RemainderClass() { return ReturnModel::ClassOf(kRemainderKind, 0, 0); }

int DensityOf(uint32_t gain_tokens, uint64_t bytes) {
  const double ratio =
      std::max(1u, gain_tokens) / static_cast<double>(std::max<uint64_t>(1, bytes));
  return static_cast<int>(std::floor(2 * std::log2(ratio)));
}

}  // namespace hearth
