#include "tests/simulation/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/verify.h"

namespace hearth {
namespace {

constexpr absl::Duration kHorizon = absl::Seconds(60);
// Timeouts of the engine in real time. Only an engine that hangs reaches them, because Flows have
// deadlines in virtual time.
constexpr absl::Duration kNever = absl::Hours(1);

}  // namespace

World::World(uint64_t seed, size_t lines_kept) : time_(seed, lines_kept) {}

void World::MakeWorkers() {
  Dice dice = time_.DiceOf("workers");
  for (int i = 0; i < kWorkers; ++i) {
    Place& place = places_[i];
    EngineOptions options = oracle_.options();
    options.cache.fetch_budget = options.cache.publish_timeout = kNever;
    options.cache.compute.wait = dice.Chance(80) ? absl::Seconds(10) : absl::ZeroDuration();
    options.cache.compute.lease = dice.Chance(80) ? absl::Seconds(10) : absl::ZeroDuration();
    options.cache.compute.min_tokens = 16;
    options.memory.pool_bytes = dice.Chance(30) ? 100000 : 0;
    place.worker = std::make_unique<SimWorker>(options);
    place.link = std::make_unique<Link>(&time_);
    place.peer.number = i;
    place.peer.time = &time_;
    place.peer.node = &node_;
    place.peer.oracle = &oracle_;
    place.peer.link = place.link.get();
    place.peer.worker = place.worker.get();
  }
}

void World::Every(const std::string& name, absl::Duration least, absl::Duration most,
                  std::function<void(Dice*)> act) {
  const auto dice = std::make_shared<Dice>(time_.DiceOf(name));
  const auto again = std::make_shared<std::function<void()>>();
  *again = [this, dice, least, most, act = std::move(act), weak = std::weak_ptr(again)] {
    if (!goes_on()) return;
    act(dice.get());
    if (const auto next = weak.lock()) {
      time_.After(dice->Between(least, most), [next] { (*next)(); });
    }
  };
  time_.After(dice->Between(least, most), [again] { (*again)(); });
}

void World::Run() {
  MakeWorkers();
  node_.Open();
  end_ = time_.now() + kHorizon;
  for (int i = 0; i < kWorkers; ++i) {
    Every(absl::StrCat("client ", i), absl::Milliseconds(20), absl::Seconds(4),
          [this, i](Dice*) { Ask(i); });
  }
  StartFaults();
  while (!time_.failed() && time_.RunNext()) {
    Pump();
    node_.Check();
  }
  if (!time_.failed()) EndFaults();
  if (!time_.failed()) CheckAll();
  for (Place& place : places_) {
    for (const auto& flow : place.flows) flow->StopServing();
    place.worker.reset();
  }
  figures_.promises = node_.ledger()->promises();
  time_.Forget();
}

void World::Ask(int worker) {
  Place& place = places_[worker];
  Dice dice = time_.DiceOf(absl::StrCat("request ", worker, " ", place.requests));
  const std::string id = absl::StrCat("w", worker, "-", place.requests++);
  if (place.worker->busy() >= 3 || place.worker->is_draining()) return;
  EngineRequest request;
  // Each seed has a few prompts that are requested often.
  const size_t prompts = oracle_.prompts().size();
  const size_t prompt = (time_.seed() + dice.Roll(dice.Chance(80) ? 6 : prompts)) % prompts;
  request.token_ids = oracle_.prompts()[prompt].tokens;
  request.breakpoints = oracle_.prompts()[prompt].cuts;
  request.tenant = Node::Tenants()[dice.Roll(dice.Chance(70) ? 1 : Node::Tenants().size())];
  request.max_new_tokens = dice.Chance(85) ? Oracle::kNewTokens : 0;
  request.ignore_eos = true;
  const CacheMode modes[] = {CacheMode::kRead, CacheMode::kWrite, CacheMode::kOff};
  if (dice.Chance(10)) request.cache = modes[dice.Roll(3)];
  request.durability = static_cast<Durability>(dice.Roll(4));
  if (dice.Chance(20)) request.ttl_s = static_cast<uint32_t>(1 + dice.Roll(60));
  if (has_days_) request.ttl_s *= 3600;
  request.request_id = id;
  place.peer.prompts[id] = prompt;
  place.asked[id] = time_.now();
  ++figures_.requests;
  time_.Note(absl::StrCat(id, ": prompt ", prompt, " of ", request.tenant, ", ",
                          DurabilityName(request.durability),
                          request.ttl_s > 0 ? absl::StrCat(", ", request.ttl_s, " s") : ""));
  const CancelAt moments[] = {CancelAt::kStart, CancelAt::kFirstToken, CancelAt::kNever};
  const CancelAt moment = dice.Chance(12) ? moments[dice.Roll(3)] : CancelAt::kNever;
  place.worker->Submit(request, moment);
  if (dice.Chance(10)) {
    time_.After(dice.Between(absl::ZeroDuration(), absl::Seconds(3)), [this, &place, id] {
      if (place.asked.count(id) == 0 || !place.worker->Cancel(id)) return;
      time_.Note(absl::StrCat(id, ": its client goes away"));
    });
  }
}

void World::Pump() {
  for (Place& place : places_) PumpWorker(&place);
}

void World::PumpWorker(Place* place) {
  for (;;) {
    const auto calls = place->worker->AwaitRest();
    for (const WorkerResult& result : place->worker->TakeResults()) TakeResult(place, result);
    if (calls.empty()) break;
    for (const auto& call : calls) {
      const std::string name =
          absl::StrCat(KindName(call->kind), " ", call->prefix.request_id, " ",
                       absl::ToInt64Microseconds(time_.now() - absl::UnixEpoch()));
      auto flow = Flow::Make(&place->peer, call, time_.DiceOf(name));
      place->flows.push_back(flow);
      flow->Start();
    }
  }
  // Checks invariant 8: a draining worker has answered all admitted requests.
  if (place->worker->is_draining() && place->worker->busy() == 0) {
    time_.Note(absl::StrCat("worker ", place->peer.number, " has drained"));
    for (const auto& [id, asked] : place->asked) {
      time_.Violated(8, absl::StrCat(id, " was let in and not answered"));
    }
    place->worker->RestartEngine();
  }
  auto& flows = place->flows;
  for (size_t i = 0; i < flows.size(); ++i) flows[i]->OnEngineRest();
  flows.erase(
      std::remove_if(flows.begin(), flows.end(), [](const auto& flow) { return flow->is_done(); }),
      flows.end());
}

// Checks invariant 8: the answer equals that of a worker without a cache, whatever happened to the
// cache.
void World::TakeResult(Place* place, const WorkerResult& result) {
  const size_t prompt = place->peer.prompts.at(result.id);
  place->asked.erase(result.id);
  if (result.is_cancelled && absl::IsCancelled(result.error)) {
    if (result.tokens.size() > 1) time_.Violated(8, absl::StrCat(result.id, " went on"));
    return time_.Note(absl::StrCat(result.id, ": cancelled"));
  }
  if (!result.error.ok()) {
    return time_.Violated(8, absl::StrCat(result.id, ": ", result.error.ToString()));
  }
  figures_.restored += result.started.cached_tokens > 0;
  time_.Note(absl::StrCat(result.id, ": answered, ", result.started.cached_tokens, " cached, ",
                          TierName(result.started.source_tier)));
  if (result.finished.generated_tokens == 0) return;
  const Oracle::Answer& right = oracle_.AnswerTo(prompt);
  if (result.finished.first_logits_sha256 != right.first_logits || result.tokens != right.tokens) {
    time_.Violated(8, absl::StrCat(result.id, ": another answer than without a cache"));
  }
}

// Ends all faults: from now on disk and network work.
void World::EndFaults() {
  time_.Note("everything is mended");
  for (Place& place : places_) {
    place.link->Heal();
    for (const auto& [id, asked] : place.asked) {
      time_.Violated(8, absl::StrCat(id, " was never answered"));
    }
    if (place.worker->busy() > 0) time_.Violated(8, "a worker does not come to its end");
  }
  node_.SetRoom(FaultyDisk::kAmple);
  node_.disk()->Disarm();
  if (!node_.is_up()) node_.Open();
  if (!node_.is_up() && !time_.failed()) time_.Violated(29, "the store does not start");
}

void World::CheckAll() {
  node_.RunJobs();
  node_.Upkeep();
  node_.Check();
  ProbePublish();
  if (!node_.is_damaged()) ReadAll(node_.store(), node_.List());
  node_.Die(Ledger::Death::kClose);
  const auto verified = VerifyDataDir(node_.folder());
  // The verification cannot open some damaged folders. A start of the store can, because it
  // replaces the lost files.
  const bool may_fail = node_.is_damaged() && absl::IsDataLoss(verified.status());
  if (!verified.ok() && !may_fail) return time_.Violated(5, verified.status().ToString());
  if (verified.ok() && !verified->ok() && !node_.is_damaged())
    time_.Violated(5, verified->problems[0]);
  node_.Open();
  if (!time_.failed()) CheckBackup();
  if (!time_.failed() && node_.is_up()) node_.Die(Ledger::Death::kClose);
}

}  // namespace hearth
