#include "cache_store/fingerprint_book.h"

#include <iterator>
#include <utility>

namespace hearth {

std::shared_ptr<const KnownFingerprint> MakeKnown(const Fingerprint& fingerprint) {
  absl::StatusOr<KvLayout> layout = fingerprint.Layout();
  if (!layout.ok()) return nullptr;
  return std::make_shared<const KnownFingerprint>(
      KnownFingerprint{fingerprint, *std::move(layout)});
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Learn(const Fingerprint& fingerprint,
                                                               const std::string& tenant) {
  std::shared_ptr<const KnownFingerprint> known = Find(fingerprint.digest(), tenant);
  if (known == nullptr) known = MakeKnown(fingerprint);
  if (known != nullptr) Remember(known, tenant);
  return known;
}

void FingerprintBook::Remember(std::shared_ptr<const KnownFingerprint> known,
                               const std::string& tenant) {
  if (by_tenant_.size() >= kMaxTenants && by_tenant_.count(tenant) == 0) return;
  auto& list = by_tenant_[tenant];
  list.remove(known);
  list.push_back(std::move(known));
  for (auto it = list.begin(); list.size() > kMaxPerTenant && it != std::prev(list.end());) {
    it = it->use_count() == 1 ? list.erase(it) : std::next(it);
  }
}

std::shared_ptr<const KnownFingerprint> FingerprintBook::Find(const Digest& digest,
                                                              const std::string& tenant) const {
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return nullptr;
  for (const auto& known : it->second) {
    if (known->fingerprint.digest() == digest) return known;
  }
  return nullptr;
}

std::vector<std::shared_ptr<const KnownFingerprint>> FingerprintBook::Of(
    const std::string& tenant) const {
  const auto it = by_tenant_.find(tenant);
  if (it == by_tenant_.end()) return {};
  return {it->second.begin(), it->second.end()};
}

}  // namespace hearth
