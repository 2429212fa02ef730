// StoreStatus: the figures of a store's status page, as JSON.
//
// No tenant's content: the hottest prefixes are ids, sizes and counts. Thread safety: all methods
// from any thread. Ownership: the store must outlive it.
#ifndef HEARTH_SERVICES_STORE_STORE_STATUS_H_
#define HEARTH_SERVICES_STORE_STORE_STATUS_H_

#include <cstddef>
#include <string>

#include "cache_store/base/clock.h"
#include "cache_store/store/store_admin.h"
#include "services/serving/status_figures.h"

namespace hearth {

class StoreStatus {
 public:
  static constexpr size_t kHottest = 10;

  // `clock` null: the system's.
  StoreStatus(StoreAdmin* store, std::string version, Clock* clock = nullptr);

  StatusFigures* figures() { return &figures_; }

 private:
  StatusFigures::Totals Totals() const;
  void Add(Json* json) const;

  StoreAdmin* const store_;
  StatusFigures figures_;  // last: it uses the others
};

// The value below which a share `q` of the observations lies, from the buckets; 0 without any.
double Quantile(const LatencyCounts& counts, double q);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_STORE_STATUS_H_
