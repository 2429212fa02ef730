// FetchFlow: a Fetch call, in which the worker gets a plan and then the slices. If a slice arrives
// damaged, the worker fetches once more.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/object_builder.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/store/store_conversion.h"
#include "tests/simulation/flow.h"

namespace hearth {
namespace {

class FetchFlow final : public Flow {
 public:
  FetchFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice)
      : Flow(peer, std::move(call), dice) {}

 private:
  void Begin() override {
    PrefixQuery query = Query();
    query.again = is_again_;
    auto session = store()->Fetch(query, call_->above_tokens, call_->max_tokens);
    if (!session.ok()) {
      if (!MayFail() && !(gives_up_ && absl::IsCancelled(session.status()))) {
        peer_->time->Violated(8, absl::StrCat("a lookup failed: ", session.status().ToString()));
      }
      return FailAtNode(session.status());
    }
    copies_.clear();
    session_ = *std::move(session);
    const LookupPlan& plan = session_->plan();
    ledger()->CheckPlan(query, call_->max_tokens, plan);
    for (uint32_t i = 0; i < plan.objects.size(); ++i) {
      for (const uint32_t layer : plan.layout.LayersOf(plan.objects[i].id.group)) {
        slices_.push_back({i, layer});
      }
    }
    v1::FetchPlan message;
    PlanToProto(plan, &message);
    ToWorker([this, message = std::move(message), tier = plan.slowest_tier] {
      TakePlan(message, tier);
    });
    SendSlice(0);
  }

  void SendSlice(size_t number) {
    if (!is_served_) return;
    if (number == slices_.size()) return StopServing();
    const auto [object, layer] = slices_[number];
    const absl::StatusOr<SliceView> slice = SliceAt(object, layer);
    if (!slice.ok()) {
      if (!MayFail()) {
        peer_->time->Violated(7, absl::StrCat("promised, and gone: ", slice.status().ToString()));
      }
      return FailAtNode(slice.status());
    }
    std::string bytes(reinterpret_cast<const char*>(slice->bytes.data()), slice->bytes.size());
    const size_t cut = dice_.Chance(30) ? dice_.Roll(bytes.size()) : 0;
    if (cut > 0) SendPiece(object, layer, 0, bytes.substr(0, cut));
    SendPiece(object, layer, cut, bytes.substr(cut));
    peer_->time->After(trickle_ + dice_.Between(absl::ZeroDuration(), absl::Milliseconds(1)),
                       [self = shared_from_this(), this, number] { SendSlice(number + 1); });
  }

  // Reads a slice from its copy in device memory, from shared memory or from the store's session.
  absl::StatusOr<SliceView> SliceAt(uint32_t object, uint32_t layer) {
    const auto [copy, is_new] = copies_.try_emplace(object);
    if (is_new && dice_.Chance(70)) copy->second = session_->OnDevice(object);
    if (copy->second != nullptr) {
      const LookupPlan& plan = session_->plan();
      const std::vector<uint32_t> layers = plan.layout.LayersOf(plan.objects[object].id.group);
      const size_t place = std::find(layers.begin(), layers.end(), layer) - layers.begin();
      const size_t bytes = copy->second->range.bytes / layers.size();
      return SliceView{copy->second, {copy->second->bytes + place * bytes, bytes}};
    }
    std::optional<SliceView> peeked;
    if (!is_again_) peeked = session_->PeekSlice(object, layer);
    if (peeked.has_value()) return *std::move(peeked);
    return session_->ReadSlice(object, layer);
  }

  void SendPiece(uint32_t object, uint32_t layer, uint64_t offset, std::string bytes) {
    // Flips a bit as if TCP had not noticed an error. The worker must notice it by the slice's
    // digest.
    if (dice_.Roll(2000) == 0) bytes[dice_.Roll(bytes.size())] ^= 1 << dice_.Roll(8);
    ToWorker([this, object, layer, offset, bytes = std::move(bytes)] {
      if (!builder_.has_value()) return;
      const absl::Status added = builder_->Add(object, layer, offset, bytes);
      if (!added.ok()) return OnDamagedSlice(added);
      if (builder_->complete()) Finish();
    });
  }

  void TakePlan(const v1::FetchPlan& plan, Tier tier) {
    call_->fetched.matched_tokens =
        std::min<uint32_t>(plan.matched_tokens(), call_->prefix.token_ids.size());
    if (plan.usable_tokens() == 0) return Answer(absl::StrCat("nothing: ", plan.miss_reason()));
    const PlanRequest wanted{&call_->prefix, call_->above_tokens, call_->max_tokens,
                             &peer_->oracle->fingerprint(), &peer_->oracle->layout()};
    const absl::Status right = CheckPlan(wanted, plan);
    if (!right.ok()) peer_->time->Violated(1, absl::StrCat("a wrong plan: ", right.ToString()));
    std::vector<ObjectBuilder::Announced> announced;
    for (const v1::ObjectRef& ref : plan.objects()) {
      announced.push_back({{ref.begin(), ref.tokens(), GroupOf(ref)},
                           {ref.slice_digests().begin(), ref.slice_digests().end()}});
    }
    auto builder = ObjectBuilder::Create(peer_->oracle->layout(), plan.usable_tokens(), announced);
    if (!builder.ok()) return Fail(builder.status());
    builder_ = *std::move(builder);
    usable_tokens_ = plan.usable_tokens();
    tier_ = tier;
  }

  static LayerGroup GroupOf(const v1::ObjectRef& ref) {
    return ref.group() == v1::LAYER_GROUP_LOCAL ? LayerGroup::kLocal : LayerGroup::kGlobal;
  }

  void OnDamagedSlice(const absl::Status& why) {
    builder_.reset();
    if (is_again_) return Fail(why);
    is_again_ = true;
    peer_->time->Note(absl::StrCat(CallName(), ": rotten, once more"));
    ReleaseAtNode();
    ToNode([self = shared_from_this(), this] {
      slices_.clear();
      Enter();
    });
  }

  // Returns whether a worker without a cache would compute the same bytes.
  bool IsRight(const ObjectId& id, const std::byte* bytes, size_t size) const {
    const size_t prompt = peer_->prompts.at(call_->prefix.request_id);
    std::string right;
    for (const uint32_t layer : peer_->oracle->layout().LayersOf(id.group)) {
      right += peer_->oracle->SliceOf(prompt, id, layer);
    }
    return right.size() == size && std::memcmp(right.data(), bytes, size) == 0;
  }

  // Checks invariant 1: every received byte is right.
  void Finish() {
    auto objects = builder_->Take();
    if (!objects.ok()) return Fail(objects.status());
    for (const auto& object : *objects) {
      if (IsRight(object->id, object->bytes.get(), object->size_bytes)) continue;
      peer_->time->Violated(1, absl::StrCat("wrong bytes at ", object->id.begin));
    }
    call_->fetched.usable_tokens = usable_tokens_;
    call_->fetched.slowest_tier = tier_;
    call_->fetched.objects = *std::move(objects);
    Answer(absl::StrCat(usable_tokens_, " tokens from ", TierName(tier_)));
  }

  // Checks invariant 21: device memory that was lent to the worker keeps its bytes until the worker
  // returns it.
  void EndServing() override {
    for (const auto& [object, copy] : copies_) {
      if (copy == nullptr) continue;
      const ObjectId& id = session_->plan().objects[object].id;
      if (IsRight(id, copy->bytes, copy->range.bytes)) continue;
      peer_->time->Violated(21, absl::StrCat("wrong bytes on the device at ", id.begin));
    }
    copies_.clear();
    session_.reset();
  }
  void SetFailure(const absl::Status& error) override {
    call_->fetched = FetchOutcome();
    call_->fetched.note = std::string(error.message());
  }
  absl::Duration Budget() const override { return kFetchBudget; }

  bool is_again_ = false;
  // The next three members: the state that the node keeps of the call.
  std::unique_ptr<FetchSession> session_;
  std::vector<std::pair<uint32_t, uint32_t>> slices_;
  // copies of objects in lent device memory; null: the object has no such copy
  std::map<uint32_t, DeviceRef> copies_;
  // The next three members: the state that the worker keeps of the call.
  std::optional<ObjectBuilder> builder_;
  uint32_t usable_tokens_ = 0;
  Tier tier_ = Tier::kNone;
};

}  // namespace

std::shared_ptr<Flow> MakeFetchFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice) {
  return std::make_shared<FetchFlow>(peer, std::move(call), dice);
}

}  // namespace hearth
