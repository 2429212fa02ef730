// FingerprintBook: the fingerprints that tenants have used, with their readable fields, so that
// Explain can tell a miss from a difference in one field. Bounded per tenant, and in tenants: the
// least recently used is forgotten first, but never one that a restore point or a session refers
// to.
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
  int cost_steps = 0;  // of computing a token of it: CostStepsOf
};

class FingerprintBook {
 public:
  // Explain tries each of them: 64 lookups of a long prompt take tens of milliseconds.
  static constexpr size_t kMaxPerTenant = 64;
  // 1024 tenants x 64 x about 3 KB stay under 200 MB. More only where that many store something.
  static constexpr size_t kMaxTenants = 1024;

  // Marks as just used. Null when the fingerprint describes no valid layout.
  std::shared_ptr<const KnownFingerprint> Learn(const Fingerprint& fingerprint,
                                                const std::string& tenant) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks as just used. Returns what it holds of this fingerprint: each is held once.
  std::shared_ptr<const KnownFingerprint> Remember(std::shared_ptr<const KnownFingerprint> known,
                                                   const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Forgets entries above the limits that were in use until now.
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

// Null when it describes no valid layout.
std::shared_ptr<const KnownFingerprint> MakeKnown(const Fingerprint& fingerprint);

// The cost of computing a token, as far as the model's fingerprint tells: the multiply-adds of its
// matrices. On one kind of machine the seconds that a restore saves are in proportion to it; the
// kind of machine is not known here. Without the embedding, the head and attention itself, on which
// a prefill spends little. Where the fingerprint lacks the fields: an estimate from the size of its
// keys and values.
double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout);

// log2 in halves: the difference of two says how much more a token of the one costs.
int CostStepsOf(double multiply_adds);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_FINGERPRINT_BOOK_H_
