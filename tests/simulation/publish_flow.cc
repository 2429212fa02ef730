// PublishFlow: a Publish call: announcement, list of needed objects, their bytes, commit,
// acknowledgement.
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/inference/remote_prefix_cache.h"
#include "services/store/store_conversion.h"
#include "tests/simulation/flow.h"

namespace hearth {
namespace {

class PublishFlow final : public Flow {
 public:
  PublishFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice)
      : Flow(peer, std::move(call), dice) {}

 private:
  void Begin() override {
    const PublishRequestSpec& asked = call_->publish;
    spec_.fingerprint = peer_->oracle->fingerprint();
    spec_.tenant = asked.prefix.tenant;
    spec_.token_ids = asked.prefix.token_ids;
    spec_.cuts = asked.prefix.cuts;
    spec_.boundaries = asked.boundaries;
    spec_.durability = asked.durability;
    spec_.ttl = absl::Seconds(asked.ttl_s);
    spec_.stopped = Query().stopped;
    spec_.publisher = absl::StrCat("worker ", peer_->number);
    for (const auto& object : asked.objects) {
      spec_.objects.push_back({object->id, object->slice_digests, object->bytes == nullptr});
    }
    auto session = store()->Publish(spec_);
    if (!session.ok()) return Refuse(session.status());
    session_ = *std::move(session);
    needed_.assign(session_->needed().begin(), session_->needed().end());
    ToWorker([this, needed = needed_] { SendNeeded(needed); });
  }

  // Checks the status of a failed publish. Refusals are normal, but some status codes show a bug.
  void Refuse(const absl::Status& status) {
    peer_->time->Note(
        absl::StrCat(CallName(), ": refused: ", absl::StatusCodeToString(status.code())));
    peer_->time->LogOnly(std::string(status.message()));
    const bool is_bug = absl::IsAborted(status) || absl::IsInvalidArgument(status) ||
                        absl::IsInternal(status) || absl::IsFailedPrecondition(status);
    if (is_bug) peer_->time->Violated(1, absl::StrCat("a publish: ", status.ToString()));
    FailAtNode(status);
  }

  void SendNeeded(const std::vector<uint32_t>& needed) {
    for (const uint32_t index : needed) {
      const KvObject& object = *call_->publish.objects[index];
      if (object.bytes == nullptr) {
        return peer_->time->Violated(3, "asked for what was not offered");
      }
      const std::byte* bytes = object.bytes.get();
      const size_t slice_bytes = peer_->oracle->layout().SliceBytes(object.id.tokens);
      for (const uint32_t layer : peer_->oracle->layout().LayersOf(object.id.group)) {
        ToNode([this, index, layer, bytes, slice_bytes] {
          Put(index, layer, {bytes, slice_bytes});
        });
        bytes += slice_bytes;
      }
    }
    ToNode([this] { Commit(); });
  }

  void Put(uint32_t index, uint32_t layer, absl::Span<const std::byte> bytes) {
    if (!is_served_) return;
    auto memory = session_->AllocateSlice(bytes.size());
    if (!memory.ok()) return Refuse(memory.status());
    std::memcpy(memory->get(), bytes.data(), bytes.size());
    const absl::Span<const std::byte> there(memory->get(), bytes.size());
    const absl::Status put = session_->PutSlice(index, layer, SliceView{*memory, there});
    if (!put.ok()) Refuse(put);
  }

  void Commit() {
    if (!is_served_) return;
    peer_->node->TakeEvents();
    ledger()->Committing(spec_, needed_);
    absl::StatusOr<PublishResult> result = session_->Commit();
    peer_->node->TakeEvents();
    if (!result.ok()) {
      ledger()->CommitFailed(spec_);
      return Refuse(result.status());
    }
    ledger()->Committed(spec_, *result);
    Learn(*result);
    peer_->time->Note(absl::StrCat(CallName(), ": {", absl::StrJoin(result->boundaries, " "), "} ",
                                   DurabilityName(result->durable)));
    StopServing();
    v1::PublishAck ack;
    ResultToProto(*result, &ack);
    ToWorker([this, ack] {
      ReadAck(ack, &call_->published);
      Answer("acknowledged");
    });
  }

  void Learn(const PublishResult& result) {
    PrefixQuery query = Query();
    query.stopped = nullptr;
    const auto report = store()->Explain(query);
    if (!report.ok()) return;
    for (const BoundaryReport& told : report->boundaries) {
      const bool is_ours = std::find(result.boundaries.begin(), result.boundaries.end(),
                                     told.boundary) != result.boundaries.end();
      if (!is_ours || !told.restore_point_id.has_value()) continue;
      ledger()->Learn(PrefixName(spec_.tenant, spec_.token_ids, spec_.cuts, told.boundary,
                                 peer_->oracle->layout()),
                      *told.restore_point_id);
    }
  }

  void EndServing() override { session_.reset(); }
  void SetFailure(const absl::Status& error) override {
    call_->published = PublishOutcome();
    call_->published.note = std::string(error.message());
  }
  absl::Duration Budget() const override { return kPublishBudget; }

  // State of the call at the node.
  PublishSpec spec_;
  std::unique_ptr<PublishSession> session_;
  std::vector<uint32_t> needed_;
};

}  // namespace

std::shared_ptr<Flow> MakePublishFlow(Peer* peer, std::shared_ptr<CacheCall> call, Dice dice) {
  return std::make_shared<PublishFlow>(peer, std::move(call), dice);
}

}  // namespace hearth
