#include "services/inference/remote_prefix_cache.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/base/clock.h"
#include "proto/restore_rule.h"
#include "services/rpc/proto_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

// The store's word that a wait has ended has this long to arrive.
constexpr absl::Duration kWaitSlack = absl::Milliseconds(250);

uint32_t WireMs(absl::Duration duration) {
  return static_cast<uint32_t>(
      std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<uint32_t>::max()));
}

// Sends one object's slices in pieces, from where they lie. False when the stream is broken.
bool SendObject(const std::shared_ptr<const KvObject>& object, const KvLayout& layout,
                uint32_t index, ByteCall* stream) {
  const size_t slice_bytes = layout.SliceBytes(object->id.tokens);
  absl::Span<const std::byte> rest(object->bytes.get(), object->size_bytes);
  for (uint32_t layer : layout.LayersOf(object->id.group)) {
    for (size_t offset = 0; offset < slice_bytes; offset += kMaxSlicePieceBytes) {
      const auto piece = rest.subspan(offset, std::min(kMaxSlicePieceBytes, slice_bytes - offset));
      if (!stream->Write(SliceMessage({index, layer, offset}, object, piece))) return false;
    }
    rest.remove_prefix(slice_bytes);
  }
  assert(rest.empty());
  return true;
}

// A lease, which is open for as long as this is there.
struct HeldLease : StoreStream, ComputeLease {
  using StoreStream::StoreStream;
};

absl::Status ReadTurn(ByteCall* stream, v1::LeaseResponse* turn) {
  grpc::ByteBuffer bytes;
  if (stream->Read(&bytes)) return ParseMessage(bytes, turn);
  absl::Status failed = FromGrpcStatus(stream->Finish());
  return failed.ok() ? absl::DataLossError("the lease ended before its answer") : failed;
}

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
  load->OnEnd(LoadDecision::kAbandoned, bytes_received);
  return absl::AbortedError("the transfer became slower than computing");
}

// Takes slices from the stream to its end, or until every one is there when it `stays_open`.
// kAborted: `load` had no patience left, and was told.
absl::Status ReadSlices(ByteCall* stream, bool stays_open, LoadTrial* load, ObjectBuilder* builder,
                        uint64_t* bytes_received) {
  grpc::ByteBuffer bytes;
  v1::FetchResponse message;
  for (;;) {
    if (stays_open && builder->complete()) return absl::OkStatus();
    const std::optional<absl::Duration> patience = load->Patience(*bytes_received);
    if (patience.has_value() && !builder->complete()) {
      if (*patience == absl::ZeroDuration()) return CutOff(load, *bytes_received);
      stream->SetPatience(*patience);
    }
    if (!stream->Read(&bytes)) {
      if (patience.has_value() && stream->late()) return CutOff(load, *bytes_received);
      if (stream->late()) load->OnEnd(LoadDecision::kMiss, *bytes_received);
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

template <typename Ours, typename Theirs>
absl::Status Differs(const char* field, const Ours& ours, const Theirs& theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat("plan: ", field, " is ", theirs, "; the request has ", ours));
}

absl::Status CheckShared(const v1::SharedSlices& shared, const MappedSegment& segment) {
  if (segment.layout().device.has_value()) {
    return absl::FailedPreconditionError("plan: slices of the host in a device's segment");
  }
  const int slices = shared.objects_size();
  if (shared.layers_size() == slices && shared.offsets_size() == slices &&
      shared.generations_size() == slices) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("plan: the shared slices' lists differ in length");
}

// Maps the segment that a store offers. OK when the next fetch can use it.
template <typename Client>
absl::Status TakeOffer(const v1::SharedSegment& offer, Client* client) {
  SegmentId id;
  if (offer.id().size() != id.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan: segment.id has ", offer.id().size(), " bytes"));
  }
  std::copy(offer.id().begin(), offer.id().end(), id.begin());
  return client->MapOffered(offer.socket(), id);
}

// Copies the objects that a plan shares on the device to this worker's own memory there, and adds
// them to `announced`, for a new builder. Errors as CopyShared; digests cannot be checked.
absl::Status CopyFromDevice(const v1::SharedSlices& shared, const KvLayout& layout,
                            const MappedDevice& device, DeviceClient* client,
                            std::vector<ObjectBuilder::Announced>* announced) {
  const int objects = shared.objects_size();
  if (shared.offsets_size() != objects || shared.generations_size() != objects) {
    return absl::FailedPreconditionError("plan: the device objects' lists differ in length");
  }
  std::vector<SegmentRange> ranges;
  for (int i = 0; i < objects; ++i) {
    if (shared.objects(i) >= announced->size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan: device object ", shared.objects(i), " of ", announced->size()));
    }
    const ObjectId& id = (*announced)[shared.objects(i)].id;
    ranges.push_back(
        {shared.offsets(i), layout.ObjectBytes(id.tokens, id.group), shared.generations(i)});
  }
  auto copies = client->Copy(device, ranges);
  if (!copies.ok()) return copies.status();
  for (int i = 0; i < objects; ++i) {
    (*announced)[shared.objects(i)].device_bytes = std::move((*copies)[i]);
  }
  return absl::OkStatus();
}

// The name under which a fetch is counted that must use the wire instead.
const char* FallbackReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return "reused";
    case absl::StatusCode::kDataLoss:
      return "corrupt";
    case absl::StatusCode::kUnavailable:
      return "unreachable";  // another host or user, or no socket there
    default:
      return "error";
  }
}

}  // namespace

absl::Status CheckPlan(const PlanRequest& wanted, const v1::FetchPlan& plan) {
  const v1::InferenceState& state = plan.state();
  const absl::StatusOr<Digest> digest = DigestFromBytes(state.fingerprint().digest());
  const PrefixRequest& prefix = *wanted.prefix;
  const uint32_t usable = plan.usable_tokens();
  assert(usable > 0);
  const uint32_t most = wanted.max_tokens > 0 ? wanted.max_tokens
                                              : static_cast<uint32_t>(prefix.token_ids.size()) - 1;
  if (usable <= wanted.above_tokens || usable > most) {
    return Differs("usable_tokens", absl::StrCat("(", wanted.above_tokens, ", ", most, "]"),
                   usable);
  }
  if (usable > prefix.token_ids.size()) {
    return Differs("usable_tokens", prefix.token_ids.size(), usable);
  }
  if (state.token_count() != usable) return Differs("token_count", usable, state.token_count());
  if (state.next_position() != usable)
    return Differs("next_position", usable, state.next_position());
  if (state.attention_mask() != kCausalMask) {
    return Differs("attention_mask", kCausalMask, state.attention_mask());
  }
  if (!digest.ok() || *digest != wanted.fingerprint->digest()) {
    return Differs("fingerprint", DigestHex(wanted.fingerprint->digest()),
                   digest.ok() ? DigestHex(*digest) : "no digest");
  }
  if (static_cast<uint32_t>(state.token_ids_size()) != usable) {
    return Differs("number of token_ids", usable, state.token_ids_size());
  }
  for (uint32_t i = 0; i < usable; ++i) {
    if (state.token_ids(static_cast<int>(i)) != prefix.token_ids[i]) {
      return Differs(absl::StrCat("token_ids[", i, "]").c_str(), prefix.token_ids[i],
                     state.token_ids(static_cast<int>(i)));
    }
  }
  for (const Segment& segment : SegmentsTo(usable, wanted.layout->chunk_tokens)) {
    // Cuts at a segment's ends change nothing, so only those inside are compared.
    const auto ours = CutsInside(segment, prefix.cuts, wanted.layout->exactness);
    const auto theirs = CutsInside(segment, state.cuts(), wanted.layout->exactness);
    if (ours != theirs) {
      return Differs(absl::StrCat("cuts inside the segment at ", segment.begin).c_str(),
                     absl::StrCat("{", absl::StrJoin(ours, ", "), "}"),
                     absl::StrCat("{", absl::StrJoin(theirs, ", "), "}"));
    }
  }
  return absl::OkStatus();
}

void ReadAck(const v1::PublishAck& ack, PublishOutcome* outcome) {
  outcome->boundaries.assign(ack.boundaries().begin(), ack.boundaries().end());
  for (const uint32_t boundary : ack.boundaries()) {
    outcome->published_tokens = std::max(outcome->published_tokens, boundary);
  }
  outcome->durable = FromProto(ack.durable()).value_or(Durability::kDefault);
  outcome->note = absl::StrJoin(ack.notes(), "; ");
}

absl::Status CopyShared(const v1::SharedSlices& shared, const MappedSegment& segment,
                        ObjectBuilder* builder) {
  if (absl::Status status = CheckShared(shared, segment); !status.ok()) return status;
  for (int i = 0; i < shared.objects_size(); ++i) {
    const SliceHeader header{shared.objects(i), shared.layers(i), 0};
    const absl::StatusOr<size_t> bytes = builder->SliceBytes(header.object);
    if (!bytes.ok()) return bytes.status();
    const absl::StatusOr<std::byte*> to = builder->Place(header, *bytes);
    if (!to.ok()) return to.status();
    absl::Status status =
        segment.Copy({shared.offsets(i), *bytes, shared.generations(i)}, *to, builder->hasher());
    if (status.ok()) status = builder->PutPiece();
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

RemotePrefixCache::~RemotePrefixCache() {
  calls_.CancelAll();
  calls_.AwaitEnd();
}

RemotePrefixCache::RemotePrefixCache(std::shared_ptr<grpc::Channel> channel,
                                     const ModelFingerprints& fingerprints, const KvLayout& layout,
                                     CacheCounters* counters, bool shared_memory,
                                     std::unique_ptr<DeviceClient> devices, Clock* clock,
                                     bool connects)
    : counters_(counters),
      layout_(layout),
      shared_memory_(shared_memory),
      channel_(std::move(channel)),
      stub_(v1::CacheStore::NewStub(channel_)),
      fingerprints_(fingerprints),
      clock_(clock == nullptr ? &steady_clock_ : clock),
      connects_(connects),
      devices_(std::move(devices)) {}

absl::Status RemotePrefixCache::CheckReachable(absl::Time deadline) {
  if (!breaker_.Allows(SteadyClock().Now())) {
    return absl::UnavailableError("the store did not answer lately; it is left alone for a while");
  }
  if (!connects_) return absl::OkStatus();
  // Asking also makes an idle channel connect, which is how a store that is back is noticed.
  const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
  if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
  if (state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    const absl::Duration left = deadline - clock_->Now();
    const absl::Duration enough = absl::Milliseconds(kConnectWaitMs);
    if (channel_->WaitForConnected(MonotonicIn(std::min(left, enough)))) return absl::OkStatus();
    if (left < enough) return absl::UnavailableError("there is no time to connect to the store");
    // A host that swallows packets keeps the channel connecting: wait for it once, not every time.
    const bool is_silent = channel_->GetState(false) == GRPC_CHANNEL_CONNECTING;
    if (is_silent) breaker_.OnSilence(SteadyClock().Now());
  }
  return absl::UnavailableError("the store cannot be reached");
}

void RemotePrefixCache::PutPrefix(const PrefixRequest& prefix, bool with_fields,
                                  v1::Prefix* out) const {
  const Fingerprint& fingerprint = fingerprints_.Of(prefix.adapter);
  if (with_fields) {
    ToProto(fingerprint, out->mutable_fingerprint());
  } else {
    DigestToProto(fingerprint.digest(), out->mutable_fingerprint());
  }
  out->mutable_token_ids()->Add(prefix.token_ids.begin(), prefix.token_ids.end());
  out->mutable_cuts()->Add(prefix.cuts.begin(), prefix.cuts.end());
  out->set_tenant(prefix.tenant);
}

bool RemotePrefixCache::IsKnown(const std::string& adapter) {
  const absl::MutexLock lock(&mu_);
  return known_.count(adapter) > 0;
}

void RemotePrefixCache::NoteKnown(const std::string& adapter, bool is_known) {
  const absl::MutexLock lock(&mu_);
  if (is_known) {
    known_.insert(adapter);
  } else {
    known_.erase(adapter);
  }
}

// One try of a fetch, and its outcome.
struct RemotePrefixCache::Attempt {
  const PrefixRequest& prefix;
  const uint32_t above_tokens, max_tokens;
  const absl::Time deadline;  // of the cache's clock
  LoadTrial* const load;
  uint64_t* const bytes;
  bool share = false;               // use the store's shared memory where it offers it
  absl::Status share_problem = {};  // why that cannot be
  bool copied = false;              // from it, or tried to
  bool store_verifies = false;      // as well, and quarantines what is rotten
  bool again = false;
};

FetchOutcome RemotePrefixCache::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, absl::Time deadline) {
  LoadModel always(LoadChoice::kAlways);
  LoadTrial unasked(&always, LoadTrial::Work());
  LoadTrial* const load = prefix.load == nullptr ? &unasked : prefix.load.get();
  uint64_t bytes = 0;
  Attempt attempt{prefix, above_tokens, max_tokens,    SteadyTime(deadline),
                  load,   &bytes,       shared_memory_};
  absl::StatusOr<FetchOutcome> outcome = TryFetch(&attempt);
  if (!attempt.share_problem.ok())
    counters_->CountSharedFallback(FallbackReason(attempt.share_problem));
  const absl::Status first = outcome.status();
  const bool rotten = absl::IsDataLoss(first);
  if (rotten || (attempt.copied && !attempt.share_problem.ok())) {
    // Over the wire, where the store verifies too and quarantines rotten objects itself.
    attempt.share = false;
    attempt.store_verifies = rotten;
    attempt.again = true;
    outcome = TryFetch(&attempt);
    // The store quarantined what was asked for: the outcome is the damage, not a miss.
    if (rotten && outcome.ok() && outcome->usable_tokens == 0) outcome = first;
  }
  return counters_->EndFetch(std::move(outcome), load, bytes);
}

absl::StatusOr<v1::FetchPlan> RemotePrefixCache::StartFetch(Attempt* attempt,
                                                            const MappedSegment* segment,
                                                            const MappedDevice* device,
                                                            ByteCall* stream) {
  v1::FetchRequest request;
  PutPrefix(attempt->prefix, !IsKnown(attempt->prefix.adapter), request.mutable_prefix());
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
  const absl::Time asked = attempt->load->Now();
  stream->WriteLast(MessageBytes(request));
  grpc::ByteBuffer bytes;
  if (!stream->Read(&bytes)) {
    absl::Status status = FromGrpcStatus(stream->Finish());
    if (absl::IsDeadlineExceeded(status)) {
      attempt->load->OnPlan(attempt->load->Now() - asked, /*late=*/true);
      // One that had less than the budget may be no silent store.
      if (attempt->load->PlanPatience() == attempt->load->work().budget)
        breaker_.OnSilence(SteadyClock().Now());
    }
    return status.ok() ? absl::DataLossError("the stream ended before its plan") : status;
  }
  breaker_.OnAnswer();
  attempt->load->OnPlan(attempt->load->Now() - asked);
  v1::FetchResponse message;
  if (!ParseMessage(bytes, &message).ok() || !message.has_plan()) {
    return absl::DataLossError("the stream began without a plan");
  }
  return std::move(*message.mutable_plan());
}

absl::StatusOr<FetchOutcome> RemotePrefixCache::TryFetch(Attempt* attempt) {
  if (absl::Status status = CheckReachable(attempt->deadline); !status.ok()) return status;
  const auto segment = attempt->share ? segments_.current() : nullptr;
  const auto device = attempt->share && devices_ != nullptr ? devices_->current() : nullptr;
  // An early return ends the call, and the server releases the objects that it promised.
  StoreStream call(
      &calls_, channel_, clock_, "Fetch", attempt->prefix, attempt->deadline,
      attempt->deadline + (attempt->prefix.load != nullptr ? kLongestLoad : absl::ZeroDuration()),
      attempt->prefix.stop);
  ByteCall& stream = call.stream;
  const absl::StatusOr<v1::FetchPlan> plan =
      StartFetch(attempt, segment.get(), device.get(), &stream);
  if (!plan.ok()) return plan.status();
  FetchOutcome outcome;
  outcome.matched_tokens =
      std::min<uint32_t>(plan->matched_tokens(), attempt->prefix.token_ids.size());
  NoteKnown(attempt->prefix.adapter, outcome.matched_tokens > 0);
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
                           &fingerprints_.Of(attempt->prefix.adapter), &layout_};
  if (absl::Status status = CheckPlan(wanted, *plan); !status.ok()) return status;
  if (!attempt->load->Accepts(OfferOf(*plan, layout_))) {
    outcome.declined_tokens = plan->usable_tokens();
    return outcome;
  }
  auto objects = TakeObjects(attempt, *plan, segment.get(), device.get(), &stream);
  if (!objects.ok()) return objects.status();
  attempt->load->OnEnd(LoadDecision::kLoad);
  outcome.usable_tokens = plan->usable_tokens();
  const bool on_device = plan->device().objects_size() == plan->objects_size();
  outcome.slowest_tier = on_device ? Tier::kGpu : FromProto(plan->slowest_tier());
  outcome.objects = *std::move(objects);
  return outcome;
}

// The objects of a checked plan, from wherever they lie.
absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> RemotePrefixCache::TakeObjects(
    Attempt* attempt, const v1::FetchPlan& plan, const MappedSegment* segment,
    const MappedDevice* device, ByteCall* stream) {
  std::vector<ObjectBuilder::Announced> announced = AnnouncedObjects(plan);
  if (plan.has_device() && device != nullptr) {
    attempt->copied = true;
    attempt->share_problem =
        CopyFromDevice(plan.device(), layout_, *device, devices_.get(), &announced);
    if (!attempt->share_problem.ok()) return attempt->share_problem;
  }
  absl::StatusOr<ObjectBuilder> builder =
      ObjectBuilder::Create(layout_, plan.usable_tokens(), std::move(announced));
  if (!builder.ok()) return builder.status();
  counters_->CountFromDevice(builder->bytes_on_device());
  if (plan.has_shared() && segment != nullptr) {
    attempt->copied = true;
    attempt->share_problem = CopyShared(plan.shared(), *segment, &*builder);
    if (!attempt->share_problem.ok()) return attempt->share_problem;
    counters_->CountShared(builder->bytes_added() - builder->bytes_on_device());
  }
  *attempt->bytes = builder->bytes_added();
  const bool leased = plan.has_shared() || plan.has_device();
  const absl::Status read = ReadSlices(stream, leased, attempt->load, &*builder, attempt->bytes);
  if (!read.ok()) return read;
  if (!leased || !builder->complete()) {
    if (absl::Status status = FromGrpcStatus(stream->Finish()); !status.ok()) return status;
  }
  return builder->Take();
}

// An offer, what the store lacks of it, a commit.
absl::StatusOr<PublishOutcome> RemotePrefixCache::TryPublish(const PublishRequestSpec& spec,
                                                             absl::Time deadline) {
  if (absl::Status status = CheckReachable(deadline); !status.ok()) return status;
  v1::PublishRequest message;
  v1::PublishBegin* begin = message.mutable_begin();
  PutPrefix(spec.prefix, /*with_fields=*/true, begin->mutable_prefix());
  begin->mutable_boundaries()->Add(spec.boundaries.begin(), spec.boundaries.end());
  begin->set_durability(ToProto(spec.durability));
  begin->set_ttl_s(spec.ttl_s);
  begin->set_keep_s(spec.hint.keep_s);
  begin->set_priority(spec.hint.priority);
  for (const auto& object : spec.objects) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object->id, ref);
    ref->mutable_slice_digests()->Add(object->slice_digests.begin(), object->slice_digests.end());
    ref->set_absent(object->bytes == nullptr);
  }
  if (absl::Status status = CheckMessageBytes(message.ByteSizeLong()); !status.ok()) return status;

  // An early return cancels the call.
  StoreStream call(&calls_, channel_, clock_, "Publish", spec.prefix, deadline, deadline);
  ByteCall& stream = call.stream;
  const auto finish = [&](const char* ended_early) {
    absl::Status status = FromGrpcStatus(stream.Finish());
    return status.ok() ? absl::DataLossError(ended_early) : status;
  };

  grpc::ByteBuffer answer;
  v1::PublishResponse response;
  if (!stream.Write(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the stream ended before its plan");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_plan()) {
    return absl::DataLossError("publish: the stream began without a plan");
  }
  PublishOutcome outcome;
  const v1::PublishPlan plan = response.plan();
  std::vector<ObjectId> lacked;
  for (uint32_t index : plan.needed()) {
    if (index >= spec.objects.size() || spec.objects[index]->bytes == nullptr) {
      return absl::DataLossError("publish: the store asked for an object that was not offered");
    }
    lacked.push_back(spec.objects[index]->id);
  }
  if (spec.on_plan != nullptr) spec.on_plan(lacked);
  for (uint32_t index : plan.needed()) {
    if (!SendObject(spec.objects[index], layout_, index, &stream)) {
      return finish("publish: the stream ended before the commit");
    }
    outcome.bytes_sent += spec.objects[index]->size_bytes;
  }
  message.mutable_commit();
  if (!stream.WriteLast(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the stream ended before its ack");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_ack()) {
    return absl::DataLossError("publish: no ack where one was due");
  }
  if (absl::Status status = FromGrpcStatus(stream.Finish()); !status.ok()) return status;
  ReadAck(response.ack(), &outcome);
  return outcome;
}

LeaseOutcome RemotePrefixCache::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, const LeaseTerms& terms,
                                      absl::Time deadline) {
  bool waited = false;
  auto outcome = TryLease(prefix, above_tokens, max_tokens, terms, SteadyTime(deadline), &waited);
  return counters_->EndLease(std::move(outcome), waited);
}

absl::StatusOr<LeaseOutcome> RemotePrefixCache::TryLease(const PrefixRequest& prefix,
                                                         uint32_t above_tokens, uint32_t max_tokens,
                                                         const LeaseTerms& terms,
                                                         absl::Time deadline, bool* waited) {
  v1::LeaseRequest request;
  PutPrefix(prefix, /*with_fields=*/true, request.mutable_prefix());
  request.set_above_tokens(above_tokens);
  request.set_max_tokens(max_tokens);
  request.set_min_tokens(terms.min_tokens);
  request.set_lease_ms(WireMs(terms.lease));
  request.set_wait_ms(WireMs(terms.wait));
  if (absl::Status status = CheckReachable(deadline); !status.ok()) return status;
  if (absl::Status status = CheckMessageBytes(request.ByteSizeLong()); !status.ok()) return status;
  const auto lease =
      std::make_shared<HeldLease>(&calls_, channel_, clock_, "Lease", prefix, deadline,
                                  deadline + terms.wait + kWaitSlack + terms.lease, prefix.stop);
  lease->stream.WriteLast(MessageBytes(request));
  v1::LeaseResponse answer;
  if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  if (answer.turn() == v1::LeaseResponse::WAIT) {
    *waited = true;
    lease->stream.SetPatience(terms.wait + kWaitSlack);
    if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  }
  LeaseOutcome outcome;
  outcome.usable_tokens = answer.usable_tokens();
  outcome.matched_tokens = answer.matched_tokens();
  if (answer.turn() == v1::LeaseResponse::COMPUTE) outcome.lease = lease;
  return outcome;
}

bool RemotePrefixCache::Quarantine(const PrefixRequest& prefix,
                                   const std::vector<ObjectId>& objects, absl::Time deadline) {
  v1::QuarantineRequest request;
  PutPrefix(prefix, /*with_fields=*/true, request.mutable_prefix());
  for (const ObjectId& id : objects) ToProto(id, request.add_objects());
  CallSet::Entry active(&calls_);
  active.context()->set_deadline(absl::ToChronoTime(deadline));
  v1::QuarantineResponse response;
  const absl::Status status =
      FromGrpcStatus(stub_->Quarantine(active.context(), request, &response));
  Log(LogLevel::kWarning, "an audit found other bytes in the store than this worker computes",
      {{"tenant", prefix.tenant},
       {"tokens", prefix.token_ids.size()},
       {"objects", objects.size()},
       {"quarantined", status.ok() ? std::to_string(response.objects()) : status.ToString()}});
  return status.ok();
}

void RemotePrefixCache::Explain(PrefixRequest prefix, absl::Time deadline, ExplainCallback done) {
  struct Call {
    explicit Call(CallSet* calls) : active(calls) {}
    CallSet::Entry active;
    v1::ExplainRequest request;
    v1::ExplainResponse response;
    ExplainCallback done;
  };
  auto call = std::make_shared<Call>(&calls_);
  call->done = std::move(done);
  call->active.context()->set_deadline(absl::ToChronoTime(deadline));
  PutPrefix(prefix, /*with_fields=*/true, call->request.mutable_prefix());
  grpc::ClientContext* context = call->active.context();
  const v1::ExplainRequest* request = &call->request;
  v1::ExplainResponse* response = &call->response;
  stub_->async()->Explain(context, request, response,
                          [call = std::move(call)](grpc::Status status) {
                            call->done(FromGrpcStatus(status), call->response);
                          });
}

}  // namespace hearth
