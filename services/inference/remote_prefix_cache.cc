#include "services/inference/remote_prefix_cache.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <cassert>
#include <limits>
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

// At the end of a lease's wait, the store's answer may take this much longer to arrive.
constexpr absl::Duration kWaitSlack = absl::Milliseconds(250);

uint32_t WireMs(absl::Duration duration) {
  return static_cast<uint32_t>(
      std::min<int64_t>(absl::ToInt64Milliseconds(duration), std::numeric_limits<uint32_t>::max()));
}

// Sends the slices of one object in pieces, without copying them. Returns false if the stream is
// broken.
bool SendObject(const std::shared_ptr<const KvObject>& object, const KvLayout& layout,
                uint32_t index, BlockingStream* stream) {
  assert(object->bytes != nullptr);
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

// A lease of the store, which ends when this object is destroyed.
struct HeldLease : StoreStream, ComputeLease {
  using StoreStream::StoreStream;
};

absl::Status ReadTurn(BlockingStream* stream, v1::LeaseResponse* turn) {
  grpc::ByteBuffer bytes;
  if (stream->Read(&bytes)) return ParseMessage(bytes, turn);
  absl::Status failed = FromGrpcStatus(stream->Finish());
  return failed.ok() ? absl::DataLossError("the store ended the lease stream without an answer")
                     : failed;
}

LoadSource SourceOf(const v1::FetchPlan& plan) {
  if (plan.device().objects_size() == plan.objects_size()) return LoadSource::kDevice;
  if (plan.has_shared()) return LoadSource::kShared;
  return plan.slowest_tier() == v1::TIER_DISK ? LoadSource::kWireDisk : LoadSource::kWire;
}

std::vector<ObjectBuilder::Announced> AnnouncedObjects(const v1::FetchPlan& plan) {
  std::vector<ObjectBuilder::Announced> announced;
  announced.reserve(plan.objects_size());
  for (const v1::ObjectRef& object : plan.objects()) {
    // An unknown layer group is refused by Create, because no boundary needs such an object.
    announced.push_back({{object.begin(), object.tokens(), static_cast<LayerGroup>(object.group())},
                         {object.slice_digests().begin(), object.slice_digests().end()}});
  }
  return announced;
}

// Reads slices until the stream ends. If the stream `stays_open`, reads until all slices have
// arrived.
absl::Status ReadSlices(BlockingStream* stream, bool stays_open, ObjectBuilder* builder) {
  grpc::ByteBuffer bytes;
  v1::FetchResponse message;
  while (!(stays_open && builder->complete()) && stream->Read(&bytes)) {
    const absl::Status taken = TakeMessage(&bytes, &message, builder->hasher(),
                                           [builder](const SliceHeader& header, size_t data_bytes) {
                                             return builder->Place(header, data_bytes);
                                           });
    if (!taken.ok()) return taken;
    if (message.has_plan()) return absl::DataLossError("the stream has a second plan");
    if (absl::Status put = builder->PutPiece(); !put.ok()) return put;
  }
  return absl::OkStatus();
}

template <typename Ours, typename Theirs>
absl::Status Differs(const char* field, const Ours& ours, const Theirs& theirs) {
  return absl::FailedPreconditionError(
      absl::StrCat("plan: ", field, " is ", theirs, "; the request has ", ours));
}

// Maps the shared memory segment that a store offers. Returns OK if the next fetch can use it.
absl::Status TakeOffer(const v1::SharedSegment& offer, SegmentClient* client,
                       bool* is_new = nullptr) {
  SegmentId id;
  if (offer.id().size() != id.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("plan: segment.id must be a whole id; got ", offer.id().size(), " bytes"));
  }
  std::copy(offer.id().begin(), offer.id().end(), id.begin());
  return client->MapOffered(offer.socket(), id, is_new);
}

// Adds the objects that a plan shares on the device to `announced`, for a new builder. They refer
// to the store's memory in place, and keep `call`, whose end is the end of the lease. The store may
// let the lease expire, so their reader checks the range after it has copied them; `count` gets an
// error of this check. Digests cannot be checked. Errors: those of SliceCopier::Copy.
absl::Status LendFromDevice(const v1::SharedSlices& shared, const KvLayout& layout,
                            const std::shared_ptr<const MappedSegment>& device,
                            const std::shared_ptr<StoreStream>& call,
                            const std::function<void(const absl::Status&)>& count,
                            std::vector<ObjectBuilder::Announced>* announced) {
  const int objects = shared.objects_size();
  if (shared.offsets_size() != objects || shared.generations_size() != objects) {
    return absl::FailedPreconditionError("plan: the lists of device objects differ in length");
  }
  for (int i = 0; i < objects; ++i) {
    if (shared.objects(i) >= announced->size()) {
      return absl::FailedPreconditionError(
          absl::StrCat("plan: there is no device object ", shared.objects(i),
                       "; objects in the plan: ", announced->size()));
    }
    ObjectBuilder::Announced& object = (*announced)[shared.objects(i)];
    const SegmentRange range{shared.offsets(i),
                             layout.ObjectBytes(object.id.tokens, object.id.group),
                             shared.generations(i)};
    if (absl::Status status = device->Check(range); !status.ok()) return status;
    const auto lent = std::make_shared<
        std::pair<std::shared_ptr<const MappedSegment>, std::shared_ptr<StoreStream>>>(device,
                                                                                       call);
    object.device_bytes = {lent, device->At(range)};
    object.check_device_bytes = [device, range, count] {
      absl::Status status = device->Check(range);
      count(status);
      return status;
    };
  }
  return absl::OkStatus();
}

// Returns the label under which a fetch is counted that must use the wire instead of shared memory.
const char* FallbackReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAborted:
      return "reused";
    case absl::StatusCode::kDataLoss:
      return "corrupt";
    case absl::StatusCode::kUnavailable:
      return "unreachable";  // another host or user, or there is no socket
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
    // Cuts at the ends of a segment have no effect, so only cuts inside are compared.
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

RemotePrefixCache::~RemotePrefixCache() {
  calls_.CancelAll();
  calls_.AwaitEnd();
}

RemotePrefixCache::RemotePrefixCache(std::shared_ptr<grpc::Channel> channel,
                                     const Fingerprint& model, const KvLayout& layout,
                                     CacheCounters* counters, bool shared_memory,
                                     ImportDevice import_device, Clock* clock, bool connects)
    : counters_(counters),
      layout_(layout),
      shared_memory_(shared_memory),
      channel_(std::move(channel)),
      stub_(v1::CacheStore::NewStub(channel_)),
      clock_(clock == nullptr ? &steady_clock_ : clock),
      connects_(connects),
      copier_({shared_memory ? ThreadPool::PhysicalCores() : 1}),
      reads_device_(import_device != nullptr),
      devices_(std::move(import_device)) {
  AddAdapter("", model);
}

absl::Status RemotePrefixCache::CheckReachable(absl::Time deadline) {
  if (!breaker_.Allows(clock_->Now())) {
    return absl::UnavailableError("the store did not answer recently; calls pause for a while");
  }
  if (!connects_) return absl::OkStatus();
  // GetState makes an idle channel connect, so the cache notices when a store is back.
  const grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
  if (state == GRPC_CHANNEL_READY) return absl::OkStatus();
  if (state != GRPC_CHANNEL_TRANSIENT_FAILURE) {
    const absl::Duration left = deadline - clock_->Now();
    const absl::Duration enough = absl::Milliseconds(kConnectWaitMs);
    if (channel_->WaitForConnected(MonotonicIn(std::min(left, enough)))) return absl::OkStatus();
    if (left < enough) return absl::UnavailableError("no time left to connect to the store");
    // If a host drops all packets, the channel stays in state CONNECTING. Only one request waits
    // for it: OnSilence opens the breaker.
    const bool is_silent = channel_->GetState(false) == GRPC_CHANNEL_CONNECTING;
    if (is_silent) breaker_.OnSilence(clock_->Now());
  }
  return absl::UnavailableError("the store cannot be reached");
}

void RemotePrefixCache::PutPrefix(const PrefixRequest& prefix, bool with_fields,
                                  v1::Prefix* out) const {
  const Fingerprint& fingerprint = models_.at(prefix.adapter).fingerprint;
  if (with_fields) {
    ToProto(fingerprint, out->mutable_fingerprint());
  } else {
    DigestToProto(fingerprint.digest(), out->mutable_fingerprint());
  }
  out->mutable_token_ids()->Add(prefix.token_ids.begin(), prefix.token_ids.end());
  out->mutable_cuts()->Add(prefix.cuts.begin(), prefix.cuts.end());
  out->set_tenant(prefix.tenant);
}

void RemotePrefixCache::CountFallback(const absl::Status& status) {
  if (!status.ok()) counters_->CountSharedFallback(FallbackReason(status));
}

// One attempt of a fetch, with its outcome.
struct RemotePrefixCache::Attempt {
  const PrefixRequest& prefix;
  const uint32_t above_tokens, max_tokens;
  absl::Time deadline;          // time of the cache's clock
  bool again = false;           // this is the second attempt, over the wire
  bool store_verifies = false;  // the store must verify too, and quarantine corrupt objects

  // The store's shared memory, if the plan may refer to it.
  std::shared_ptr<const MappedSegment> segment = nullptr, device = nullptr;

  FetchOutcome outcome = {};
  uint64_t bytes = 0;
  absl::Status copied = {};  // why shared memory could not be copied, if so
};

FetchOutcome RemotePrefixCache::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, absl::Duration timeout) {
  Attempt attempt{prefix, above_tokens, max_tokens, clock_->Now() + timeout};
  absl::Status status = TryFetch(&attempt);
  CountFallback(attempt.copied);
  const bool rotten = absl::IsDataLoss(status);
  if (rotten || !attempt.copied.ok()) {
    // Try again over the wire. After corrupt data, the store verifies too, and quarantines the
    // corrupt objects itself.
    attempt.again = true;
    attempt.store_verifies = rotten;
    attempt.deadline = clock_->Now() + timeout;  // the first attempt may have used up its time
    const absl::Status second = TryFetch(&attempt);
    // If the store has quarantined the objects, report the corruption of the first attempt, not a
    // miss.
    const bool is_gone = rotten && second.ok() && attempt.outcome.usable_tokens == 0;
    if (!is_gone) status = second;
  }
  return counters_->EndFetch(status, std::move(attempt.outcome), attempt.bytes);
}

v1::FetchRequest RemotePrefixCache::RequestOf(const Attempt& attempt) {
  v1::FetchRequest request;
  PutPrefix(attempt.prefix, !models_.at(attempt.prefix.adapter).is_known, request.mutable_prefix());
  request.set_above_tokens(attempt.above_tokens);
  request.set_max_tokens(attempt.max_tokens);
  request.set_verifies(!attempt.store_verifies);
  request.set_again(attempt.again);
  if (attempt.prefix.load != nullptr) {
    LoadReport token;
    token.boundary = 1;
    attempt.prefix.load->Compare({0, 1, 0}, &token);
    request.set_token_ns(static_cast<uint64_t>(
        absl::ToInt64Nanoseconds(token.compute_estimate.value_or(absl::ZeroDuration()))));
  }
  request.set_first_words(FirstWords(attempt.prefix));
  if (!shared_memory_ || attempt.again) return request;
  // An empty id asks the store to offer its segment.
  const auto put = [](const MappedSegment* segment, std::string* id) {
    if (segment != nullptr) id->assign(segment->id().begin(), segment->id().end());
  };
  put(attempt.segment.get(), request.mutable_segment_id());
  if (reads_device_) put(attempt.device.get(), request.mutable_device_segment_id());
  return request;
}

absl::StatusOr<v1::FetchPlan> RemotePrefixCache::AskForPlan(const v1::FetchRequest& request,
                                                            BlockingStream* stream,
                                                            LoadReport* load) {
  if (absl::Status status = CheckMessageBytes(request.ByteSizeLong()); !status.ok()) return status;
  const absl::Time asked = clock_->Now();
  grpc::ByteBuffer bytes;
  stream->WriteLast(MessageBytes(request));
  if (!stream->Read(&bytes)) {
    absl::Status status = FromGrpcStatus(stream->Finish());
    if (absl::IsDeadlineExceeded(status)) {
      load->is_late = true;
      load->plan_took = clock_->Now() - asked;
      breaker_.OnSilence(clock_->Now());
    }
    return status.ok() ? absl::DataLossError("the store ended the stream without a plan") : status;
  }
  breaker_.OnAnswer();
  load->plan_took = clock_->Now() - asked;
  load->decision = LoadDecision::kMiss;  // changed below if the plan offers tokens
  v1::FetchResponse message;
  if (!ParseMessage(bytes, &message).ok() || !message.has_plan()) {
    return absl::DataLossError("the store's first message is not a plan");
  }
  return std::move(*message.mutable_plan());
}

void RemotePrefixCache::TakeOffers(const v1::FetchPlan& plan) {
  if (plan.has_segment()) CountFallback(TakeOffer(plan.segment(), &segments_));
  if (!plan.has_device_segment() || !reads_device_) return;
  bool is_new = false;
  const absl::Status taken = TakeOffer(plan.device_segment(), &devices_, &is_new);
  CountFallback(taken);
  // A store on another host is normal.
  if (taken.ok() || !is_new || absl::IsUnavailable(taken)) return;
  Log(LogLevel::kWarning, "the store's gpu tier is not used",
      {{"reason", std::string(taken.message())}});
}

// Fetches one token, which no restore point has, so the answer is a miss.
void RemotePrefixCache::MapMemory(absl::Duration timeout) {
  const absl::Time deadline = clock_->Now() + timeout;
  if (!shared_memory_ || !CheckReachable(deadline).ok()) return;
  const PrefixRequest one{{0}, {}, ""};
  v1::FetchRequest request;
  PutPrefix(one, /*with_fields=*/false, request.mutable_prefix());
  request.set_above_tokens(1);
  request.set_max_tokens(1);
  request.set_again(true);  // does not count as a lookup
  request.mutable_segment_id();
  if (reads_device_) request.mutable_device_segment_id();
  StoreStream call(&calls_, channel_, clock_, "Fetch", one, deadline);
  LoadReport unused;
  const absl::StatusOr<v1::FetchPlan> plan = AskForPlan(request, &call.stream, &unused);
  if (!plan.ok()) return;
  TakeOffers(*plan);
  call.stream.Finish();
}

absl::Status RemotePrefixCache::TryFetch(Attempt* attempt) {
  // The store has counted the lookup if an earlier attempt received a plan.
  const bool was_counted = attempt->outcome.is_counted;
  attempt->outcome = FetchOutcome();
  FetchOutcome& outcome = attempt->outcome;
  outcome.is_counted = was_counted;
  if (absl::Status status = CheckReachable(attempt->deadline); !status.ok()) return status;
  const PrefixRequest& prefix = attempt->prefix;
  Model& model = models_.at(prefix.adapter);
  const bool shares = shared_memory_ && !attempt->again;
  attempt->segment = shares ? segments_.current() : nullptr;
  attempt->device = shares ? devices_.current() : nullptr;
  // The call's end, such as by an early return, makes the server release the objects of the plan.
  const auto call =
      std::make_shared<StoreStream>(&calls_, channel_, clock_, "Fetch", prefix, attempt->deadline);
  BlockingStream& stream = call->stream;
  const absl::StatusOr<v1::FetchPlan> plan =
      AskForPlan(RequestOf(*attempt), &stream, &outcome.load);
  if (!plan.ok()) return plan.status();
  outcome.matched_tokens = std::min<uint32_t>(plan->matched_tokens(), prefix.token_ids.size());
  model.is_known = outcome.matched_tokens > 0;
  outcome.note = plan->miss_reason();
  outcome.is_counted = true;
  TakeOffers(*plan);
  if (plan->usable_tokens() == 0) {
    if (!attempt->again) {
      outcome.counted_held = std::min<uint32_t>(attempt->above_tokens, prefix.token_ids.size());
    }
    stream.Finish();
    return absl::OkStatus();
  }
  const PlanRequest wanted{&prefix, attempt->above_tokens, attempt->max_tokens, &model.fingerprint,
                           &layout_};
  if (absl::Status status = CheckPlan(wanted, *plan); !status.ok()) return status;
  LoadReport& load = outcome.load;
  load.decision = LoadDecision::kLoad;
  load.source = SourceOf(*plan);
  load.boundary = plan->usable_tokens();
  load.bytes = NeededBytes(layout_, load.boundary);
  if (prefix.load != nullptr) prefix.load->Decide(prefix.work, &load);
  if (load.decision == LoadDecision::kCompute) {
    outcome.declined_tokens = load.boundary;
    // The store counts the tokens of mapped memory when it offers them.
    const bool is_mapped = plan->has_shared() || plan->has_device();
    if (is_mapped && !attempt->again) outcome.counted_held = attempt->above_tokens;
    return absl::OkStatus();
  }
  if (load.limits.has_value()) {
    stream.SetTimeout(load.limits->transfer, load.limits->message);
  }
  const absl::Time begun = clock_->Now();
  const absl::Status status = TakeObjects(attempt, *plan, call);
  load.took = clock_->Now() - begun;
  if (stream.late()) {
    load.is_late = true;
    const size_t slice_bytes = layout_.SliceBytes(layout_.chunk_tokens);
    load.received = attempt->bytes + std::min(slice_bytes, kMaxSlicePieceBytes) / 2;
    if (load.limits.has_value()) load.decision = LoadDecision::kAbandoned;
    outcome.declined_tokens = load.boundary;
  }
  if (!status.ok()) return status;
  assert(load.boundary > attempt->above_tokens && !outcome.objects.empty());
  outcome.usable_tokens = load.boundary;
  outcome.slowest_tier =
      load.source == LoadSource::kDevice ? Tier::kGpu : FromProto(plan->slowest_tier());
  return absl::OkStatus();
}

// Reads the objects of a checked plan from the device, from shared memory and from the wire, and
// stores them in the attempt's outcome.
absl::Status RemotePrefixCache::TakeObjects(Attempt* attempt, const v1::FetchPlan& plan,
                                            const std::shared_ptr<StoreStream>& call) {
  std::vector<ObjectBuilder::Announced> announced = AnnouncedObjects(plan);
  if (plan.has_device() && attempt->device != nullptr) {
    attempt->copied = LendFromDevice(
        plan.device(), layout_, attempt->device, call,
        [this](const absl::Status& status) { CountFallback(status); }, &announced);
    if (!attempt->copied.ok()) return attempt->copied;
  }
  absl::StatusOr<ObjectBuilder> builder =
      ObjectBuilder::Create(layout_, plan.usable_tokens(), std::move(announced));
  if (!builder.ok()) return builder.status();
  counters_->CountFromDevice(builder->bytes_on_device());
  if (plan.has_shared() && attempt->segment != nullptr) {
    attempt->copied = copier_.Copy(plan.shared(), *attempt->segment, &*builder);
    if (!attempt->copied.ok()) return attempt->copied;
    counters_->CountShared(builder->bytes_added() - builder->bytes_on_device());
  }
  const bool leased = plan.has_shared() || plan.has_device();
  absl::Status status = ReadSlices(&call->stream, leased, &*builder);
  attempt->bytes = builder->bytes_added();
  if (status.ok() && (!leased || !builder->complete())) {
    status = FromGrpcStatus(call->stream.Finish());
  }
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<std::shared_ptr<const KvObject>>> objects = builder->Take();
  if (!objects.ok()) return objects.status();
  attempt->outcome.objects = *std::move(objects);
  return absl::OkStatus();
}

// One attempt to publish: offers the objects, sends those that the store does not have, and
// commits.
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
  begin->set_first_words(FirstWords(spec.prefix));
  for (const auto& object : spec.objects) {
    v1::ObjectRef* ref = begin->add_objects();
    ToProto(object->id, ref);
    ref->mutable_slice_digests()->Add(object->slice_digests.begin(), object->slice_digests.end());
    ref->set_absent(object->bytes == nullptr);
  }
  if (absl::Status status = CheckMessageBytes(message.ByteSizeLong()); !status.ok()) return status;

  // An early return cancels the call.
  StoreStream call(&calls_, channel_, clock_, "Publish", spec.prefix, deadline);
  BlockingStream& stream = call.stream;
  const auto finish = [&](const char* ended_early) {
    absl::Status status = FromGrpcStatus(stream.Finish());
    return status.ok() ? absl::DataLossError(ended_early) : status;
  };

  grpc::ByteBuffer answer;
  v1::PublishResponse response;
  if (!stream.Write(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the store ended the stream without a plan");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_plan()) {
    return absl::DataLossError("publish: the store's first message is not a plan");
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
      return finish("publish: the store ended the stream before all slices were sent");
    }
    outcome.bytes_sent += spec.objects[index]->size_bytes;
  }
  message.mutable_commit();
  if (!stream.WriteLast(MessageBytes(message)) || !stream.Read(&answer)) {
    return finish("publish: the store ended the stream without an ack");
  }
  if (!ParseMessage(answer, &response).ok() || !response.has_ack()) {
    return absl::DataLossError("publish: expected an ack from the store; got another message");
  }
  if (absl::Status status = FromGrpcStatus(stream.Finish()); !status.ok()) return status;
  ReadAck(response.ack(), &outcome);
  return outcome;
}

LeaseOutcome RemotePrefixCache::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, const LeaseTerms& terms,
                                      absl::Duration timeout) {
  bool waited = false;
  auto outcome =
      TryLease(prefix, above_tokens, max_tokens, terms, clock_->Now() + timeout, &waited);
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
      std::make_shared<HeldLease>(&calls_, channel_, clock_, "Lease", prefix, deadline);
  lease->stream.WriteLast(MessageBytes(request));
  v1::LeaseResponse answer;
  if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  if (answer.turn() == v1::LeaseResponse::WAIT) {
    *waited = true;
    if (terms.on_wait != nullptr) terms.on_wait();
    lease->stream.SetTimeout(terms.wait + kWaitSlack);
    if (absl::Status status = ReadTurn(&lease->stream, &answer); !status.ok()) return status;
  }
  LeaseOutcome outcome;
  outcome.usable_tokens = answer.usable_tokens();
  outcome.matched_tokens = answer.matched_tokens();
  if (answer.turn() == v1::LeaseResponse::COMPUTE) outcome.lease = lease;
  return outcome;
}

bool RemotePrefixCache::Quarantine(const PrefixRequest& prefix,
                                   const std::vector<ObjectId>& objects, absl::Duration timeout) {
  v1::QuarantineRequest request;
  PutPrefix(prefix, /*with_fields=*/true, request.mutable_prefix());
  for (const ObjectId& id : objects) ToProto(id, request.add_objects());
  CallSet::Entry active(&calls_);
  active.context()->set_deadline(MonotonicIn(timeout));
  v1::QuarantineResponse response;
  const absl::Status status =
      FromGrpcStatus(stub_->Quarantine(active.context(), request, &response));
  Log(LogLevel::kWarning, "audit: the store's bytes differ from what this worker computes",
      {{"tenant", prefix.tenant},
       {"tokens", prefix.token_ids.size()},
       {"objects", objects.size()},
       {"quarantined", status.ok() ? std::to_string(response.objects()) : status.ToString()}});
  return status.ok();
}

absl::StatusOr<bool> RemotePrefixCache::Report(const v1::ReportRequest& report,
                                               absl::Duration timeout) {
  CallSet::Entry active(&calls_);
  active.context()->set_deadline(MonotonicIn(timeout));
  v1::ReportResponse response;
  const absl::Status status = FromGrpcStatus(stub_->Report(active.context(), report, &response));
  sends_words_ = status.ok() && response.shows_prompt_text() && first_words_ != nullptr;
  if (!status.ok()) return status;
  return response.shows_prompt_text();
}

std::string RemotePrefixCache::FirstWords(const PrefixRequest& prefix) const {
  const std::vector<uint32_t>& ids = prefix.token_ids;
  if (!sends_words_ || ids.size() < kFirstWordsTokens) return "";
  return first_words_({ids.begin(), ids.begin() + kFirstWordsTokens});
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
