// FingerprintBook: the fingerprints that tenants have used, with their readable fields, so that
// Explain can name the field that differs. Limited per tenant and in tenants: the least recently
// used entry is forgotten first, but never an entry that a restore point or session refers to.
// Thread safe.
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
  int cost_steps = 0;  // CostStepsOf the model's cost per token
};

class FingerprintBook {
 public:
  // Explain looks up each fingerprint: 64 lookups of a long prompt take tens of milliseconds.
  static constexpr size_t kMaxPerTenant = 64;
  // 1024 tenants x 64 x about 3 KB stay under 200 MB. The book exceeds this only if more tenants
  // have something stored.
  static constexpr size_t kMaxTenants = 1024;

  // Marks the fingerprint as just used. Returns null if it describes no valid layout.
  std::shared_ptr<const KnownFingerprint> Learn(const Fingerprint& fingerprint,
                                                const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the fingerprint as just used. Returns the book's entry for it: each fingerprint is held
  // once.
  std::shared_ptr<const KnownFingerprint> Remember(std::shared_ptr<const KnownFingerprint> known,
                                                   const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets entries above the limits that are no longer in use.
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
    std::list<std::shared_ptr<const KnownFingerprint>> list;  // most recently used last
    uint64_t used = 0;
  };
  static void Trim(std::list<std::shared_ptr<const KnownFingerprint>>* list);
  bool ForgetOneTenant() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<std::string, Known> by_tenant_ ABSL_GUARDED_BY(mu_);
};

// Returns null if the fingerprint describes no valid layout.
std::shared_ptr<const KnownFingerprint> MakeKnown(const Fingerprint& fingerprint);

// Returns the multiply-adds of the model's matrices per token, from the fingerprint's fields. On
// one kind of machine a restore saves time in proportion to this number. Excludes the embedding,
// the head and attention itself, a small part of a prefill. Without the fields: an estimate from
// the size of the KV.
double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout);

// Returns 2 * log2: the difference of two results is the ratio of the costs in steps of sqrt(2).
int CostStepsOf(double multiply_adds);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_FINGERPRINT_BOOK_H_
