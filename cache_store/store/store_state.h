// StoreState: a store's bookkeeping, under its one mutex.
//
// `mu` guards bookkeeping and is never held across disk I/O, hashing or callbacks; calls of the RAM
// tier under it move pointers only. Order: `mu` before the tiers' and the event hub's own mutexes.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_STATE_H_
#define HEARTH_CACHE_STORE_STORE_STORE_STATE_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/erasures.h"
#include "cache_store/catalog/evictor.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/history.h"
#include "cache_store/catalog/single_flight.h"

namespace hearth {

struct StoreState {
  StoreState(const Evictor::Limits& limits, RetentionPolicy retention, TenantQuotas quotas,
             Catalog::OnRemoved on_removed)
      : objects(std::move(quotas)),
        catalog(&objects, retention, std::move(on_removed)),
        evictor(limits, &objects, &catalog) {}

  absl::Mutex mu;
  ObjectTable objects ABSL_GUARDED_BY(mu);
  Catalog catalog ABSL_GUARDED_BY(mu);
  Evictor evictor ABSL_GUARDED_BY(mu);
  SingleFlight flight ABSL_GUARDED_BY(mu);
  FingerprintBook fingerprints ABSL_GUARDED_BY(mu);
  History history ABSL_GUARDED_BY(mu);
  Erasures erasures ABSL_GUARDED_BY(mu);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_STATE_H_
