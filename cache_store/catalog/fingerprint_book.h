// FingerprintBook: the fingerprints (model identities) that each tenant has used, with their
// readable fields, so that Explain can name a field that differs. The number of fingerprints per
// tenant and the number of tenants are limited. The least recently used entry is forgotten first,
// but not while a restore point or session uses it. Thread safe.
#ifndef HEARTH_CACHE_STORE_CATALOG_FINGERPRINT_BOOK_H_
#define HEARTH_CACHE_STORE_CATALOG_FINGERPRINT_BOOK_H_

#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/fingerprint.h"

namespace hearth {

struct KnownFingerprint {
  Fingerprint fingerprint;
  KvLayout layout;
  int cost_steps = 0;  // CostStepsOf(multiply-adds per token)
};

class FingerprintBook {
 public:
  // Limit of fingerprints per tenant, because Explain looks up the prompt under each of them: 64
  // lookups of a long prompt take tens of milliseconds.
  static constexpr size_t kMaxPerTenant = 64;
  // Limit of tenants: 1024 tenants with 64 fingerprints of about 3 KB take less than 200 MB. The
  // limit is exceeded only if more tenants have stored entries.
  static constexpr size_t kMaxTenants = 1024;

  // Adds the fingerprint, or marks it as just used. Returns null if it describes no valid layout.
  std::shared_ptr<const KnownFingerprint> Learn(const Fingerprint& fingerprint,
                                                const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Adds the fingerprint, or marks it as just used. Returns the book's entry for it: equal
  // fingerprints share one entry.
  std::shared_ptr<const KnownFingerprint> Remember(std::shared_ptr<const KnownFingerprint> known,
                                                   const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets entries above the limits that no restore point or session uses.
  void Trim() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<const KnownFingerprint> Find(const Digest& digest,
                                               const std::string& tenant) const
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<const KnownFingerprint>> Of(const std::string& tenant) const
      ABSL_LOCKS_EXCLUDED(mu_);

  size_t tenants() const {
    absl::ReaderMutexLock lock(&mu_);
    return by_tenant_.size();
  }

 private:
  struct Known {
    // fingerprints of the tenant, most recently used last
    std::list<std::shared_ptr<const KnownFingerprint>> list;
    uint64_t used = 0;
  };
  static void Trim(std::list<std::shared_ptr<const KnownFingerprint>>* list);
  bool ForgetOneTenant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Known> by_tenant_ ABSL_GUARDED_BY(mu_);
};

// Computes the fields of KnownFingerprint. Returns null if the fingerprint describes no valid
// layout.
std::shared_ptr<const KnownFingerprint> MakeKnown(const Fingerprint& fingerprint);

// Returns the multiply-adds of the model's matrices per token, from the fingerprint's fields. The
// time that a restore saves is proportional to it. Embedding, head and attention are left out, a
// small part of prefill. If the fields are absent, estimates from the size of the KV.
double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout);

// Returns 2 * log2(multiply_adds): a difference of 1 is a factor of sqrt(2) in cost.
int CostStepsOf(double multiply_adds);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_FINGERPRINT_BOOK_H_
