// DropNumbers: the number of each tenant's last drop of all, which is in the keys of all it stores.
//
// Thread safe. Ownership: owns the numbers; their text is kept by who makes it.
#ifndef HEARTH_CACHE_STORE_STORE_DROP_NUMBERS_H_
#define HEARTH_CACHE_STORE_STORE_DROP_NUMBERS_H_

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class DropNumbers {
 public:
  // Some 100 bytes each. Beyond, those of tenants that have nothing are forgotten.
  static constexpr size_t kMaxTenants = 16'384;

  // 0: it never dropped all.
  uint64_t Of(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mu_);
  void Set(const std::string& tenant, uint64_t number,
           absl::FunctionRef<bool(const std::string& tenant)> has_any) ABSL_LOCKS_EXCLUDED(mu_);
  // On disk: never change it. A line for each tenant: number, space, the tenant escaped as in C.
  std::string Text() const ABSL_LOCKS_EXCLUDED(mu_);
  // Lines that are anything else are of no use.
  void Parse(absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_DROP_NUMBERS_H_
