#include "services/inference/fetch_client.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "cache_store/base/clock.h"
#include "services/inference/plan_check.h"
#include "services/inference/shared_fetch.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

// The longest that a store lends its memory (SharedMemoryOffer::lease).
constexpr absl::Duration kLongestLoan = absl::Seconds(10);

// A load may outlast the fetch's deadline while it is faster than computing: its trial ends it.
constexpr absl::Duration kLongestLoad = absl::Minutes(10);

// The bytes are those of the objects that the plan names: its own total is not trusted.
LoadOffer OfferOf(const v1::FetchPlan& plan, const KvLayout& layout) {
  LoadOffer offer;
  offer.boundary = plan.usable_tokens();
  for (const v1::ObjectRef& object : plan.objects()) {
    const auto group = static_cast<LayerGroup>(object.group());
    offer.bytes += layout.ObjectBytes(std::min(object.tokens(), layout.chunk_tokens), group);
  }
  offer.message_bytes = std::min(layout.SliceBytes(layout.chunk_tokens), kMaxSlicePieceBytes);
  if (plan.device().objects_size() == plan.objects_size()) {
    offer.source = LoadSource::kDevice;
  } else if (plan.has_shared()) {
    offer.source = LoadSource::kShared;
  } else {
    const bool from_disk = plan.slowest_tier() == v1::TIER_DISK;
    offer.source = from_disk ? LoadSource::kWireDisk : LoadSource::kWire;
  }
  return offer;
}

std::vector<ObjectBuilder::Announced> AnnouncedObjects(const v1::FetchPlan& plan) {
  std::vector<ObjectBuilder::Announced> announced;
  announced.reserve(plan.objects_size());
  for (const v1::ObjectRef& object : plan.objects()) {
    // An unknown group gives an id that no boundary needs: Create refuses it.
    announced.push_back({{object.begin(), object.tokens(), static_cast<LayerGroup>(object.group())},
                         {object.slice_digests().begin(), object.slice_digests().end()}});
  }
  return announced;
}

absl::Status CutOff(LoadTrial* load, uint64_t bytes_received) {
  load->OnCutOff(bytes_received);
  return absl::AbortedError("the transfer became slower than computing");
}

// Takes slices from the stream to its end, or until every one is there when it `stays_open`.
// kAborted: `load` had no patience left, and was told.
absl::Status ReadSlices(FetchStream* stream, bool stays_open, LoadTrial* load,
                        ObjectBuilder* builder, uint64_t* bytes_received) {
  grpc::ByteBuffer bytes;
  v1::FetchResponse message;
  for (;;) {
    if (stays_open && builder->complete()) return absl::OkStatus();
    const std::optional<absl::Duration> patience = load->Patience(*bytes_received);
    if (patience.has_value() && !builder->complete()) {
      if (*patience == absl::ZeroDuration()) return CutOff(load, *bytes_received);
      stream->SetPatience(absl::Now() + *patience);
    }
    if (!stream->Read(&bytes)) {
      if (patience.has_value() && stream->late()) return CutOff(load, *bytes_received);
      if (stream->late()) load->OnCutOff(*bytes_received, LoadDecision::kMiss);
      return absl::OkStatus();
    }
    const absl::Status taken = TakeMessage(&bytes, &message, builder->hasher(),
                                           [builder](const SliceHeader& header, size_t data_bytes) {
                                             return builder->Place(header, data_bytes);
                                           });
    if (!taken.ok()) return taken;
    if (message.has_plan()) return absl::DataLossError("a second plan in one stream");
    if (absl::Status put = builder->PutPiece(); !put.ok()) return put;
    *bytes_received = builder->bytes_added();
  }
}

}  // namespace

// One try of a fetch, and its outcome.
struct FetchClient::Attempt {
  const PrefixRequest& prefix;
  const uint32_t above_tokens, max_tokens;
  const absl::Time deadline;
  LoadTrial* const load;
  uint64_t* const bytes;
  bool share = false;               // use the store's shared memory where it offers it
  absl::Status share_problem = {};  // why that cannot be
  bool copied = false;              // from it, or tried to
  bool store_verifies = false;      // as well, and quarantines what is rotten
  bool again = false;
};

FetchClient::FetchClient(StoreConnection* connection, const KvLayout& layout,
                         CacheCounters* counters, SharedMemoryUse shared_memory,
                         std::unique_ptr<DeviceClient> devices)
    : connection_(connection),
      layout_(layout),
      counters_(counters),
      shared_memory_(shared_memory),
      devices_(std::move(devices)) {}

FetchOutcome FetchClient::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                uint32_t max_tokens, absl::Time deadline) {
  LoadTrial unarmed;
  LoadTrial* const load = prefix.load == nullptr ? &unarmed : prefix.load.get();
  uint64_t bytes = 0;
  const bool share = shared_memory_ != SharedMemoryUse::kOff;
  Attempt attempt{prefix, above_tokens, max_tokens, deadline, load, &bytes, share};
  absl::StatusOr<FetchOutcome> outcome = Try(&attempt);
  if (!attempt.share_problem.ok())
    counters_->CountSharedFallback(FallbackReason(attempt.share_problem));
  const absl::Status first = outcome.status();
  const bool rotten = absl::IsDataLoss(first);
  if (rotten || (attempt.copied && !attempt.share_problem.ok())) {
    // Over the wire, where the store verifies too and quarantines rotten objects itself.
    attempt.share = false;
    attempt.store_verifies = rotten;
    attempt.again = true;
    outcome = Try(&attempt);
    // The store quarantined what was asked for: the outcome is the damage, not a miss.
    if (rotten && outcome.ok() && outcome->usable_tokens == 0) outcome = first;
  }
  return counters_->EndFetch(std::move(outcome), load, bytes);
}

absl::StatusOr<v1::FetchPlan> FetchClient::Start(Attempt* attempt, const MappedSegment* segment,
                                                 const MappedDevice* device, FetchStream* stream) {
  v1::FetchRequest request;
  connection_->ToProto(attempt->prefix, /*with_fields=*/false, request.mutable_prefix());
  request.set_above_tokens(attempt->above_tokens);
  request.set_max_tokens(attempt->max_tokens);
  request.set_verifies(!attempt->store_verifies);
  request.set_again(attempt->again);
  if (segment != nullptr) {
    request.set_segment_id(segment->id().data(), segment->id().size());
  } else if (attempt->share) {
    request.set_segment_id("");
  }
  if (device != nullptr) {
    const SegmentId& id = device->segment->id();
    request.set_device_segment_id(id.data(), id.size());
  } else if (attempt->share && devices_ != nullptr) {
    request.set_device_segment_id("");
  }
  if (absl::Status status = CheckMessageBytes(request.ByteSizeLong()); !status.ok()) return status;
  attempt->load->OnAsk();
  stream->WriteLast(MessageBytes(request));
  grpc::ByteBuffer bytes;
  if (!stream->Read(&bytes)) {
    absl::Status status = FromGrpcStatus(stream->Finish());
    if (absl::IsDeadlineExceeded(status)) {
      attempt->load->OnPlan(/*late=*/true);
      if (!attempt->load->is_hurried()) connection_->breaker()->OnSilence(SteadyClock().Now());
    }
    return status.ok() ? absl::DataLossError("the stream ended before its plan") : status;
  }
  connection_->breaker()->OnAnswer();
  attempt->load->OnPlan();
  v1::FetchResponse message;
  if (!ParseMessage(bytes, &message).ok() || !message.has_plan()) {
    return absl::DataLossError("the stream began without a plan");
  }
  return std::move(*message.mutable_plan());
}

absl::StatusOr<FetchOutcome> FetchClient::Try(Attempt* attempt) {
  if (absl::Status status = connection_->CheckReachable(attempt->deadline); !status.ok())
    return status;
  const auto segment = attempt->share ? segments_.current() : nullptr;
  const auto device = attempt->share && devices_ != nullptr ? devices_->current() : nullptr;
  // An early return ends the call, and the server releases the objects that it promised. A loan
  // holds the call open until its bytes are copied, so that they are not used again.
  const bool may_lend = segment != nullptr && shared_memory_ == SharedMemoryUse::kLend;
  const auto call = std::make_shared<StoreStream>(
      connection_, "Fetch", attempt->prefix, attempt->deadline,
      attempt->deadline + (may_lend ? kLongestLoan : absl::ZeroDuration()) +
          (attempt->prefix.load != nullptr ? kLongestLoad : absl::ZeroDuration()),
      attempt->prefix.stop);
  FetchStream& stream = call->stream;
  const absl::StatusOr<v1::FetchPlan> plan = Start(attempt, segment.get(), device.get(), &stream);
  if (!plan.ok()) return plan.status();
  FetchOutcome outcome;
  outcome.matched_tokens =
      std::min<uint32_t>(plan->matched_tokens(), attempt->prefix.token_ids.size());
  outcome.note = plan->miss_reason();
  if (plan->has_segment()) attempt->share_problem = TakeOffer(plan->segment(), &segments_);
  if (plan->has_device_segment() && devices_ != nullptr) {
    attempt->share_problem.Update(TakeOffer(plan->device_segment(), devices_.get()));
  }
  if (plan->usable_tokens() == 0) {
    stream.Finish();
    return outcome;
  }
  const PlanRequest wanted{&attempt->prefix, attempt->above_tokens, attempt->max_tokens,
                           &connection_->fingerprint(), &layout_};
  if (absl::Status status = CheckPlan(wanted, *plan); !status.ok()) return status;
  if (!attempt->load->Accepts(OfferOf(*plan, layout_))) {
    outcome.declined_tokens = plan->usable_tokens();
    return outcome;
  }
  auto objects = TakeObjects(attempt, *plan, segment, device.get(), call);
  if (!objects.ok()) return objects.status();
  attempt->load->OnArrived();
  outcome.usable_tokens = plan->usable_tokens();
  const bool on_device = plan->device().objects_size() == plan->objects_size();
  outcome.slowest_tier = on_device ? Tier::kGpu : FromProto(plan->slowest_tier());
  outcome.objects = *std::move(objects);
  return outcome;
}

// The objects of a checked plan, from wherever they lie.
absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> FetchClient::TakeObjects(
    Attempt* attempt, const v1::FetchPlan& plan,
    const std::shared_ptr<const MappedSegment>& segment, const MappedDevice* device,
    const std::shared_ptr<StoreStream>& call) {
  std::vector<ObjectBuilder::Announced> announced = AnnouncedObjects(plan);
  if (plan.has_device() && device != nullptr) {
    attempt->copied = true;
    attempt->share_problem =
        CopyFromDevice(plan.device(), layout_, *device, devices_.get(), &announced);
    if (!attempt->share_problem.ok()) return attempt->share_problem;
  }
  const bool shares = plan.has_shared() && segment != nullptr;
  if (shares) {
    attempt->copied = true;
    if (shared_memory_ == SharedMemoryUse::kLend) {
      attempt->share_problem = LendShared(plan.shared(), layout_, segment, call, &announced);
    }
    if (!attempt->share_problem.ok()) return attempt->share_problem;
  }
  absl::StatusOr<ObjectBuilder> builder =
      ObjectBuilder::Create(layout_, plan.usable_tokens(), std::move(announced));
  if (!builder.ok()) return builder.status();
  counters_->CountFromDevice(builder->bytes_on_device());
  if (shares) {
    attempt->share_problem = CopyShared(plan.shared(), *segment, &*builder);
    if (!attempt->share_problem.ok()) return attempt->share_problem;
    counters_->CountShared(builder->bytes_added() - builder->bytes_on_device());
  }
  *attempt->bytes = builder->bytes_added();
  const bool leased = plan.has_shared() || plan.has_device();
  const absl::Status read =
      ReadSlices(&call->stream, leased, attempt->load, &*builder, attempt->bytes);
  if (!read.ok()) return read;
  if (!leased || !builder->complete()) {
    if (absl::Status status = FromGrpcStatus(call->stream.Finish()); !status.ok()) return status;
  }
  return builder->Take();
}

}  // namespace hearth
