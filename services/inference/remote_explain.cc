// RemotePrefixCache's explanations: the one call of a worker that no thread waits for.
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/rpc/status_conversion.h"

namespace hearth {

struct RemotePrefixCache::Explains {
  // Counts as under way for as long as it lives.
  class Ticket {
   public:
    explicit Ticket(std::shared_ptr<Explains> all) : all_(std::move(all)) {
      absl::MutexLock lock(&all_->mu);
      ++all_->under_way;
    }
    ~Ticket() {
      absl::MutexLock lock(&all_->mu);
      --all_->under_way;
    }
    Ticket(const Ticket&) = delete;
    Ticket& operator=(const Ticket&) = delete;

   private:
    const std::shared_ptr<Explains> all_;
  };
  absl::Mutex mu;
  int under_way ABSL_GUARDED_BY(mu) = 0;
};

std::shared_ptr<RemotePrefixCache::Explains> RemotePrefixCache::MakeExplains() {
  return std::make_shared<Explains>();
}

// A call's context holds the channel. The last to let go of a channel must not be gRPC's own
// thread, which would wait for itself to end; so no call is left when the cache goes.
RemotePrefixCache::~RemotePrefixCache() {
  calls_.CancelAll();
  absl::MutexLock lock(&explains_->mu);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(explains_->mu) {
    return explains_->under_way == 0;
  };
  explains_->mu.Await(absl::Condition(&none));
}

void RemotePrefixCache::Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) {
  struct Call {
    Call(std::shared_ptr<Explains> all, CallSet* calls)
        : ticket(std::move(all)), entry(calls, &context) {}

    Explains::Ticket ticket;  // goes last
    grpc::ClientContext context;
    CallSet::Entry entry;
    v1::ExplainRequest request;
    v1::ExplainResponse response;
    ExplainCallback done;
  };
  auto call = std::make_shared<Call>(explains_, &calls_);
  call->done = std::move(done);
  call->context.set_deadline(absl::ToChronoTime(deadline));
  PrefixToProto(prefix, /*with_fields=*/true, call->request.mutable_prefix());
  grpc::ClientContext* context = &call->context;
  const v1::ExplainRequest* request = &call->request;
  v1::ExplainResponse* response = &call->response;
  stub_->async()->Explain(context, request, response,
                          [call = std::move(call)](grpc::Status status) {
                            call->done(FromGrpcStatus(status), call->response);
                          });
}

}  // namespace hearth
