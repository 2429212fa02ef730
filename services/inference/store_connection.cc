#include "services/inference/store_connection.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {

StoreConnection::StoreConnection(std::shared_ptr<grpc::Channel> channel,
                                 const ModelFingerprints& fingerprints, Clock* clock, bool connects)
    : channel_(std::move(channel)),
      stub_(v1::CacheStore::NewStub(channel_)),
      fingerprints_(fingerprints),
      clock_(clock == nullptr ? &system_clock_ : clock),
      connects_(connects) {}

absl::Status StoreConnection::CheckReachable(absl::Time deadline) {
  if (!breaker_.Allows(SteadyClock().Now())) {
    return absl::UnavailableError("the store did not answer lately; it is left alone for a while");
  }
  if (!connects_) return absl::OkStatus();
  // Asking also makes an idle channel connect, which is how a store that is back is noticed.
  const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
  if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
  if (state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    const absl::Time enough = absl::Now() + absl::Milliseconds(kConnectWaitMs);
    if (channel_->WaitForConnected(absl::ToChronoTime(std::min(deadline, enough)))) {
      return absl::OkStatus();
    }
    if (deadline < enough)
      return absl::UnavailableError("there is no time to connect to the store");
    // A host that swallows packets keeps the channel connecting: wait for it once, not every time.
    const bool is_silent = channel_->GetState(false) == GRPC_CHANNEL_CONNECTING;
    if (is_silent) breaker_.OnSilence(SteadyClock().Now());
  }
  return absl::UnavailableError("the store cannot be reached");
}

void StoreConnection::ToProto(const PrefixRequest& prefix, bool with_fields,
                              v1::Prefix* out) const {
  const Fingerprint& fingerprint = fingerprints_.Of(prefix.adapter);
  if (with_fields) {
    hearth::ToProto(fingerprint, out->mutable_fingerprint());
  } else {
    DigestToProto(fingerprint.digest(), out->mutable_fingerprint());
  }
  out->mutable_token_ids()->Add(prefix.token_ids.begin(), prefix.token_ids.end());
  out->mutable_cuts()->Add(prefix.cuts.begin(), prefix.cuts.end());
  out->set_tenant(prefix.tenant);
}

grpc::ClientContext* StoreStream::Prepared(grpc::ClientContext* context,
                                           const std::string& request_id, absl::Time deadline) {
  SendRequestId(request_id, context);
  context->set_deadline(absl::ToChronoTime(deadline));
  return context;
}

}  // namespace hearth
