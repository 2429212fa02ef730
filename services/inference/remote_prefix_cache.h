// RemotePrefixCache: a worker's cache in a store, over gRPC. The store may be slow, down or wrong.
//
// Before it uses a byte, it checks the plan against the request and the running model: token ids,
// cuts, position, mask, fingerprint and objects. It also checks every slice against its digest. If
// the store is on the same host, the cache reads the store's shared memory; if that fails, the same
// fetch goes over the wire. If the store is down, a request loses no time (the channel's state
// shows it). If the store is silent, one request loses the fetch budget, and then the cache does
// not ask for a while (CircuitBreaker). When the store comes back, the cache uses it again
// automatically. Thread safety: all methods from any thread. Ownership: owns its channel; counters
// must outlive the cache, and the cache must outlive its leases.
#ifndef HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
#define HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_

#include <grpcpp/channel.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/cache_store.pb.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "services/inference/cache_counters.h"
#include "services/inference/object_builder.h"
#include "services/inference/slice_copier.h"
#include "services/inference/store_stream.h"
#include "services/rpc/segment_client.h"

namespace hearth {

// A fetch request, to check the store's plan against it. `max_tokens` 0: all tokens of the prompt
// except one.
struct PlanRequest {
  const PrefixRequest* prefix;
  uint32_t above_tokens;
  uint32_t max_tokens;
  const Fingerprint* fingerprint;
  const KvLayout* layout;
};

inline constexpr char kCausalMask[] = "causal";

// Compares a store's plan with the request and the running model: everything except the KV objects,
// which ObjectBuilder checks. kFailedPrecondition names the first field that differs, and both
// values. REQUIRES: usable_tokens > 0.
absl::Status CheckPlan(const PlanRequest& wanted, const v1::FetchPlan& plan);

// Copies the store's ack to all fields of `outcome` except bytes_sent.
void ReadAck(const v1::PublishAck& ack, PublishOutcome* outcome);

class RemotePrefixCache final : public PrefixCache {
 public:
  using ExplainCallback = std::function<void(absl::Status, const v1::ExplainResponse&)>;

  // `model`, `layout`: for prefixes without an adapter. `shared_memory`: whether to read the
  // store's shared memory if the store offers it. `import_device`: maps the store's memory on the
  // worker's device; null: that memory is not read. `clock`: for timeouts; must only go forward;
  // null: a SteadyClock. `connects`: false if the store is in this process, where the channel needs
  // no connection.
  RemotePrefixCache(std::shared_ptr<grpc::Channel> channel, const Fingerprint& model,
                    const KvLayout& layout, CacheCounters* counters, bool shared_memory = true,
                    ImportDevice import_device = nullptr, Clock* clock = nullptr,
                    bool connects = true);
  // Adds the fingerprint for prefixes of an adapter. Their layout is the model's. REQUIRES: no call
  // was made yet.
  void AddAdapter(const std::string& name, const Fingerprint& fingerprint) {
    models_[name].fingerprint = fingerprint;
  }
  // Cancels the calls in progress and waits for them. Afterwards no callback of Explain runs.
  ~RemotePrefixCache() override;

  // Asks the store for its shared memory and maps it, so that the first fetch can read it. Without
  // this call, the first fetch maps it for the second. Errors have no effect.
  void MapMemory(absl::Duration timeout);
  FetchOutcome Fetch(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     absl::Duration timeout) override;
  PublishOutcome Publish(const PublishRequestSpec& spec, absl::Duration timeout) override {
    return counters_->EndPublish(TryPublish(spec, clock_->Now() + timeout));
  }
  LeaseOutcome Lease(const PrefixRequest& prefix, uint32_t above_tokens, uint32_t max_tokens,
                     const LeaseTerms& terms, absl::Duration timeout) override;
  bool Quarantine(const PrefixRequest& prefix, const std::vector<ObjectId>& objects,
                  absl::Duration timeout) override;
  // Reports this worker to the store. Returns whether the store shows the first words of prompts.
  // kUnimplemented: an older store.
  absl::StatusOr<bool> Report(const v1::ReportRequest& report, absl::Duration timeout);
  // From now on sends the first words of prompts, as long as the last report's answer said that the
  // store shows them. `first_words`: makes a text of at most 256 bytes from the first
  // kFirstWordsTokens tokens of a prompt. REQUIRES: no call was made yet.
  void SendFirstWords(std::function<std::string(const std::vector<int32_t>&)> first_words) {
    first_words_ = std::move(first_words);
  }
  static constexpr size_t kFirstWordsTokens = 32;
  // Ends all calls in progress (fetch, publish, lease, explain), and refuses later calls.
  void CancelCalls() override { calls_.CancelAll(); }
  // Asks the store what it has for a prompt. Calls `done` once, from any thread, possibly before
  // Explain returns.
  void Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done);

  const CircuitBreaker& breaker() const { return breaker_; }  // for tests

 private:
  struct Attempt;
  struct Model {
    Fingerprint fingerprint;
    // Whether the store knows the fingerprint: the last fetch found something. If false, the next
    // fetch sends the fingerprint's readable fields.
    std::atomic<bool> is_known{false};
  };
  // A call waits at most this long for a connection that is being made.
  static constexpr int kConnectWaitMs = 250;

  // Returns OK if a call may be made now. `deadline`, here and below: a time of clock_.
  absl::Status CheckReachable(absl::Time deadline);
  void PutPrefix(const PrefixRequest& prefix, bool with_fields, v1::Prefix* out) const;
  absl::Status TryFetch(Attempt* attempt);
  // Maps the memory that a plan offers, for later fetches.
  void TakeOffers(const v1::FetchPlan& plan);
  v1::FetchRequest RequestOf(const Attempt& attempt);
  absl::StatusOr<v1::FetchPlan> AskForPlan(const v1::FetchRequest& request, BlockingStream* stream,
                                           LoadReport* load);
  absl::Status TakeObjects(Attempt* attempt, const v1::FetchPlan& plan,
                           const std::shared_ptr<StoreStream>& call);
  // Returns the words to send for a prompt; empty if they are not to be sent.
  std::string FirstWords(const PrefixRequest& prefix) const;
  // Counts the reason why shared memory could not be used, unless `status` is OK.
  void CountFallback(const absl::Status& status);
  absl::StatusOr<PublishOutcome> TryPublish(const PublishRequestSpec& spec, absl::Time deadline);
  absl::StatusOr<LeaseOutcome> TryLease(const PrefixRequest& prefix, uint32_t above_tokens,
                                        uint32_t max_tokens, const LeaseTerms& terms,
                                        absl::Time deadline, bool* waited);

  CacheCounters* const counters_;
  const KvLayout layout_;
  const bool shared_memory_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::CacheStore::Stub> stub_;
  std::map<std::string, Model> models_;  // keyed by adapter; "" is the model without an adapter
  SteadyClock steady_clock_;
  Clock* const clock_;
  const bool connects_;
  CircuitBreaker breaker_;
  CallSet calls_;
  SegmentClient segments_;
  SliceCopier copier_;
  const bool reads_device_;
  SegmentClient devices_;
  std::function<std::string(const std::vector<int32_t>&)> first_words_;
  std::atomic<bool> sends_words_{false};
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_REMOTE_PREFIX_CACHE_H_
