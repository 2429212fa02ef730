#include "tests/simulation/sim_worker.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include "absl/synchronization/notification.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// the number of publisher threads in worker/engine/publisher.cc
constexpr size_t kPublisherThreads = 2;
// Time limit for a wait in real time, exceeded only if an engine hangs.
constexpr absl::Duration kEngineHangs = absl::Seconds(120);

}  // namespace

const char* KindName(CacheCall::Kind kind) {
  constexpr const char* kNames[] = {"fetch", "lease", "publish"};
  return kNames[static_cast<int>(kind)];
}

class SimWorker::HeldLease : public ComputeLease {
 public:
  HeldLease(SimWorker* worker, std::string id, std::shared_ptr<std::atomic<bool>> released)
      : worker_(worker), id_(std::move(id)), released_(std::move(released)) {}
  ~HeldLease() override {
    absl::MutexLock lock(&worker_->mu_);
    *released_ = true;
    const auto it = worker_->running_.find(id_);
    if (it != worker_->running_.end()) --it->second.leases_held;
  }

 private:
  SimWorker* const worker_;
  const std::string id_;
  const std::shared_ptr<std::atomic<bool>> released_;
};

SimWorker::SimWorker(const EngineOptions& options) : options_(options) { Start(); }

SimWorker::~SimWorker() {
  {
    absl::MutexLock lock(&mu_);
    is_crashing_ = true;
  }
  Stop();
}

void SimWorker::Drain() {
  drainer_ = std::thread([this] { engine_->Drain(absl::InfiniteFuture()); });
}

void SimWorker::RestartEngine() {
  Stop();
  Start();
}

void SimWorker::Stop() {
  if (drainer_.joinable()) drainer_.join();
  engine_.reset();
}

void SimWorker::Start() {
  auto engine = Engine::Create(options_);
  if (!engine.ok()) {
    std::fprintf(stderr, "worker: %s\n", engine.status().ToString().c_str());
    std::abort();
  }
  engine_ = *std::move(engine);
  engine_->SetCache(this);
}

void SimWorker::Crash() {
  {
    absl::MutexLock lock(&mu_);
    is_crashing_ = true;
  }
  Stop();
  {
    absl::MutexLock lock(&mu_);
    running_.clear();
    waiting_.clear();
    new_.clear();
    results_.clear();
    is_crashing_ = false;
  }
  Start();
}

// Cancels a request from one of its callbacks, which may run before Submit has returned the
// request's handle.
struct SimWorker::Caller {
  absl::Notification has_handle;
  std::shared_ptr<EngineRequestHandle> handle;

  void Cancel() {
    has_handle.WaitForNotification();
    if (handle != nullptr) handle->Cancel();
  }
};

void SimWorker::Submit(const EngineRequest& request, CancelAt when) {
  const std::string id = request.request_id;
  {
    absl::MutexLock lock(&mu_);
    Running& running = running_[id];
    running.request = request;
    running.result.id = id;
  }
  const auto caller = std::make_shared<Caller>();
  const EngineCallbacks callbacks = CallbacksOf(id, when, caller);
  const auto handle = engine_->Submit(request, callbacks);
  if (handle.ok()) caller->handle = *handle;
  caller->has_handle.Notify();
  if (!handle.ok()) return callbacks.on_error(handle.status());
  absl::MutexLock lock(&mu_);
  const auto it = running_.find(id);
  if (it != running_.end()) it->second.handle = *handle;
}

EngineCallbacks SimWorker::CallbacksOf(const std::string& id, CancelAt when,
                                       const std::shared_ptr<Caller>& caller) {
  const auto change = [this, id](const std::function<void(Running*)>& how) {
    absl::MutexLock lock(&mu_);
    const auto it = running_.find(id);
    if (it != running_.end()) how(&it->second);
  };
  const auto cancel = [change, caller] {
    change([](Running* running) { running->result.is_cancelled = true; });
    caller->Cancel();
  };
  EngineCallbacks callbacks;
  callbacks.on_started = [this, id, when, cancel](const StartedInfo& info) {
    OnStarted(id, info);
    if (when == CancelAt::kStart) cancel();
  };
  callbacks.on_token = [change, when, cancel](const SampledToken& token) {
    change([&](Running* running) { running->result.tokens.push_back(token.id); });
    if (when == CancelAt::kFirstToken) cancel();
    return true;
  };
  callbacks.on_finished = [change](const FinishedInfo& info) {
    change([&](Running* running) {
      running->result.finished = info;
      running->is_over = true;
      const CacheMode mode = running->request.cache;
      if (mode == CacheMode::kRead || mode == CacheMode::kOff) running->is_published = true;
    });
  };
  callbacks.on_error = [change](const absl::Status& status) {
    change([&](Running* running) {
      running->result.error = status;
      running->is_over = running->is_published = true;
      // A request calls Publish before its second token, so only a request without tokens may have
      // skipped some of its publishes.
      running->ended_early = running->result.tokens.empty();
      if (running->ended_early) running->publishes_due = running->publishes_come;
    });
  };
  callbacks.on_published = [change](const PublishOutcome&) {
    change([](Running* running) { running->is_published = true; });
  };
  return callbacks;
}

bool SimWorker::Cancel(const std::string& id) {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mu_);
    const auto it = running_.find(id);
    if (it == running_.end() || it->second.is_over) return false;
    it->second.result.is_cancelled = true;
    handle = it->second.handle;
  }
  if (handle != nullptr) handle->Cancel();
  return true;
}

void SimWorker::OnStarted(const std::string& id, const StartedInfo& info) {
  absl::MutexLock lock(&mu_);
  const auto it = running_.find(id);
  if (it == running_.end()) return;
  it->second.is_started = true;
  it->second.result.started = info;
  it->second.publishes_due = PublishesOf(it->second);
  const EngineRequest& request = it->second.request;
  const std::vector<uint32_t> kept =
      KeptBoundaries(static_cast<uint32_t>(request.token_ids.size()), request.breakpoints,
                     info.matched_tokens, info.cached_tokens, options_.chunk_tokens);
  it->second.last_boundary = kept.empty() ? info.cached_tokens : kept.back();
}

// Returns how many times the request will call Publish, by the rules of PrefixKeeper::KeepPassed
// and PrefixKeeper::Publish.
size_t SimWorker::PublishesOf(const Running& running) const {
  const EngineRequest& request = running.request;
  const StartedInfo& started = running.result.started;
  const uint32_t tokens = static_cast<uint32_t>(request.token_ids.size());
  if (request.cache == CacheMode::kRead || request.cache == CacheMode::kOff) return 0;
  const std::vector<uint32_t> kept =
      KeptBoundaries(tokens, request.breakpoints, started.matched_tokens, started.cached_tokens,
                     options_.chunk_tokens);
  const bool offers_restored =
      started.cached_tokens > 0 && (started.source_tier == Tier::kWorker || kept.empty());
  size_t due = !kept.empty() || offers_restored ? 1 : 0;
  if (!running.has_lease || kept.empty()) return due;
  const uint32_t end = request.max_new_tokens > 0 ? tokens : kept.back();
  std::vector<uint32_t> steps;
  for (const uint32_t step : StepEnds(tokens, request.breakpoints, options_.chunk_tokens)) {
    if (step > started.cached_tokens && step <= end) steps.push_back(step);
  }
  for (size_t i = 0; i + 2 < steps.size() && steps[i] < kept.back(); ++i) {
    due += std::binary_search(kept.begin(), kept.end(), steps[i]);
  }
  return due;
}

size_t SimWorker::Waiting(const std::string& id, bool publishes) const {
  size_t count = 0;
  for (const auto& call : waiting_) {
    const bool is_publish = call->kind == CacheCall::Kind::kPublish;
    count += is_publish == publishes && (id.empty() || call->prefix.request_id == id);
  }
  return count;
}

bool SimWorker::IsAtRest() const {
  const bool publishers_wait = Waiting("", true) >= kPublisherThreads;
  for (const auto& [id, running] : running_) {
    if (!running.is_over) {
      if (running.result.is_cancelled || Waiting(id, false) == 0) return false;
      continue;
    }
    // the request was cancelled, but its cache call has not ended
    if (Waiting(id, false) > 0) continue;
    const bool gives_back = running.ended_early || running.last_is_answered;
    if (gives_back && running.leases_held > 0) return false;
    if (publishers_wait) continue;
    if (running.publishes_come < running.publishes_due) return false;
    if (Waiting(id, true) > 0) continue;
    if (!running.is_published || running.leases_held > 0) return false;
  }
  return true;
}

std::vector<std::shared_ptr<CacheCall>> SimWorker::AwaitRest() {
  absl::MutexLock lock(&mu_);
  if (!mu_.AwaitWithTimeout(absl::Condition(this, &SimWorker::IsAtRest), kEngineHangs)) {
    std::fprintf(stderr, "simulation: an engine does not come to rest\n");
    std::abort();
  }
  std::vector<std::shared_ptr<CacheCall>> calls;
  std::swap(calls, new_);
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) {
    return std::tie(a->prefix.request_id, a->kind, a->publish.boundaries) <
           std::tie(b->prefix.request_id, b->kind, b->publish.boundaries);
  });
  ForgetDone();
  return calls;
}

void SimWorker::ForgetDone() {
  for (auto it = running_.begin(); it != running_.end();) {
    Running& running = it->second;
    if (running.is_over && !running.result.id.empty()) {
      results_.push_back(std::move(running.result));
      running.result.id.clear();
    }
    const bool done = running.is_over && running.is_published && Waiting(it->first, true) == 0 &&
                      Waiting(it->first, false) == 0 &&
                      running.publishes_come >= running.publishes_due && running.leases_held == 0;
    it = done ? running_.erase(it) : std::next(it);
  }
}

std::vector<WorkerResult> SimWorker::TakeResults() {
  absl::MutexLock lock(&mu_);
  std::vector<WorkerResult> results;
  std::swap(results, results_);
  return results;
}

size_t SimWorker::busy() const {
  absl::MutexLock lock(&mu_);
  return running_.size();
}

void SimWorker::Answer(CacheCall* call) {
  absl::MutexLock lock(&mu_);
  call->is_answered = true;
  const auto it = running_.find(call->prefix.request_id);
  if (it != running_.end() && call->kind == CacheCall::Kind::kPublish) {
    it->second.last_is_answered |= call->publish.boundaries.back() == it->second.last_boundary;
  }
  waiting_.erase(std::remove_if(waiting_.begin(), waiting_.end(),
                                [&](const auto& other) { return other.get() == call; }),
                 waiting_.end());
}

std::shared_ptr<ComputeLease> SimWorker::MakeLease(const std::string& id,
                                                   std::shared_ptr<std::atomic<bool>> released) {
  absl::MutexLock lock(&mu_);
  const auto it = running_.find(id);
  if (it != running_.end()) {
    it->second.has_lease = true;
    ++it->second.leases_held;
  }
  return std::make_shared<HeldLease>(this, id, std::move(released));
}

void SimWorker::Wait(const std::shared_ptr<CacheCall>& call) {
  if (is_crashing_) return;
  waiting_.push_back(call);
  new_.push_back(call);
  const auto over = [this, &call] {
    mu_.AssertReaderHeld();
    return call->is_answered || is_crashing_;
  };
  mu_.Await(absl::Condition(&over));
}

FetchOutcome SimWorker::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                              uint32_t max_tokens, absl::Duration) {
  const auto call = std::make_shared<CacheCall>();
  call->kind = CacheCall::Kind::kFetch;
  call->prefix = prefix;
  call->above_tokens = above_tokens;
  call->max_tokens = max_tokens;
  absl::MutexLock lock(&mu_);
  Wait(call);
  return call->is_answered ? std::move(call->fetched) : FetchOutcome();
}

PublishOutcome SimWorker::Publish(const PublishRequestSpec& spec, absl::Duration) {
  const auto call = std::make_shared<CacheCall>();
  call->kind = CacheCall::Kind::kPublish;
  call->prefix = spec.prefix;
  call->publish = spec;
  absl::MutexLock lock(&mu_);
  const auto it = running_.find(spec.prefix.request_id);
  if (it != running_.end()) ++it->second.publishes_come;
  Wait(call);
  return call->is_answered ? std::move(call->published) : PublishOutcome();
}

LeaseOutcome SimWorker::Lease(const PrefixRequest& prefix, uint32_t above_tokens,
                              uint32_t max_tokens, const LeaseTerms& terms, absl::Duration) {
  const auto call = std::make_shared<CacheCall>();
  call->kind = CacheCall::Kind::kLease;
  call->prefix = prefix;
  call->above_tokens = above_tokens;
  call->max_tokens = max_tokens;
  call->terms = terms;
  absl::MutexLock lock(&mu_);
  Wait(call);
  return call->is_answered ? std::move(call->turn) : LeaseOutcome();
}

}  // namespace hearth
