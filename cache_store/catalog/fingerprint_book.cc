#include "cache_store/catalog/fingerprint_book.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

namespace hearth {
namespace {

// Estimated multiply-adds for each KV element of a token. Gemma 3 270M has 11 thousand; 27B has 100
// thousand.
constexpr double kMultiplyAddsPerElement = 32768;
// Upper bound of CostStepsOf, because callers choose the fields' values.
constexpr double kMaxSteps = 128;

// Returns the integer value of a field; 0 if the field is absent.
double Integer(const Fingerprint& fingerprint, const char* name) {
  for (const FingerprintField& field : fingerprint.fields()) {
    const auto* value = std::get_if<uint64_t>(&field.value);
    if (value != nullptr && field.name == name) return static_cast<double>(*value);
  }
  return 0;
}

}  // namespace

std::shared_ptr<const KnownFingerprint> MakeKnown(const Fingerprint& fingerprint) {
  absl::StatusOr<KvLayout> layout = fingerprint.Layout();
  if (!layout.ok()) return nullptr;
  const int cost_steps = CostStepsOf(MultiplyAddsPerToken(fingerprint, *layout));
  return std::make_shared<const KnownFingerprint>(
      KnownFingerprint{fingerprint, *std::move(layout), cost_steps});
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Learn(const Fingerprint& fingerprint,
                                                               const std::string& tenant) {
  std::shared_ptr<const KnownFingerprint> known = Find(fingerprint.digest(), tenant);
  if (known == nullptr) known = MakeKnown(fingerprint);
  return known == nullptr ? nullptr : Remember(std::move(known), tenant);
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Remember(
    std::shared_ptr<const KnownFingerprint> known, const std::string& tenant) {
  assert(known != nullptr);
  absl::MutexLock lock(&mu_);
  if (by_tenant_.size() >= kMaxTenants && by_tenant_.count(tenant) == 0) ForgetOneTenant();
  Known& of_tenant = by_tenant_[tenant];
  of_tenant.used = ++uses_;
  auto& list = of_tenant.list;
  const auto held = std::find_if(list.begin(), list.end(), [&](const auto& other) {
    return other->fingerprint.digest() == known->fingerprint.digest();
  });
  if (held != list.end()) {  // another thread may have added the fingerprint since the lookup
    known = *held;
    list.erase(held);
  }
  list.push_back(known);
  Trim(&list);
  return known;
}

// Removes unused entries above the limit, except the last entry, which a caller is about to use.
void FingerprintBook::Trim(std::list<std::shared_ptr<const KnownFingerprint>>* list) {
  for (auto it = list->begin(); list->size() > kMaxPerTenant && it != std::prev(list->end());) {
    it = it->use_count() == 1 ? list->erase(it) : std::next(it);
  }
}

void FingerprintBook::Trim() {
  absl::MutexLock lock(&mu_);
  for (auto& [tenant, known] : by_tenant_) Trim(&known.list);
  while (by_tenant_.size() > kMaxTenants && ForgetOneTenant()) {
  }
}

// Forgets the least recently used tenant without stored entries. Returns false if every tenant has
// stored entries.
bool FingerprintBook::ForgetOneTenant() {
  auto oldest = by_tenant_.end();
  for (auto it = by_tenant_.begin(); it != by_tenant_.end(); ++it) {
    if (oldest != by_tenant_.end() && it->second.used > oldest->second.used) continue;
    const auto& list = it->second.list;
    const bool is_in_use = std::any_of(list.begin(), list.end(),
                                       [](const auto& known) { return known.use_count() > 1; });
    if (!is_in_use) oldest = it;
  }
  if (oldest == by_tenant_.end()) return false;
  by_tenant_.erase(oldest);
  return true;
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Find(const Digest& digest,
                                                              const std::string& tenant) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return nullptr;
  for (const auto& known : it->second.list) {
    if (known->fingerprint.digest() == digest) return known;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const KnownFingerprint>> FingerprintBook::Of(
    const std::string& tenant) const {
  absl::ReaderMutexLock lock(&mu_);
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return {};
  return {it->second.list.begin(), it->second.list.end()};
}

double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout) {
  const double layers = static_cast<double>(layout.layers.size());
  // If the layout has opaque pages: assumes two bytes for each KV element.
  const double kv_columns = layout.page_bytes > 0 ? 0.5 * layout.page_bytes / layout.chunk_tokens
                                                  : 2.0 * layout.kv_heads * layout.head_dim;
  const double hidden = Integer(fingerprint, "hidden_size");
  const double heads = Integer(fingerprint, "heads");
  const double intermediate = Integer(fingerprint, "intermediate_size");
  if (hidden == 0 || heads == 0 || intermediate == 0) {
    return layers * kv_columns * kMultiplyAddsPerElement;
  }
  const double query_and_output = 2 * heads * Integer(fingerprint, "head_dim");
  return layers * hidden * (query_and_output + kv_columns + 3 * intermediate);
}

int CostStepsOf(double multiply_adds) {
  const double steps = std::round(2 * std::log2(std::max(1.0, multiply_adds)));
  return static_cast<int>(std::min(steps, kMaxSteps));
}

}  // namespace hearth
