// StoreLink: the store that --store names: a store over gRPC, a store in this process, or none.
//
// Thread safety: after Open, accessors from any thread.
// Ownership: owns the cache, its counters and the embedded store; must outlive the engine.
#ifndef HEARTH_SERVICES_PROGRAMS_STORE_LINK_H_
#define HEARTH_SERVICES_PROGRAMS_STORE_LINK_H_

#include <grpcpp/impl/codegen/service_type.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/repeating_thread.h"
#include "cache_store/store/tiered_store.h"
#include "services/inference/cache_counters.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/inference/store_reporter.h"
#include "services/rpc/client_access.h"
#include "services/serving/access/identity.h"
#include "services/serving/calls/admission.h"
#include "services/serving/metrics.h"
#include "services/serving/reachability.h"
#include "worker/engine/engine.h"

namespace hearth {

class StoreLink {
 public:
  struct Options {
    std::string spec;            // "host:port", "unix:PATH", "embedded:DIR" or "none"
    StoreOptions embedded;       // options of an embedded store
    bool shared_memory = true;   // use the shared memory of a store on this host
    ClientAccess access;         // TLS and token for a store over gRPC
    std::string device = "cpu";  // the engine's device
  };
  ~StoreLink();
  // kInvalidArgument if `spec` has none of these forms; other errors name the flag of `access`.
  static absl::StatusOr<std::unique_ptr<StoreLink>> Open(Options options, const Engine& engine,
                                                         Admission* admission);

  RemotePrefixCache* cache() const { return cache_.get(); }  // null: no store
  grpc::Service* service() const;  // CacheService of an embedded store; else null

  const CacheCounters* counters() const { return cache_ == nullptr ? nullptr : &counters_; }
  // Returns whether a store over gRPC is reached; null for any other store.
  const Reachability* reachability() const { return reachability_.get(); }
  void AddMetrics(Metrics* metrics) const;
  // Reports `engine` to a store in another process every few seconds, under a name for people, with
  // the model's name and those of its adapters. Call once.
  void StartReports(const Engine* engine, const std::string& name, const std::string& model);
  // Ends the reports. Call before the engine is destroyed.
  void StopReports();
  // Waits until an embedded store has written its pending entries to disk, at most until
  // `deadline`.
  void Flush(absl::Time deadline) const;

 private:
  struct Embedded;
  StoreLink();

  CacheCounters counters_;
  std::unique_ptr<Reachability> reachability_;
  std::unique_ptr<Embedded> embedded_;
  std::unique_ptr<RemotePrefixCache> cache_;  // destroyed before the store that it calls
  // Its thread updates reachability_ and calls cache_.
  std::unique_ptr<RepeatingThread> reachability_check_;
  std::unique_ptr<StoreReporter> reporter_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_PROGRAMS_STORE_LINK_H_
